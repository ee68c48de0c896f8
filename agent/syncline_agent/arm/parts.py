"""Between the values of the engine contract and the parts of a message.

Paths travel relative to the node directory (the socket's own) where they lie in it, because agent and engine may see
that directory at different places.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from syncline.wire.digest import Digest
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.layout import Band
from syncline_agent.arm.messages import AppliedPart, BandPart, DeltaPart, Stage, TilingPart
from syncline_agent.arm.proof import NamedBand
from syncline_agent.engine import Applied, DeltaFiles, StageRequest


def applied_part(applied: Applied) -> AppliedPart:
    return AppliedPart(
        lineage=applied.lineage,
        view=applied.view,
        version=applied.version,
        digest=applied.digest,
        proven=applied.proven,
    )


def applied(part: AppliedPart) -> Applied:
    return Applied(part.lineage, part.view, part.version, part.digest, part.proven)


def band_parts(table: TensorTable, holds: Sequence[tuple[Band, Digest]] | None) -> list[BandPart] | None:
    """What a rank holds; None is the view whole."""
    if holds is None:
        return None
    return [
        BandPart(
            tensor=table.tensors[band.tensor].name, axis=band.axis, low=band.low, high=band.high, digest=digest.hex
        )
        for band, digest in holds
    ]


def named_bands(parts: Sequence[BandPart] | None) -> list[NamedBand] | None:
    """The same as the agent counts it."""
    return None if parts is None else [NamedBand(p.tensor, p.axis, p.low, p.high) for p in parts]


def hexes(digests: Sequence[Digest] | None) -> list[str] | None:
    """Digests of bands as they travel."""
    return None if digests is None else [digest.hex for digest in digests]


def stage_message(call_id: int, request: StageRequest, node_dir: Path) -> Stage:
    """A stage request as a message."""
    tiling = request.tiling
    return Stage(
        id=call_id,
        lineage=request.lineage,
        view=request.view,
        base=request.base,
        base_digest=request.base_digest,
        target=request.target,
        target_digest=request.target_digest,
        table=_told(request.table, node_dir),
        tiling=TilingPart(min_units=tiling.min_units, max_units=tiling.max_units, ways=tiling.ways),
        deltas=[
            DeltaPart(version=d.version, digest=d.digest, chunks=[_told(c, node_dir) for c in d.chunks])
            for d in request.deltas
        ],
        checkpoint=None if request.checkpoint is None else _told(request.checkpoint, node_dir),
    )


def from_stage_message(message: Stage, node_dir: Path) -> StageRequest:
    """The request that a message carries, with paths as this side sees them."""
    tiling = message.tiling
    return StageRequest(
        lineage=message.lineage,
        view=message.view,
        base=message.base,
        base_digest=message.base_digest,
        target=message.target,
        target_digest=message.target_digest,
        table=node_dir / message.table,
        tiling=Tiling(tiling.min_units, tiling.max_units, tiling.ways),
        deltas=[DeltaFiles(d.version, d.digest, [node_dir / c for c in d.chunks]) for d in message.deltas],
        checkpoint=None if message.checkpoint is None else node_dir / message.checkpoint,
    )


def _told(path: Path, node_dir: Path) -> str:
    absolute = path.absolute()
    return str(absolute.relative_to(node_dir.absolute()) if absolute.is_relative_to(node_dir.absolute()) else absolute)
