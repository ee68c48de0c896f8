"""Structured logs of every process: one event a line, as JSON or for a console, on standard error.

Called once by a process's `main`; nothing in the library logs at import, and a part takes its logger as an argument.
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
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _Stamp(clock or SystemClock()),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )


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
