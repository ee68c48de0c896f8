"""What a request wishes of versions, as far as picking a replica needs it. Pure, and judges nothing: a wish that is none goes on
to the gateway as it came, and that refuses it.

Of a request on its way to a gateway two things change: how long it may wait there, and that the header for picking alone is gone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

FIELD = "weight_version"
AFFINITY = "x-syncline-affinity"
"""Requests that say the same here go to the same replica while it can; the gateway does not see it."""
WAIT = "x-syncline-wait-seconds"
_HEADERS = {
    "min": "x-syncline-min-version",
    "exact": "x-syncline-exact-version",
    "max_lag": "x-syncline-max-lag",
    "session": "x-syncline-session",
    "wait_seconds": WAIT,
}


@dataclass(frozen=True, slots=True)
class Wish:
    """Which replicas will do. Nothing set: any whose version is proven."""

    min: int | None = None
    exact: int | None = None
    max_lag: int | None = None
    affinity: str | None = None
    """Requests of one affinity (or one session) have one home."""
    wait_seconds: float | None = None
    """How long the caller waits until a replica takes the request; None leaves that to the fleet."""

    def headers(self) -> dict[str, str]:
        """As a request says it."""
        said = {_HEADERS["min"]: self.min, _HEADERS["exact"]: self.exact, _HEADERS["max_lag"]: self.max_lag}
        said |= {AFFINITY: self.affinity, WAIT: self.wait_seconds}
        return {name: str(value) for name, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, read."""

    wish: Wish
    body: bytes
    """Without `wait_seconds` in its `weight_version`: each gateway is told by header what is left of it."""


def read_asked(headers: Mapping[str, str], body: bytes) -> Asked:
    """`headers` by lower-case names."""
    whole: dict[str, Any] = {}
    if b'"' + FIELD.encode() + b'"' in body:
        try:
            told = json.loads(body)
        except (ValueError, RecursionError):
            told = None
        whole = cast(dict[str, Any], told) if isinstance(told, dict) else {}
    field = whole.get(FIELD)
    wishes = cast(dict[str, Any], field) if isinstance(field, dict) else {}
    found = {name: wishes.get(name, headers.get(header)) for name, header in _HEADERS.items()}
    session = found["session"]
    wish = Wish(
        min=_whole(found["min"]),
        exact=_whole(found["exact"]),
        max_lag=_whole(found["max_lag"]),
        affinity=headers.get(AFFINITY) or (session if isinstance(session, str) and session else None),
        wait_seconds=_seconds(found["wait_seconds"]),
    )
    if wish.wait_seconds is not None and "wait_seconds" in wishes and _agree(wishes["wait_seconds"], headers.get(WAIT)):
        rest = {name: value for name, value in wishes.items() if name != "wait_seconds"}
        body = json.dumps(whole | {FIELD: rest}, separators=(",", ":"), ensure_ascii=False).encode()
    return Asked(wish, body)


def _agree(in_body: Any, in_header: str | None) -> bool:
    """Whether body and header do not contradict each other; what does goes on, to be refused."""
    return in_header is None or _seconds(in_header) == _seconds(in_body)


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) < 16 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
