"""Pins: what keeps the follower from committing while a request that may see one version only is in flight.

A pin lasts until it is given back, or for the seconds that it was granted, whichever is first: a gateway that dies delays
one commit, for a bounded time. Once a commit is wanted no pin is granted any more, so commits wait for those before them
only and are never starved. Pins say nothing of bits in doubt: healing waits for nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from syncline.clock import Clock

MOST_PIN_S = 60.0
"""No commit waits longer than that for all pins together."""
MOST_PINS = 4096
LOOK_AGAIN_S = 0.02
"""How soon a follower that was told to wait should ask again."""
_WANTED_S = 1.0
"""A commit that was wanted and not asked for again for so long is not wanted any more: the target changed meanwhile."""


class Pins:
    """Granted to gateways in one thread, minded by the follower in another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ends: dict[int, float] = {}
        self._granted = 0
        self._wanted_until = 0.0
        self._committing = False

    def grant(self, seconds: float) -> int | None:
        """A pin for at most `seconds`; None while a commit is wanted or under way, or too many are out."""
        with self._lock:
            now = self._clock.monotonic()
            self._drop(now)
            if self._committing or now < self._wanted_until or len(self._ends) >= MOST_PINS:
                return None
            self._granted += 1
            self._ends[self._granted] = now + min(seconds, MOST_PIN_S)
            return self._granted

    def give_back(self, pin: int) -> None:
        """The request is over; harmless for a pin that ended by itself."""
        with self._lock:
            self._ends.pop(pin, None)

    @contextmanager
    def commit(self) -> Iterator[bool]:
        """Whether a commit may run inside, and then none is pinned until it has ended. Otherwise it is wanted now."""
        with self._lock:
            now = self._clock.monotonic()
            self._drop(now)
            may = not self._ends
            self._committing = may
            self._wanted_until = 0.0 if may else now + _WANTED_S
        try:
            yield may
        finally:
            with self._lock:
                self._committing = False

    @property
    def out(self) -> int:
        """Pins that hold now."""
        with self._lock:
            self._drop(self._clock.monotonic())
            return len(self._ends)

    def _drop(self, now: float) -> None:
        for pin in [pin for pin, end in self._ends.items() if end <= now]:
            del self._ends[pin]
