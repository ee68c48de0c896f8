"""Whether what is asked to be staged fits what is held: refused by name before anything is decoded. Reads the request's
table; knows no memory."""

from __future__ import annotations

from syncline.errors import DigestMismatch, EngineUnavailable, LayoutRefused
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.engine import Applied, StageRequest


def check_asked(
    request: StageRequest, applied: Applied | None, *, error: str | None, table: TensorTable, tiling: Tiling | None
) -> Applied:
    """What the request starts from, which is `applied`. EngineUnavailable while nothing is held, LayoutRefused for another run,
    tiling or table, DigestMismatch for deltas on other bits than those that are live, or on bits in doubt (`error`)."""
    if applied is None:
        raise EngineUnavailable("the engine holds no version yet; load a checkpoint first")
    if (request.lineage, request.view) != (applied.lineage, applied.view):
        raise LayoutRefused(
            f"the engine follows view {applied.view} of lineage {applied.lineage}, not {request.view} of"
            f" {request.lineage}; restart it from a checkpoint of that run"
        )
    if tiling is not None and request.tiling != tiling:
        raise LayoutRefused(f"the run's tiling is {tiling}, the request says {request.tiling}")
    theirs = TensorTable.parse(request.table.read_bytes(), what=str(request.table))
    if theirs.encode() != table.encode():
        there, here = ({t.name: t for t in x.tensors} for x in (theirs, table))
        other = sorted(n for n in there | here if there.get(n) != here.get(n))
        raise LayoutRefused(f"version {request.target} has other tensors than the engine, first {other[0]}")
    if request.checkpoint is None:
        if error is not None:
            raise DigestMismatch(f"live memory is in doubt ({error}); stage from a checkpoint, or sweep")
        if (request.base, request.base_digest) != (applied.version, applied.digest):
            raise DigestMismatch(
                f"the deltas start from version {request.base} with digest {request.base_digest}, live is"
                f" {applied.version} with {applied.digest}"
            )
    return applied
