"""Staged changes: absolute new bits at frame-relative positions, with the old bits.

Absolute, so writing them twice is writing them once; old bits, so undo and the digest's change come for free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from syncline.wire.tiling import Frame, Tiling

Units = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the units of a frame lie."""

    flat: Units
    """A flat row of units: the tensor, or a store in which it lies among others."""
    frame: Frame
    """The frame's geometry there. Its rows may be others than the tensor's: positions count them in their order."""


Live = Units | Callable[[int], Place | None]
"""A tensor's live weights: its flat units, or where each frame (by index in its grid) lies; None for one that is not held."""


@dataclass(frozen=True, slots=True)
class StagedFrame:
    """Changes of one frame."""

    frame: int
    """Index in the tensor's grid."""
    positions: NDArray[np.uint32]
    """Ascending, frame-relative."""
    new: Units
    old: Units
    digest_change: Digest
    """What scattering them adds to the tensor's digest."""

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
    live: Live,
    deltas: Sequence[Delta],
    *,
    executor: Executor | None = None,
) -> StagedTensor:
    """Decode a row of deltas against live weights, frame by frame; `live` is only read, and a frame that it does not hold is left out.

    Each frame is copied to scratch, every delta is applied there, and what then differs from the live frame is staged: k versions cost
    one commit. FrameCorrupt, naming tensor and frame, when a payload does not decode against these weights.
    """
    spec = table.tensors[tensor]
    grid, place = spec.grid(tiling), _placing(spec, tiling, live)
    seed = seeds(spec.name)
    layers = [delta.frames(tensor) for delta in deltas]

    def stage(index: int) -> StagedFrame | None:
        at = place(index)
        if at is None:
            return None
        row = [layer[index] for layer in layers if index in layer]
        try:
            positions, new, old = _decode(at, row)
        except FrameCorrupt as error:
            raise FrameCorrupt(
                f"frame {index} of {spec.name}: {error}; fetch the chunk again, or check the base"
            ) from error
        return _staged(index, grid.frame(index), positions, new, old, seed)

    return _collect(tensor, in_order(executor, stage, sorted({index for layer in layers for index in layer})))


def stage_whole(
    spec: TensorSpec, tiling: Tiling, tensor: int, live: Live, new: Units, *, executor: Executor | None = None
) -> StagedTensor:
    """Stage what differs between live weights and whole new ones (from a checkpoint); both are only read."""
    check_views(spec, new)
    grid, place = spec.grid(tiling), _placing(spec, tiling, live)
    seed = seeds(spec.name)

    def stage(index: int) -> StagedFrame | None:
        frame, at = grid.frame(index), place(index)
        if at is None:
            return None
        if at.frame == frame:
            found = kernels.difference(at.flat, new, frame)
        else:
            found = kernels.contiguous_difference(kernels.view(at.flat, at.frame), kernels.view(new, frame))
        return _staged(index, frame, found.positions, found.new, found.old, seed)

    return _collect(tensor, in_order(executor, stage, range(grid.count)))


def scatter(
    spec: TensorSpec,
    tiling: Tiling,
    live: Live,
    staged: StagedTensor,
    *,
    undo: bool = False,
    executor: Executor | None = None,
) -> None:
    """Write the staged bits (or, to undo, the old ones) into live weights."""
    place = _placing(spec, tiling, live)

    def write(part: StagedFrame) -> None:
        at = _held(place(part.frame), part)
        kernels.scatter(at.flat, at.frame, part.positions, part.old if undo else part.new)

    for _ in in_order(executor, write, staged.frames):
        pass  # each turn waits for a frame, and raises what its thread raised


def read_back(
    spec: TensorSpec,
    tiling: Tiling,
    live: Live,
    staged: StagedTensor,
    *,
    undo: bool = False,
    executor: Executor | None = None,
) -> bool:
    """Whether every written position holds what it should."""
    place = _placing(spec, tiling, live)

    def look(part: StagedFrame) -> bool:
        at = _held(place(part.frame), part)
        return kernels.matches(at.flat, at.frame, part.positions, part.old if undo else part.new)

    return all(in_order(executor, look, staged.frames))


def _placing(spec: TensorSpec, tiling: Tiling, live: Live) -> Callable[[int], Place | None]:
    if callable(live):
        return live
    check_views(spec, live)
    grid = spec.grid(tiling)
    return lambda index: Place(live, grid.frame(index))


def _held(at: Place | None, part: StagedFrame) -> Place:
    if at is None:
        raise IndexError(f"frame {part.frame} was staged and is not held")
    return at


def _decode(at: Place, row: Sequence[CodedFrame]) -> tuple[NDArray[np.uint32], Units, Units]:
    """One frame of each delta in a row, against the live frame: where, the new bits and the old."""
    if len(row) == 1:
        only = row[0]
        # What tells its places needs no scratch: the work is one touch a change, not a copy and a comparison of the frame.
        placed = only.codec.place(
            memoryview(only.frame.payload),
            units=at.frame.units,
            dtype=at.flat.dtype,
            changed=only.frame.changed,
            base=lambda: kernels.view(at.flat, at.frame),
        )
        if placed is not None and placed.base is not None:
            return placed.positions, placed.units, placed.base
        if placed is not None:
            old = kernels.take(at.flat, at.frame, placed.positions)
            check_moved(old, placed.units)
            return placed.positions, placed.units, old
    before = kernels.view(at.flat, at.frame)
    scratch = before.copy()
    for coded in row:
        coded.codec.decode(memoryview(coded.frame.payload), scratch, changed=coded.frame.changed)
    found = kernels.contiguous_difference(before, scratch)
    return found.positions, found.new, found.old


def _staged(
    index: int, frame: Frame, positions: NDArray[np.uint32], new: Units, old: Units, seed: tuple[int, int]
) -> StagedFrame | None:
    if positions.size == 0:
        return None
    return StagedFrame(index, positions, new, old, change_digest(frame, positions, old, new, seed))


def _collect(tensor: int, results: Iterable[StagedFrame | None]) -> StagedTensor:
    frames = [frame for frame in results if frame is not None]
    return StagedTensor(
        tensor, frames, sum(int(f.positions.size) for f in frames), total(f.digest_change for f in frames)
    )
