"""From a stage request to absolute new bits: decode deltas against live memory, or diff a checkpoint with it.

Only reads: live memory, chunk files (mapped, never copied whole) and checkpoint files. What it returns refers to none
of them. Digests before and after come with it, so that the caller can refuse before anything is written.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from syncline.checkpoint import Checkpoint
from syncline.delta import Delta
from syncline.errors import DigestMismatch, EngineUnavailable, LayoutRefused
from syncline.wire.digest import Digest, total
from syncline.wire.tensors import TensorTable
from syncline_agent.arm.layout import Band, Layout
from syncline_agent.arm.memory import Changes, Memory
from syncline_agent.arm.sweeping import band_digests
from syncline_agent.arm.turns import short_turns, uncollected
from syncline_agent.engine import DeltaFiles, StageRequest

_READERS = 4
"""Threads that read a delta's chunks, in compiled code nearly all of the time."""
Digests = Sequence[Sequence[Digest]]
"""Of the bands of each tensor, in the layout's order."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Changes that stand ready, with the digests of what is held on both sides."""

    changes: Changes
    before: Digests
    after: Digests


def stage(request: StageRequest, memory: Memory, digests: Digests, executor: Executor | None) -> Staged:
    """The changes of a request that was checked. DigestMismatch, before anything is written, when they lead elsewhere
    than to its target; a rank that holds only parts cannot tell, and leaves that to who sums them up."""
    with short_turns(), uncollected():
        return _stage(request, memory, digests, executor)


def _stage(request: StageRequest, memory: Memory, digests: Digests, executor: Executor | None) -> Staged:
    if request.checkpoint is not None:
        changes, before = stage_checkpoint(request.checkpoint, request, memory, executor)
    else:
        changes, before = memory.stage(_read(request, memory), executor=executor), digests
    after = _after(memory, before, changes)
    predicted = sum_of(after).hex
    if memory.layout.is_whole and predicted != request.target_digest:
        raise DigestMismatch(
            f"the changes lead to digest {predicted}, version {request.target} has {request.target_digest};"
            " nothing was written"
        )
    return Staged(changes, before, after)


def _read(request: StageRequest, memory: Memory) -> list[Delta]:
    def read(readers: Executor | None) -> list[Delta]:
        table, tiling = memory.table, request.tiling
        return [Delta.parse(table, tiling, _chunks(files), executor=readers) for files in request.deltas]

    if any(len(files.chunks) > 1 for files in request.deltas):
        try:
            with ThreadPoolExecutor(_READERS, "syncline-read") as readers:
                return read(readers)
        except RuntimeError:  # no room for another thread: it goes without, or says what it has no room for
            pass
    return read(None)


def stage_checkpoint(
    folder: Path, request: StageRequest, memory: Memory, executor: Executor | None
) -> tuple[Changes, Digests]:
    """Diff a whole checkpoint of the target with live memory, whatever that holds, and the digests of that."""
    checkpoint = Checkpoint.open(folder)
    with checkpoint.reading():
        _check(checkpoint, memory.table, request)
        changes = memory.stage_checkpoint(checkpoint, executor=executor)
    return changes, read_digests(memory)


def read_digests(memory: Memory) -> Digests:
    """Of what memory holds now. Whoever writes must not meanwhile."""
    return [band_digests(memory, tensor) for tensor in range(len(memory.table.tensors))]


def sum_of(digests: Digests) -> Digest:
    """What all bands add to the view's digest."""
    return total(digest for of_tensor in digests for digest in of_tensor)


def by_band(layout: Layout, digests: Digests) -> list[tuple[Band, Digest]]:
    """Each held band with its digest."""
    return [
        (band, digest)
        for bands, of_tensor in zip(layout.bands, digests, strict=True)
        for band, digest in zip(bands, of_tensor, strict=True)
    ]


def _after(memory: Memory, before: Digests, changes: Changes) -> Digests:
    after = [list(of_tensor) for of_tensor in before]
    for tensor, change in changes.sums.items():
        if len(after[tensor]) == 1:  # as of most: where its parts lie need not be looked at
            after[tensor][0] += change
            continue
        for part, change in changes.digests[tensor].items():
            after[tensor][memory.parts(tensor)[part].band] += change
    return after


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
