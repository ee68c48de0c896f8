"""How a tensor is cut into frames: a pure function of its shape in units, its split axis and the run's tiling.

A frame is a band along the split axis. Seen as [outer, axis, inner] every frame is `runs` rows of `length` consecutive units,
`stride` units apart, the first at `base`: rows of a matrix are one long run, a band of columns is many short ones. Positions inside a
frame count those units row by row. Cuts fall so that 2-, 4-, 8- and 16-way slices along the axis are unions of frames where the size
allows, so a tensor-parallel rank decodes whole frames of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from syncline.errors import FormatInvalid
from syncline.wire.limits import DIMENSION_MAX, FRAME_MAX_UNITS, FRAME_MIN_UNITS, FRAME_WAYS

_GRIDS = 64
"""Of tensors of different shapes, whose columns are remembered: a model has few."""
_PARTS = 1 << 31
"""From so many on a product of two numbers below may be no int64."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Fixed for a run (run.json). `min_units` <= frame <= `max_units` where the tensor's size and shape allow."""

    min_units: int = FRAME_MIN_UNITS
    max_units: int = FRAME_MAX_UNITS
    ways: int = FRAME_WAYS


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a frame's units lie in its tensor, in units."""

    base: int
    runs: int
    length: int
    stride: int

    @property
    def units(self) -> int:
        return self.runs * self.length

    def offset(self, position: int) -> int:
        """The tensor's unit at frame-relative `position`."""
        return self.base + position // self.length * self.stride + position % self.length


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """All frames of a grid, field by field: an entry a frame, for those who look at none by itself. Not to be written."""

    bases: NDArray[np.int64]
    runs: NDArray[np.int64]
    lengths: NDArray[np.int64]
    strides: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FrameGrid:
    """All frames of a tensor."""

    outer: int
    axis: int
    inner: int
    bands: int
    """Cuts along the axis."""
    pieces: int
    """Cuts along `inner`; more than one only when a single index of the axis exceeds the largest frame."""

    @property
    def count(self) -> int:
        return self.bands * self.pieces

    @property
    def units(self) -> int:
        return self.outer * self.axis * self.inner

    @property
    def least_units(self) -> int:
        """No frame has fewer."""
        return self.outer * (self.axis // max(self.bands, 1)) * (self.inner // self.pieces)

    def frame(self, index: int) -> Frame:
        """The frame at `index`, counted along the axis, then along inner pieces. FormatInvalid when out of range."""
        if not 0 <= index < self.count:
            raise FormatInvalid(f"frame {index} is outside the tensor's {self.count}")
        band, piece = divmod(index, self.pieces)
        low, high = band * self.axis // self.bands, (band + 1) * self.axis // self.bands
        first, last = piece * self.inner // self.pieces, (piece + 1) * self.inner // self.pieces
        length = (high - low) * self.inner if self.pieces == 1 else last - first
        return Frame(low * self.inner + first, self.outer, length, self.axis * self.inner)

    def at(self, indices: NDArray[np.int64]) -> FrameColumns:
        """What `frame` gives for each of these, all of the grid: no more memory than they take."""
        band, piece = np.divmod(indices, self.pieces)
        low, high = (_cut(self.axis, self.bands, at) for at in (band, band + 1))
        first, last = (_cut(self.inner, self.pieces, at) for at in (piece, piece + 1))
        lengths = (high - low) * self.inner if self.pieces == 1 else last - first
        stride = self.axis * self.inner
        return FrameColumns(low * self.inner + first, np.full_like(low, self.outer), lengths, np.full_like(low, stride))

    def columns(self) -> FrameColumns:
        """What `frame` gives for every index."""
        return _columns(self)


@lru_cache(maxsize=_GRIDS)
def _columns(grid: FrameGrid) -> FrameColumns:
    columns = grid.at(np.arange(grid.count, dtype=np.int64))
    for column in (columns.bases, columns.runs, columns.lengths, columns.strides):
        column.flags.writeable = False
    return columns


def _cut(size: int, parts: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """at * size // parts, which must fit: not so the product of a large tensor's size, nor one of more parts than any real one has."""
    whole, rest = divmod(size, max(parts, 1))
    of_rest = at * rest // max(parts, 1) if parts < _PARTS else at.astype(object) * rest // parts
    return at * whole + of_rest.astype(np.int64)


def grid(shape_units: Sequence[int], axis: int, tiling: Tiling) -> FrameGrid:
    """Cut a tensor of `shape_units` (at least one dimension) along `axis`.

    Axis 0 is taken instead where a band would need more rows than a frame may have units.
    """
    total = prod(shape_units)
    if total > DIMENSION_MAX:
        raise FormatInvalid(f"a tensor of {total} units is beyond {DIMENSION_MAX}")
    if prod(shape_units[:axis]) > tiling.max_units:
        axis = 0
    outer, along, inner = prod(shape_units[:axis]), shape_units[axis], prod(shape_units[axis + 1 :])
    if total == 0:
        return FrameGrid(outer, along, inner, 0, 1)
    row = outer * inner
    if row > tiling.max_units:
        return FrameGrid(outer, along, inner, along, -(-inner // (tiling.max_units // outer)))
    ways = tiling.ways
    while ways > 1 and (ways > along or total // ways < tiling.min_units):
        ways //= 2
    least = -(-along // (tiling.max_units // row))  # so that no band is larger than a frame may be
    bands = -(-max(least, ways) // ways) * ways
    return FrameGrid(outer, along, inner, min(bands, along), 1)
