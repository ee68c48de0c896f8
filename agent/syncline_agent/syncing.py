"""One sync: what the follower carries from planning to commit, and the request it makes of it. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from syncline.chain import Plan, StepKey
from syncline.wire.records import VersionManifest
from syncline_agent.engine import Applied, DeltaFiles, StageRequest
from syncline_agent.nodecheckpoint import Chain, chunks_of
from syncline_agent.nodefiles import NodeFiles
from syncline_agent.status import ApplyPath, Phase


@dataclass(slots=True)
class Sync:
    """On the way from what is applied to a target."""

    target: VersionManifest
    applied: Applied
    began: float
    """Monotonic."""
    way: Plan | None = None
    """None while undoing, and for an engine that reloads."""
    checkpoint: Path | None = None
    """A folder that holds the target whole, where the way does not start from what is applied."""
    reloads: bool = False
    """The engine takes the target whole, whatever is applied."""
    path: ApplyPath = ApplyPath.DELTA
    coalesced: bool = False
    """Head was read once more after the fetch; it is not read a third time, or a fast trainer would starve the
    engine."""
    fetched_bytes: int = 0
    changed: int = 0
    modified: float | None = None
    """When the target was committed, by the store's clock."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def spent(self, phase: Phase, seconds: float) -> None:
        """Note time that a phase took; a phase may come twice."""
        name = phase.value.lower()
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @property
    def step_keys(self) -> Sequence[StepKey]:
        return [step.key for step in self.way.steps] if self.way is not None else []

    def request(self, chain: Chain, files: NodeFiles) -> StageRequest:
        """What the engine is asked to stage."""
        table = files.table(chain.reader.table(self.target), self.target.tensors)
        deltas: Sequence[DeltaFiles] = ()
        if self.checkpoint is None and self.way is not None:
            deltas = [
                DeltaFiles(step.version, step.manifest.digest, [files.chunk(ref.blake3) for ref in step.chunks])
                for step in self.way.deltas
            ]
        return StageRequest(
            lineage=chain.lineage,
            view=chain.reader.keys.view,
            base=self.applied.version,
            base_digest=self.applied.digest,
            target=self.target.version,
            target_digest=self.target.digest,
            table=table,
            tiling=chain.run.tiling.tiling,
            deltas=deltas,
            checkpoint=self.checkpoint,
        )

    def lacking(self, files: NodeFiles) -> Sequence[StepKey]:
        """Steps of which a chunk is not on the node."""
        if self.way is None:
            return []
        return [s.key for s in self.way.deltas if not all(files.has(ref) for ref in s.chunks)]

    def recheck(self, files: NodeFiles) -> Sequence[str]:
        """Names of chunks that are not what they were when they were fetched."""
        return files.recheck(chunks_of(self.way)) if self.way is not None else []
