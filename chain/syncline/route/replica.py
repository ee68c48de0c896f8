"""What is known of one replica: what its gateway or its node's heartbeat said last, what this process has in flight there, and why it
is left alone for now. Values that `fleet.py` keeps and `picking.py` reads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Seen:
    """A moment of a replica."""

    at: float
    """When it was so (monotonic)."""
    ready: bool
    """What is applied is proven and in service."""
    applied: int | None
    target: int | None
    load: int
    """Requests there, of everybody."""
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A replica as a source names it."""

    url: str
    name: str
    """Pool and node, or the address."""
    seen: Seen | None = None


@dataclass(slots=True)
class Replica:
    """One gateway, and through it an engine."""

    url: str
    name: str
    seen: Seen | None = None
    in_flight: int = 0
    """Requests of this process there."""
    others: int = 0
    """Requests of everybody else, when it was seen last."""
    held_until: float = 0.0
    held_why: str = ""
    silent_since: float | None = None
    """Since when it has not answered a look."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set for a moment when it is given up: requests that wait for its answer go elsewhere."""

    @property
    def load(self) -> int:
        return self.in_flight + self.others

    def saw(self, seen: Seen) -> bool:
        """Whether it is news."""
        before = self.seen
        if before is not None and seen.at < before.at:
            return False
        self.seen = seen
        self.others = max(0, seen.load - self.in_flight)
        return before is None or (before.ready, before.applied, before.target) != (
            seen.ready,
            seen.applied,
            seen.target,
        )

    def hold(self, until: float, why: str) -> None:
        """Send nothing there before."""
        self.held_until, self.held_why = max(self.held_until, until), why

    def release(self) -> None:
        self.held_until, self.held_why = 0.0, ""
