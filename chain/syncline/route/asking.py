"""How a request is asked of one gateway, whatever HTTP client does it, and what a refusal of a gateway says. Sends nothing itself."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, cast

from syncline.errors import Retryable

MOST_REFUSAL_BYTES = 65536


class Unreached(Retryable):
    """Nobody answered there, and nothing was sent."""


class Lost(Retryable):
    """The request went out and no answer came: the engine may have begun it."""


class Answer(Protocol):
    """A gateway's answer of which the head has come."""

    @property
    def status(self) -> int: ...

    def header(self, name: str) -> str | None: ...

    async def read(self) -> bytes:
        """The body of a refusal. Lost where it breaks off, or has more than `MOST_REFUSAL_BYTES`."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


Ask = Callable[[str, Mapping[str, str]], Awaitable[Answer]]
"""Sends the request to the gateway at an address, with these headers more. Unreached, Lost."""


class Fault(Enum):
    """What a refusal is about."""

    VERSION = "version"
    """This request; others may go there."""
    REPLICA = "replica"
    """No request should go there for now."""
    DRAWN = "drawn"
    """The engine began an answer that is not handed out."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A 409 or 503, read."""

    fault: Fault
    code: str
    message: str
    after_s: float
    again: bool
    """Whether asking there again can help."""
    applied: int | None
    target: int | None


_OF_VERSION = ("not_yet", "gone_by", "agent_away")
_DRAWN = ("crossed", "engine_lost")
REFUSES = (409, 503)
LOST_ON_THE_WAY = (502, 504)
"""What a proxy in front of a gateway says when no answer came through it."""


def read_refusal(status: int, header: Callable[[str], str | None], body: bytes) -> Refusal | None:
    """None for an answer that is the engine's own and goes to the caller."""
    error = _error(body)
    code = error.get("code")
    if status == 409 and code not in (*_OF_VERSION, *_DRAWN) and header("x-syncline-applied") is None:
        return None
    of_version = status == 409 or code in _OF_VERSION
    fault = Fault.DRAWN if code in _DRAWN else Fault.VERSION if of_version else Fault.REPLICA
    after = error.get("retry_after")
    return Refusal(
        fault=fault,
        code=code if isinstance(code, str) else str(status),
        message=str(error.get("message") or f"it answered {status}"),
        after_s=_number(after) or _number(header("Retry-After")) or 1.0,
        again=header("x-should-retry") != "false",
        applied=_version(error.get("applied")),
        target=_version(error.get("target")),
    )


def _error(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    error = cast(dict[str, Any], told).get("error") if isinstance(told, dict) else None
    return cast(dict[str, Any], error) if isinstance(error, dict) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number > 0 else None


def _version(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
