"""Structured logs of every process: one event a line, as JSON or for a console, on standard error.

Called once by a process's `main`; nothing in the library logs at import, and a part takes its logger as an argument. What has none to
take (kernels, compiled wherever they are first used) writes to the standard library's log, whose lines below `syncline` come out here too.
An event is a few words in the past tense; what it is about stands in fields (run, version, phase), never in the text.
Nothing here may log a credential.
"""

from __future__ import annotations

import datetime
import logging
import sys
from typing import TextIO

import structlog
from structlog.types import EventDict, Processor, WrappedLogger
from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock, SystemClock

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def set_up_logs(
    *, log_format: str = "console", level: str = "info", clock: Clock | None = None, stream: TextIO | None = None
) -> None:
    """Configure structlog for this process: `log_format` is `json` or `console`, `level` one of LEVELS."""
    if log_format not in ("json", "console"):
        raise ValueError(f"log format {log_format!r} is neither json nor console")
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    out = stream or sys.stderr
    render: Processor
    if log_format == "json":
        render = structlog.processors.JSONRenderer(sort_keys=True)
    else:
        render = structlog.dev.ConsoleRenderer(colors=out.isatty())
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _Stamp(clock or SystemClock()),
        structlog.processors.format_exc_info,
        render,
    ]
    wrapper = structlog.make_filtering_bound_logger(LEVELS[level])
    structlog.configure(
        processors=processors,
        wrapper_class=wrapper,
        logger_factory=structlog.PrintLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    take_library_log(_Relay(structlog.wrap_logger(structlog.PrintLogger(out), processors, wrapper)))


def take_library_log(handler: logging.Handler) -> None:
    """Hand what the library writes to the standard library's log, from information on, to `handler` alone."""
    library = logging.getLogger("syncline")
    library.handlers = [handler]
    library.setLevel(logging.INFO)
    library.propagate = False


class _Relay(logging.Handler):
    """Records as events, with what they are `about` as fields."""

    def __init__(self, into: FilteringBoundLogger) -> None:
        super().__init__()
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        about = getattr(record, "about", {})
        component = record.name.rpartition(".")[2]
        try:
            self._into.log(record.levelno, record.getMessage(), component=component, **about)
        except (OSError, ValueError):  # the stream is gone: no kernel stays uncompiled for that
            self.handleError(record)


def logger(component: str, **fields: object) -> FilteringBoundLogger:
    """A logger whose every event says which component wrote it."""
    bound: FilteringBoundLogger = structlog.get_logger().bind(component=component, **fields)
    return bound


class _Stamp:
    """UTC time with milliseconds, from the clock handed in."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        when = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC)
        event["time"] = when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return event
