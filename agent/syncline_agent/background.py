"""The node checkpoint's slow advance, beside the serving path.

Decides when it is due, says why it did not come about, and has a checkpoint that a delta does not fit read through. The
work itself is `NodeCheckpoint`'s; nothing here touches an engine.
"""

from __future__ import annotations

from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import Corrupt, SynclineError
from syncline_agent.nodecheckpoint import Chain, NodeCheckpoint
from syncline_agent.settings import FollowSettings
from syncline_agent.status import Status


class Background:
    """Advances the node checkpoint at leisure, so that a restart starts near head and healing has something to start
    from."""

    def __init__(
        self,
        checkpoint: NodeCheckpoint,
        chain: Callable[[], Chain | None],
        status: Callable[[], Status],
        *,
        settings: FollowSettings,
        clock: Clock,
        log: FilteringBoundLogger,
        advanced: Callable[[], None] = lambda: None,
    ) -> None:
        self._checkpoint = checkpoint
        self._chain = chain
        self._status = status
        self._settings = settings
        self._clock = clock
        self._log = log
        self._advanced = advanced
        self._last = clock.monotonic()
        self._tried: tuple[int, float] | None = None
        self._doubted: int | None = None
        """The version on disk that was read through because a delta did not fit it."""
        self.error: str | None = None

    def tick(self) -> float:
        """Advance if it is due; returns the seconds until the next call."""
        chain, status = self._chain(), self._status()
        applied = status.applied
        if chain is None or applied is None or not status.in_service or applied.lineage != chain.lineage:
            return 1.0
        boot = self._checkpoint.version(chain.lineage, applied.view)
        if not self._due(chain, boot, applied.version):
            return 1.0
        try:
            self._checkpoint.advance(chain, applied.version)
        except (SynclineError, OSError) as error:
            said = f"{self._checkpoint.path} stays at version {boot}: {error}"
            if said != self.error:
                self._log.warning("did not advance the node checkpoint", version=boot, reason=str(error))
            self.error = said
            if isinstance(error, Corrupt) and boot != self._doubted and self._read_through():
                self._doubted = boot  # once: if the disk is well, it is the delta, and reading all again shows no more
                return 1.0
            return self._settings.backoff_max_seconds
        self.error = None
        self._last = self._clock.monotonic()
        self._advanced()
        return 1.0

    def _read_through(self) -> bool:
        try:
            self._checkpoint.distrust()
        except (SynclineError, OSError):
            return False  # an engine is loading it, say
        return True

    def _due(self, chain: Chain, boot: int | None, applied: int) -> bool:
        if boot is None:
            return True
        if boot >= applied:
            self._last = self._clock.monotonic()
            return False
        late = self._clock.monotonic() - self._last >= self._settings.advance_seconds
        return late or applied - boot >= self._settings.advance_every or self._anchor_between(chain, boot, applied)

    def _anchor_between(self, chain: Chain, boot: int, applied: int) -> bool:
        """Whether an anchor newer than the disk exists; asked for at most once an applied version and minute."""
        now = self._clock.monotonic()
        if self._tried is not None and (self._tried[0] == applied or now - self._tried[1] < 60):
            return False
        self._tried = applied, now
        try:
            return any(boot < version <= applied for version in chain.reader.anchors())
        except SynclineError:
            return False
