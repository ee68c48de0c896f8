"""An engine in the caller's own process: live weights with nobody generating from them.

For simulations, tests and tools that follow a run without serving it. It keeps the contract of `Engine`, adding nothing.
"""

from __future__ import annotations

from syncline import faults
from syncline.clock import Clock, SystemClock
from syncline.versions import Policy
from syncline_agent.arm.live import LiveWeights
from syncline_agent.engine import Applied, CommitResult, EngineDescription, StageRequest, StageResult


class InProcessEngine:
    """One rank of live weights as an `Engine`."""

    def __init__(
        self,
        live: LiveWeights,
        *,
        engine: str = "in-process",
        pool: str = "pool",
        pod: str = "pod",
        clock: Clock | None = None,
    ) -> None:
        self.live = live
        self._engine, self._pool, self._pod = engine, pool, pod
        self._clock = clock or SystemClock()

    def describe(self) -> EngineDescription:
        return EngineDescription(self._engine, self._pool, self._pod, 1, self.live.applied, self.live.error)

    def stage(self, request: StageRequest) -> StageResult:
        return self.live.stage(request)

    def commit(self, target: int, policy: Policy) -> CommitResult:
        self.live.ready(target)
        faults.reach("apply.ready")
        return self._switch(target)

    def undo(self, version: int, policy: Policy = Policy.KEEP) -> CommitResult:
        self.live.ready_undo(version)
        return self._switch(version)

    def discard(self) -> None:
        self.live.discard()

    def sweep(self) -> Applied:
        return self.live.sweep()

    def _switch(self, version: int) -> CommitResult:
        started = self._clock.monotonic()
        self.live.scatter(version)
        pause_seconds = self._clock.monotonic() - started
        applied = self.live.confirm(version)
        return CommitResult(applied.version, applied.digest, pause_seconds)
