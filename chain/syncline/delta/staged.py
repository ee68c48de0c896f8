"""Staged changes: absolute new bits at frame-relative positions, with the old bits.

Absolute, so writing them twice is writing them once; old bits, so undo and the digest's change come for free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.base import check_moved
from syncline.delta.encode import check_views
from syncline.delta.parallel import in_order
from syncline.delta.parsed import CodedFrame, Delta
from syncline.errors import FrameCorrupt
from syncline.kernels import frames as kernels
from syncline.kernels.digest import change_digest
from syncline.wire.digest import Digest, seeds, total
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Frame, FrameGrid, Tiling

Units = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class StagedFrame:
    """Changes of one frame."""

    frame: int
    """Index in the tensor's grid."""
    positions: NDArray[np.uint32]
    """Ascending, frame-relative."""
    new: Units
    old: Units

    @property
    def nbytes(self) -> int:
        return self.positions.nbytes + self.new.nbytes + self.old.nbytes


@dataclass(frozen=True, slots=True)
class StagedTensor:
    """Changes of one tensor."""

    tensor: int
    frames: Sequence[StagedFrame]
    changed: int
    digest_change: Digest
    """What scattering them adds to the tensor's digest."""

    @property
    def nbytes(self) -> int:
        """Host memory of the staged arrays."""
        return sum(f.nbytes for f in self.frames)


def stage_tensor(
    table: TensorTable,
    tiling: Tiling,
    tensor: int,
    live: Units,
    deltas: Sequence[Delta],
    *,
    executor: Executor | None = None,
) -> StagedTensor:
    """Decode a row of deltas against live weights, frame by frame; `live` (flat unit view) is only read.

    Each frame is copied to scratch, every delta is applied there, and what then differs from the live frame is staged: k versions cost
    one commit. FrameCorrupt, naming tensor and frame, when a payload does not decode against these weights.
    """
    spec = table.tensors[tensor]
    check_views(spec, live)
    grid = spec.grid(tiling)
    seed = seeds(spec.name)
    layers = [delta.frames(tensor) for delta in deltas]

    def stage(index: int) -> tuple[StagedFrame, Digest] | None:
        row = [layer[index] for layer in layers if index in layer]
        try:
            staged = _decode(index, grid.frame(index), live, row)
        except FrameCorrupt as error:
            raise FrameCorrupt(
                f"frame {index} of {spec.name}: {error}; fetch the chunk again, or check the base"
            ) from error
        return _with_digest(grid, staged, seed)

    return _collect(tensor, in_order(executor, stage, sorted({index for layer in layers for index in layer})))


def stage_whole(
    spec: TensorSpec, tiling: Tiling, tensor: int, live: Units, new: Units, *, executor: Executor | None = None
) -> StagedTensor:
    """Stage what differs between live weights and whole new ones (from a checkpoint); both are only read."""
    check_views(spec, live, new)
    grid = spec.grid(tiling)
    seed = seeds(spec.name)

    def stage(index: int) -> tuple[StagedFrame, Digest] | None:
        found = kernels.difference(live, new, grid.frame(index))
        return _with_digest(grid, StagedFrame(index, found.positions, found.new, found.old), seed)

    return _collect(tensor, in_order(executor, stage, range(grid.count)))


def scatter(
    spec: TensorSpec,
    tiling: Tiling,
    live: Units,
    staged: StagedTensor,
    *,
    undo: bool = False,
    executor: Executor | None = None,
) -> None:
    """Write the staged bits (or, to undo, the old ones) into live weights."""
    grid = spec.grid(tiling)

    def write(part: StagedFrame) -> None:
        kernels.scatter(live, grid.frame(part.frame), part.positions, part.old if undo else part.new)

    for _ in in_order(executor, write, staged.frames):
        pass  # each turn waits for a frame, and raises what its thread raised


def read_back(
    spec: TensorSpec,
    tiling: Tiling,
    live: Units,
    staged: StagedTensor,
    *,
    undo: bool = False,
    executor: Executor | None = None,
) -> bool:
    """Whether every written position holds what it should."""
    grid = spec.grid(tiling)

    def look(part: StagedFrame) -> bool:
        return kernels.matches(live, grid.frame(part.frame), part.positions, part.old if undo else part.new)

    return all(in_order(executor, look, staged.frames))


def _decode(index: int, frame: Frame, live: Units, row: Sequence[CodedFrame]) -> StagedFrame:
    """One frame of each delta in a row, against the live frame."""
    if len(row) == 1:
        only = row[0]
        # What tells its places needs no scratch: the work is one touch a change, not a copy and a comparison of the frame.
        placed = only.codec.place(
            memoryview(only.frame.payload),
            units=frame.units,
            dtype=live.dtype,
            changed=only.frame.changed,
            base=lambda: kernels.view(live, frame),
        )
        if placed is not None:
            old = kernels.take(live, frame, placed.positions)
            check_moved(old, placed.units)
            return StagedFrame(index, placed.positions, placed.units, old)
    before = kernels.view(live, frame)
    scratch = before.copy()
    for coded in row:
        coded.codec.decode(memoryview(coded.frame.payload), scratch, changed=coded.frame.changed)
    found = kernels.contiguous_difference(before, scratch)
    return StagedFrame(index, found.positions, found.new, found.old)


def _with_digest(grid: FrameGrid, staged: StagedFrame, seed: tuple[int, int]) -> tuple[StagedFrame, Digest] | None:
    if staged.positions.size == 0:
        return None
    return staged, change_digest(grid.frame(staged.frame), staged.positions, staged.old, staged.new, seed)


def _collect(tensor: int, results: Iterable[tuple[StagedFrame, Digest] | None]) -> StagedTensor:
    found = [r for r in results if r is not None]
    frames = [frame for frame, _ in found]
    return StagedTensor(
        tensor, frames, sum(int(f.positions.size) for f in frames), total(change for _, change in found)
    )
