"""The library's log, as a person at a terminal reads it: one line of plain words on standard error, no time, no level to learn.

Only the command line speaks so; services log for machines (`syncline.logs`).
"""

from __future__ import annotations

import logging
import sys
from collections import deque

import structlog
from structlog.types import EventDict, WrappedLogger

from syncline.logs import take_library_log
from syncline_cli.output import printable

KNOWN = ("run", "view", "component", "phase")
"""What whoever typed the command knows already."""
REASONS = ("error", "reason")
REMEMBERED_LINES = 32


def speak_plainly() -> None:
    """Configure this process's logs, in plain words: warnings and worse, and what the library says takes long."""
    stream = _StandardError()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, plain_words],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: stream,
        cache_logger_on_first_use=False,
    )
    take_library_log(_Waiting(stream))


def plain_words(_logger: WrappedLogger, method: str, event: EventDict) -> str:
    """An event as a line: what happened, what it is about, and why."""
    what = str(event.pop("event"))
    reason = next((str(event.pop(name)) for name in REASONS if name in event), "")
    trace = event.pop("exception", "")
    about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in event.items() if name not in KNOWN)
    line = f"{method}: {what}" + (f" ({about})" if about else "") + (f": {reason}" if reason else "")
    return printable(line) + (f"\n{trace}" if trace else "")


class _Waiting(logging.Handler):
    """What takes long as a line when it begins; that it ended shows by itself."""

    def __init__(self, stream: _StandardError) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        about = getattr(record, "about", {})
        if "seconds" not in about:
            self._stream.msg(plain_words(None, "note", {"event": record.getMessage(), **about}))


class _StandardError:
    """Says no line again while it is fresh: a command that tries again meets the same damage again.

    Looks the stream up for each line: a progress bar puts its own in place while it shows.
    """

    def __init__(self) -> None:
        self._said: deque[str] = deque(maxlen=REMEMBERED_LINES)

    def msg(self, line: str) -> None:
        if line not in self._said:
            self._said.append(line)
            sys.stderr.write(line + "\n")

    warning = error = critical = exception = msg
