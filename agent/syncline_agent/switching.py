"""The end of a sync: what was brought is staged, committed or undone to, and said to have been.

Called by the follower, a phase a call. A version is committed only when the engine has predicted its digest, and what
it then says it serves is compared once more. Decides nothing about which version that is.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from syncline import faults
from syncline.clock import Clock
from syncline.errors import EngineUncertain, LayoutRefused, SynclineError
from syncline.versions import Policy
from syncline_agent.engine import CommitResult, Engine
from syncline_agent.nodecheckpoint import Chain
from syncline_agent.nodefiles import NodeFiles
from syncline_agent.reporting import Reporter
from syncline_agent.status import ApplyPath, LastSync
from syncline_agent.syncing import Sync


class Switch:
    """One engine's way from what it serves to what was brought."""

    def __init__(
        self, engine: Engine, files: NodeFiles, report: Reporter, *, clock: Clock, log: FilteringBoundLogger
    ) -> None:
        self._engine = engine
        self._files = files
        self._report = report
        self._clock = clock
        self._log = log

    def stage(self, chain: Chain, sync: Sync) -> None:
        """Everything that happens while the old version serves."""
        staged = self._engine.stage(sync.request(chain, self._files))
        sync.changed = staged.changed
        self._report.staged(staged.staged_bytes)
        faults.reach("apply.staged")

    def commit(self, sync: Sync, policy: Policy) -> CommitResult | None:
        """Serve the target. None when it should have been undone to and the engine keeps that commit no longer: nothing was
        done, and the target is to come from a checkpoint."""
        if sync.path is ApplyPath.UNDO:
            try:
                result = self._engine.undo(sync.target.version, policy)
            except LayoutRefused:
                sync.path = ApplyPath.CHECKPOINT
                return None
            self._engine.sweep()
        else:
            result = self._engine.commit(sync.target.version, policy)
        faults.reach("apply.committed")
        if result.digest != sync.target.digest:
            raise EngineUncertain(
                f"version {result.version} was committed with digest {result.digest}, not {sync.target.digest}"
            )
        return result

    def discard(self) -> None:
        """Drop what is staged; an engine that does not answer drops it with its next stage."""
        try:
            self._engine.discard()
        except SynclineError as error:
            self._log.info("could not discard what is staged", error=str(error))

    def committed(self, chain: Chain, sync: Sync, result: CommitResult, *, behind_seconds: float | None) -> None:
        """Say what the whole sync took."""
        last = LastSync(
            version=result.version,
            came_from=sync.applied.version,
            seconds=dict(sync.seconds),
            total_seconds=self._clock.monotonic() - sync.began,
            behind_seconds=behind_seconds,
            pause_seconds=result.pause_seconds,
            bytes=sync.fetched_bytes,
            changed=sync.changed,
        )
        self._report.committed(last, sync.path)
        self._log.info(
            "committed",
            run=chain.reader.keys.run,
            version=last.version,
            base=last.came_from,
            path=sync.path.value,
            pause_seconds=round(last.pause_seconds, 6),
            total_seconds=round(last.total_seconds, 6),
        )
