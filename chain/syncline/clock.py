"""Time and randomness as arguments.

Every part that waits, stamps or draws takes a `Clock` and a `random.Random`; nothing else reads the machine's time. A simulation hands
in a clock that it moves by hand and a seeded generator, and so replays a whole fleet in one process.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import Protocol


class Clock(Protocol):
    """What a part may know about time."""

    def now(self) -> float:
        """Wall-clock seconds since the Unix epoch (UTC); may jump; only for stamps that people or other machines read."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only for durations and deadlines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait. A simulated clock moves itself forward instead."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told (or when somebody sleeps on it)."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` (>= 0)."""
        if seconds < 0:
            raise ValueError(f"time goes forward only, not by {seconds} s")
        self._now += seconds


def system_random() -> random.Random:
    """A generator seeded by the operating system."""
    return random.Random(secrets.randbits(256))
