"""Head, looked at beside a phase that takes long: while the follower fetches for minutes it reads no head, and nobody could say
any more how far behind it is.

Decides nothing: what is served is chosen by the follower alone.
"""

from __future__ import annotations

from syncline.chain import ChainReader
from syncline.clock import Clock
from syncline.errors import Retryable, SynclineError
from syncline.store.base import WeightStore
from syncline_agent.reporting import Reporter

AFTER_SECONDS = 5.0
"""A follower that polls reads head more often than that, and then nothing is read here."""
IDLE_SECONDS = 1.0


class HeadWatch:
    """A state machine whose `tick` reads head where the follower has not for a while."""

    def __init__(self, store: WeightStore, reporter: Reporter, clock: Clock) -> None:
        self._store = store
        self._reporter = reporter
        self._clock = clock
        self._reader: ChainReader | None = None
        self._of: tuple[str, str] | None = None

    def tick(self) -> float:
        """Look once; returns the seconds until the next call."""
        status = self._reporter.read()
        if status.run is None or status.head_age is None or status.head_age < AFTER_SECONDS:
            return IDLE_SECONDS
        if self._reader is None or self._of != (status.run, status.view):
            self._of = status.run, status.view
            self._reader = ChainReader(self._store, *self._of)
        began = self._clock.monotonic()
        try:
            head = self._reader.head()
        except SynclineError as error:
            if not isinstance(error, Retryable):
                self._reader = None  # what it remembers may be of a run that was created again
            return AFTER_SECONDS
        if head is not None and head.lineage == status.lineage:
            self._reporter.say(newest=head.version, newest_at=began)
        return AFTER_SECONDS
