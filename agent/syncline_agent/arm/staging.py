"""From a stage request to absolute new bits: decode deltas against live memory, or diff a checkpoint with it.

Only reads: live memory, chunk files (mapped, never copied whole) and checkpoint files. What it returns refers to none
of them. Digests before and after come with it, so that the caller can refuse before anything is written.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from syncline.checkpoint import Checkpoint
from syncline.delta import Delta, StagedTensor, stage_tensor, stage_whole
from syncline.errors import DigestMismatch, EngineUnavailable, LayoutRefused
from syncline.wire.digest import Digest, total
from syncline.wire.tensors import TensorTable
from syncline_agent.arm.memory import UnitMemory
from syncline_agent.arm.sweeping import units_digest
from syncline_agent.engine import DeltaFiles, StageRequest


@dataclass(frozen=True, slots=True)
class Staged:
    """Changes that stand ready, tensor by tensor, with the digest of every tensor of the table on both sides."""

    tensors: list[StagedTensor]
    digests_before: Sequence[Digest]
    digests_after: Sequence[Digest]

    @property
    def changed(self) -> int:
        return sum(t.changed for t in self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)


def stage(
    table: TensorTable, request: StageRequest, memory: UnitMemory, digests: Sequence[Digest], executor: Executor | None
) -> Staged:
    """The changes of a request that was checked. DigestMismatch, before anything is written, when they lead elsewhere
    than to its target."""
    if request.checkpoint is not None:
        staged = stage_checkpoint(table, request, memory, executor)
    else:
        staged = stage_deltas(table, request, memory, digests, executor)
    predicted = total(staged.digests_after).hex
    if predicted != request.target_digest:
        raise DigestMismatch(
            f"the changes lead to digest {predicted}, version {request.target} has {request.target_digest};"
            " nothing was written"
        )
    return staged


def stage_deltas(
    table: TensorTable, request: StageRequest, memory: UnitMemory, digests: Sequence[Digest], executor: Executor | None
) -> Staged:
    """Decode the request's deltas in a row against live memory, frame by frame."""
    staged: list[StagedTensor] = []
    after = list(digests)
    deltas = [Delta.parse(table, request.tiling, _chunks(files)) for files in request.deltas]
    for tensor in sorted({t for parsed in deltas for t in parsed.tensors}):
        change = stage_tensor(table, request.tiling, tensor, memory.units(tensor), deltas, executor=executor)
        if change.changed:
            staged.append(change)
            after[tensor] += change.digest_change
    return Staged(staged, list(digests), after)


def stage_checkpoint(
    table: TensorTable, request: StageRequest, memory: UnitMemory, executor: Executor | None
) -> Staged:
    """Diff a whole checkpoint of the target with live memory, whatever that holds."""
    assert request.checkpoint is not None
    checkpoint = Checkpoint.open(request.checkpoint)
    staged: list[StagedTensor] = []
    before: list[Digest] = []
    after: list[Digest] = []
    with checkpoint.reading():
        _check(checkpoint, table, request)
        for tensor, spec in enumerate(table.tensors):
            live, new = memory.units(tensor), checkpoint.units(spec.name)
            change = stage_whole(spec, request.tiling, tensor, live, new, executor=executor)
            before.append(units_digest(spec, live))
            after.append(before[-1] + change.digest_change)
            if change.changed:
                staged.append(change)
    return Staged(staged, before, after)


def _check(checkpoint: Checkpoint, table: TensorTable, request: StageRequest) -> None:
    marker = checkpoint.marker
    assert marker is not None  # `reading` refuses a folder without one
    found = (marker.lineage, marker.view, marker.version, marker.digest)
    if found != (request.lineage, request.view, request.target, request.target_digest):
        raise DigestMismatch(f"{request.checkpoint} holds {found}, version {request.target} was asked for")
    if checkpoint.table.encode() != table.encode():
        raise LayoutRefused(f"{request.checkpoint} holds other tensors than the engine; restart the engine from it")


def _chunks(files: DeltaFiles) -> Iterator[tuple[str, memoryview]]:
    for path in files.chunks:
        yield str(path), _mapped(path)


def _mapped(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # unmapped with its last view
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise EngineUnavailable(f"{path}: {error}; fetch the chunk again") from error
