"""Saying a thing once while it is tried again and again: what was said is remembered without its counters, until it is
over. Decides nothing but that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from structlog.typing import FilteringBoundLogger

_COUNTER = re.compile(r"\b\d+(\.\d+)?\b")


def without_counters(text: str) -> str:
    """The text with its numbers left out: tries, seconds and free bytes differ each time, and say nothing new."""
    return _COUNTER.sub("#", text)


class OnceLog:
    """A log for work that is repeated until it succeeds: each warning of a version and a reason once until then."""

    def __init__(
        self, log: FilteringBoundLogger, bound: Mapping[str, Any] | None = None, said: set[object] | None = None
    ) -> None:
        self._log = log
        self._bound = bound or {}
        self._said: set[object] = set() if said is None else said

    def bind(self, **fields: Any) -> OnceLog:
        """The same log with fields that every line has; it knows what this one said."""
        return OnceLog(self._log, {**self._bound, **fields}, self._said)

    def info(self, event: str, **fields: Any) -> None:
        self._once(self._log.info, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._once(self._log.warning, event, fields)

    def over(self) -> None:
        """It succeeded; whatever comes next is new."""
        self._said.clear()

    def _once(self, say: Callable[..., Any], event: str, fields: Mapping[str, Any]) -> None:
        line = {**self._bound, **fields}
        said = (event, *map(line.get, ("run", "view", "step", "version")), without_counters(str(line.get("error"))))
        if said not in self._said:
            self._said.add(said)
            say(event, **line)
