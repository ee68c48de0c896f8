"""Under which writer's epoch versions were committed, as far as somebody has read their manifests. An engine does not know it.

Written and read by any thread; bounded. What is not known is None: no request waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from syncline.errors import LinkMissing, SynclineError
from syncline_agent.engine import Applied

MOST = 4096


class Epochs:
    """By lineage, view and version."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, int], int | None] = {}

    def of(self, held: Applied | None) -> int | None:
        """The epoch of what is held; None where nobody has read it."""
        return None if held is None else self._known.get(_key(held))

    def learn(self, lineage: str, view: str, version: int, epoch: int | None) -> None:
        """From the version's manifest; the oldest that was learnt makes room."""
        with self._lock:
            self._known[lineage, view, version] = epoch
            while len(self._known) > MOST:
                del self._known[next(iter(self._known))]

    def ask(self, held: Applied, read: Callable[[], int]) -> None:
        """Learn this one by `read`, where it was not asked for yet. A store that does not answer is asked again the next time."""
        if _key(held) in self._known:
            return
        try:
            epoch = read()
        except LinkMissing:
            epoch = None  # collected: nobody will ever know
        except SynclineError:
            return
        self.learn(*_key(held), epoch)


def _key(held: Applied) -> tuple[str, str, int]:
    return held.lineage, held.view, held.version
