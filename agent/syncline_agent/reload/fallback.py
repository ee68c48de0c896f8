"""The arm while it takes the engine's layout, the engine's reload route where it refuses it. Never silently: the log says
so once, and each commit by the other way is counted as one.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from syncline.errors import LayoutRefused, SynclineError
from syncline.versions import Policy
from syncline_agent.engine import Applied, CommitResult, Engine, EngineDescription, StageRequest, StageResult


class ArmOrReload:
    """Two ways to one engine, as an `Engine`. Which one is taken is decided anew whenever it is described."""

    def __init__(self, arm: Engine, reload: Engine, *, log: FilteringBoundLogger) -> None:
        self._arm, self._reload = arm, reload
        self._now = arm
        self._log = log

    def describe(self) -> EngineDescription:
        try:
            said = self._arm.describe()
        except LayoutRefused as error:
            return self._described_by_route(str(error))
        except SynclineError:
            if self._now is self._reload:
                return self._reload.describe()  # an arm that refused and went away has nothing to give back
            raise
        if said.applied is None and said.error is not None and not said.opening:
            # It holds no version and says why: waiting would not help.
            return self._described_by_route(said.error)
        self._now = self._arm
        return said

    def _described_by_route(self, refusal: str) -> EngineDescription:
        if self._now is not self._reload:
            self._log.warning("the arm refuses this engine; serving it by its reload route", reason=refusal)
            self._now = self._reload
        return self._reload.describe()

    def stage(self, request: StageRequest) -> StageResult:
        return self._now.stage(request)

    def commit(self, target: int, policy: Policy) -> CommitResult:
        return self._now.commit(target, policy)

    def undo(self, version: int, policy: Policy = Policy.KEEP) -> CommitResult:
        return self._now.undo(version, policy)

    def discard(self) -> None:
        self._now.discard()

    def sweep(self) -> Applied:
        return self._now.sweep()
