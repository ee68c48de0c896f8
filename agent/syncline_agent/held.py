"""What the engine says that it holds, and what a commit that failed half-way started from.

The follower starts every turn from here, never from what it remembers of its own doing. Only asks; changes nothing.
"""

from __future__ import annotations

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

    def check_run(self, chain: Chain, target: Target) -> None:
        """LineageChanged when what is applied is of another training than the one to follow."""
        applied = self.applied
        if applied is not None and (applied.lineage, applied.view) != (chain.lineage, target.view):
            raise LineageChanged(
                f"the engine serves view {applied.view} of lineage {applied.lineage}, run {target.run} is view "
                f"{target.view} of lineage {chain.lineage}: the run name was reused, or the target names another run; "
                "restart the engine on a new node directory"
            )
