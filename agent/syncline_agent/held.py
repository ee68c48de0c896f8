"""What the engine says that it holds, and what a commit that failed half-way started from.

The follower starts every turn from here, never from what it remembers of its own doing. Only asks; changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from syncline.errors import LineageChanged, SynclineError
from syncline_agent.engine import Applied, Engine, EngineDescription
from syncline_agent.nodecheckpoint import Chain
from syncline_agent.policy import Target


class Held:
    """One engine's claims, as it made them last."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.described: EngineDescription | None = None
        """None while nobody can be asked."""
        self.silence = ""
        """Why nobody could be."""
        self.came_from: int | None = None
        """Where a commit that failed half-way started from."""
        self._lineages: dict[str, str] = {}
        """Of each run that was followed, as its store said last. Known on while the store cannot be asked."""

    @property
    def applied(self) -> Applied | None:
        return self.described.applied if self.described is not None else None

    @property
    def unprovable(self) -> str | None:
        return self.described.unprovable if self.described is not None else None

    def look(self) -> EngineDescription | None:
        """Ask now."""
        try:
            self.described = self._engine.describe()
        except SynclineError as error:
            self.silence = str(error)
            self.described = None  # what it came from is kept: an engine that loads afresh refuses to be undone to it
        return self.described

    @property
    def not_served(self) -> str | None:
        """Why what is held is not in service although it was followed."""
        return self.unprovable and f"{self.unprovable}; --serve-unproven yes serves it all the same (docs/engines.md)"

    def followed(self, chain: Chain, target: Target) -> None:
        """The store said which training the run is."""
        self._lineages[target.run] = chain.lineage

    def of_another(self, target: Target | None) -> bool:
        """Whether what is applied is known to be of another training, or another view, than the one to follow."""
        applied = self.applied
        if applied is None or target is None:
            return False
        lineage = self._lineages.get(target.run)
        if lineage is None:  # the run that the target names now has not been seen yet, those before it have
            return applied.view != target.view or applied.lineage in self._lineages.values()
        return (applied.lineage, applied.view) != (lineage, target.view)

    def check_run(self, chain: Chain, target: Target, checkpoint: Path) -> None:
        """LineageChanged when what is applied is of another training than the one to follow."""
        applied = self.applied
        if applied is not None and self.of_another(target):
            raise LineageChanged(
                f"the engine serves view {applied.view} of lineage {applied.lineage}, run {target.run} is view "
                f"{target.view} of lineage {chain.lineage}: the run name was reused, or the target names another run; "
                f"start the engine on this node's checkpoint, {checkpoint}; if the run name was reused, give agent and "
                "engine a new --node-dir"
            )
