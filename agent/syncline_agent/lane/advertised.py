"""What the gateway beside this agent says of itself: where trainers reach it, and how much it has to do. For heartbeats and `/status`.

It lasts only as long as the gateway repeats it; nothing here is asked of the gateway, and nothing that is served depends on it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from syncline.clock import Clock

REPEAT_S = 4.0
"""How often a gateway says it again."""
FORGET_S = 15.0
"""A gateway that was silent for so long is gone."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """One gateway's words."""

    url: str
    """Where it is reached from outside of this node."""
    waiting: int
    """Requests that wait for a version."""
    at_engine: int
    """Requests that the engine works on."""


class Advertising:
    """The newest words of the gateway; heard in one thread, read in others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: tuple[float, Advertised] | None = None

    def hear(self, said: Advertised) -> None:
        with self._lock:
            self._heard = self._clock.monotonic(), said

    def forget(self) -> None:
        """The gateway said goodbye."""
        with self._lock:
            self._heard = None

    def now(self) -> Advertised | None:
        """None where there is no gateway, it tells no address, or it fell silent."""
        with self._lock:
            if self._heard is not None and self._clock.monotonic() - self._heard[0] < FORGET_S:
                return self._heard[1]
            return None
