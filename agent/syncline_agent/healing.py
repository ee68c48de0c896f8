"""Making a replica whole again whose bits are in doubt: sweep, else undo, else a whole checkpoint; and then a sweep
that matches.

Called by the follower when an engine failed after its first write, or says that what it serves is not proven. The
replica is out of service meanwhile. The node's own checkpoint is enough, so an outage of the store does not keep a
replica broken; the follower goes on to the target from there by deltas.
"""

from __future__ import annotations

from pathlib import Path

from structlog.typing import FilteringBoundLogger

from syncline.errors import DigestMismatch, EngineUncertain, FormatInvalid, LayoutRefused
from syncline.versions import Policy
from syncline_agent.engine import Applied, Engine, StageRequest
from syncline_agent.nodecheckpoint import Chain, NodeCheckpoint
from syncline_agent.nodefiles import NodeFiles

DOUBT = (DigestMismatch, EngineUncertain, LayoutRefused)
"""This way did not lead to proven bits; another may."""


class Healer:
    """One attempt a call; what it cannot do now it raises."""

    def __init__(self, engine: Engine, files: NodeFiles, checkpoint: NodeCheckpoint, log: FilteringBoundLogger) -> None:
        self._engine = engine
        self._files = files
        self._checkpoint = checkpoint
        self._log = log
        self._in_vain: tuple[object, LayoutRefused] | None = None
        """What was found and known when a whole checkpoint was refused for its layout, and how."""

    def heal(self, chain: Chain, *, came_from: int | None, fallback: int | None, policy: Policy) -> Applied:
        """Bring the engine to some proven version of the chain and return it.

        `came_from` is the version that a failed commit started from, `fallback` one to materialize when the disk is
        of no use. EngineUnavailable when the engine went away, DigestMismatch or EngineUncertain when nothing helped
        yet; LayoutRefused when no checkpoint fits the engine, and again, without another try, until the engine says
        something else or another version is there to be tried.
        """
        if self._in_vain is not None and self._in_vain[0] == self._known(chain, fallback):
            raise self._in_vain[1]
        self._in_vain = None
        try:
            healed = self._healed(chain, came_from=came_from, fallback=fallback, policy=policy)
        except LayoutRefused as error:
            self._in_vain = self._known(chain, fallback), error
            raise
        event = "healed" if healed.proven else "loaded whole, not proven"
        self._log.info(event, run=chain.run.run, version=healed.version)
        return healed

    def _known(self, chain: Chain, fallback: int | None) -> object:
        return self._engine.describe(), self._checkpoint.version(chain.lineage, chain.reader.keys.view), fallback

    def _healed(self, chain: Chain, *, came_from: int | None, fallback: int | None, policy: Policy) -> Applied:
        try:
            return self._engine.sweep()
        except DOUBT as error:
            self._log.warning("found bits in doubt", error=str(error))
        if came_from is not None:
            try:
                self._engine.undo(came_from)
                return self._engine.sweep()
            except DOUBT as error:
                self._log.warning("could not undo", version=came_from, error=str(error))
        self._checkpoint.examine()
        on_disk = self._checkpoint.version(chain.lineage, chain.reader.keys.view)
        if on_disk is not None:
            try:
                return self._whole(chain, self._checkpoint.path, policy)
            except (*DOUBT, FormatInvalid) as error:
                self._log.warning("could not heal from the node checkpoint", error=str(error))
                if isinstance(error, LayoutRefused):
                    if fallback == on_disk:
                        raise  # the same tensors once more would be refused once more
                else:
                    self._checkpoint.distrust()
                if fallback is None:
                    raise
        if fallback is None:
            raise EngineUncertain("the engine's bits are in doubt and no version is known to restore; waiting for head")
        try:
            return self._whole(chain, self._checkpoint.second(chain, fallback), policy)
        finally:
            self._checkpoint.drop_second()

    def _whole(self, chain: Chain, folder: Path, policy: Policy) -> Applied:
        held = self._checkpoint.contents(folder)
        request = StageRequest(
            lineage=held.marker.lineage,
            view=held.marker.view,
            base=held.marker.version,
            base_digest=held.marker.digest,
            target=held.marker.version,
            target_digest=held.marker.digest,
            table=self._files.table(held.table, held.table.ref()),
            tiling=held.marker.tiling.tiling,
            checkpoint=folder,
        )
        self._engine.stage(request)
        self._engine.commit(held.marker.version, policy)
        return self._engine.sweep()
