"""Which version a request accepts: `weight_version` in its body, or `x-syncline-*` headers. Parses at the edge.

weight_version: {"min": 7}, {"exact": 7}, {"max_lag": 2}, {"max_lag_seconds": 60}, {"min": 7, "max_lag": 2}; each with
"wait_seconds": 30
and, but for exact, with "session": "a name"
x-syncline-min-version, x-syncline-exact-version, x-syncline-max-lag, x-syncline-max-lag-seconds, x-syncline-wait-seconds,
x-syncline-session
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from syncline_agent.gateway.bounds import Bounds

FIELD = "weight_version"
HEADERS = {
    "min": "x-syncline-min-version",
    "exact": "x-syncline-exact-version",
    "max_lag": "x-syncline-max-lag",
    "max_lag_seconds": "x-syncline-max-lag-seconds",
    "wait_seconds": "x-syncline-wait-seconds",
    "session": "x-syncline-session",
}
MOST_VERSION = 10**12 - 1
MOST_NAME = 256
"""Characters of a session's name."""


class BadWish(ValueError):
    """What is asked of versions is not understood; the message says what can be."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request accepts. Nothing set: whatever is served."""

    min: int | None = None
    exact: int | None = None
    max_lag: int | None = None
    wait_seconds: float | None = None
    """How long the caller waits for it; None leaves that to the gateway."""
    session: str | None = None
    """Whose keys and values may be found, of older versions too."""
    max_lag_seconds: float | None = None

    @property
    def anything(self) -> bool:
        """Every version will do."""
        return self.min is None and self.exact is None and not self.bounds.any

    @property
    def bounds(self) -> Bounds:
        """How far behind what is served may be when the request is let in."""
        return Bounds(self.max_lag, self.max_lag_seconds)

    def accepts(self, version: int) -> bool:
        """Whether a token of this version may be in the answer. How far behind is asked at admission only."""
        return (self.min is None or version >= self.min) and (self.exact is None or version == self.exact)

    @property
    def binds_tokens(self) -> bool:
        """Whether `accepts` refuses any version at all."""
        return self.min is not None or self.exact is not None


def read_wanted(field: Any, headers: Mapping[str, str]) -> Wanted:
    """From the body's field (None where it has none) and the headers; one must not say another thing than the other."""
    if field is None:
        field = {}
    if not isinstance(field, dict):
        raise BadWish(f"{FIELD} must be an object with min, exact, max_lag or max_lag_seconds")
    unknown = set(field) - set(HEADERS)
    if unknown:
        raise BadWish(f"{FIELD} has no {min(unknown)!r:.60}; there are {', '.join(HEADERS)}")
    values: dict[str, Any] = {}
    for name, header in HEADERS.items():
        told = headers.get(header)
        in_body, in_header = field.get(name), told if name == "session" else _number(told, header)
        if in_body is not None and in_header is not None and in_body != in_header:
            raise BadWish(f"{FIELD}.{name} and {header} say different things")
        values[name] = in_header if in_body is None else in_body
    for name, least in (("min", 1), ("exact", 1), ("max_lag", 0)):
        _check_whole(name, values[name], least)
    wait = values["wait_seconds"]
    if wait is not None and (isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= 1e6):
        raise BadWish(f"{FIELD}.wait_seconds must be a number of seconds, 0 or more")
    behind = values["max_lag_seconds"]
    if behind is not None and (
        isinstance(behind, bool) or not isinstance(behind, int | float) or not 0 < behind <= 1e9
    ):
        raise BadWish(f"{FIELD}.max_lag_seconds must be a number of seconds above 0")
    session = values["session"]
    if session is not None and (not isinstance(session, str) or not 0 < len(session) <= MOST_NAME):
        raise BadWish(f"{FIELD}.session must be a name of 1 to {MOST_NAME} characters")
    wanted = Wanted(
        min=values["min"],
        exact=values["exact"],
        max_lag=values["max_lag"],
        wait_seconds=None if wait is None else float(wait),
        session=session,
        max_lag_seconds=None if behind is None else float(behind),
    )
    if wanted.exact is not None and (wanted.min is not None or wanted.bounds.any):
        raise BadWish(f"{FIELD}.exact goes alone: one version is already named")
    if wanted.exact is not None and session is not None:
        raise BadWish(f"{FIELD}.exact has no session: its keys and values may be of other versions")
    return wanted


def _check_whole(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_VERSION:
        raise BadWish(f"{FIELD}.{name} must be a whole number, {least} or more")


def _number(text: str | None, header: str) -> int | float | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadWish(f"{header} must be a number, not {text!r:.60}")
    return value
