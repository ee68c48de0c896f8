"""Where the frames of a run lie in a rank's memory: a pure function of its layout and the run's tiling.

Most frames lie *in place*: as rows that are evenly apart in one store, so that whatever works on a frame of a tensor
works on them (wire.tiling.Frame, in the store). Others are *strewn*: held in part, turned around, or in more than one
block. It reads no memory and knows no deltas.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from syncline.wire.tiling import Frame, FrameGrid, Tiling
from syncline_agent.arm.layout import Band, Block, Layout, row_major, shape_of, split_axis


@dataclass(frozen=True, slots=True)
class Part:
    """What is held of one frame within one band: the least that has a digest of its own."""

    frame: int
    band: int
    """Place in the layout's bands of the tensor."""
    units: int


@dataclass(frozen=True, slots=True)
class InPlace:
    """A frame that is held whole and lies as rows."""

    index: int
    frame: Frame
    """In the tensor."""
    part: int
    """Place in `Places.parts`."""
    store: int
    there: Frame
    """In the store. Its rows may be others than the tensor's: position p of the frame is the p-th of them all the same."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A box of a strewn frame, and where it lies."""

    part: int
    start: tuple[int, ...]
    """In the tensor, as `Block.start`."""
    size: tuple[int, ...]
    store: int
    base: int
    """In the store, of its first unit."""
    strides: tuple[int, ...]
    """In the store."""
    first: int
    """Position in the frame of its first unit."""

    @property
    def units(self) -> int:
        return prod(self.size)


@dataclass(frozen=True, slots=True)
class Strewn:
    """A frame that is held in part, or does not lie as rows."""

    index: int
    frame: Frame
    """In the tensor."""
    strides: tuple[int, ...]
    """From one index of a dimension of the tensor to the next, in positions of the frame."""
    spots: Sequence[Spot]

    @property
    def is_whole(self) -> bool:
        """Held whole: its units can be collected from live memory. Else the rest of it is known only to a shadow."""
        return sum(spot.units for spot in self.spots) == self.frame.units


@dataclass(frozen=True, slots=True)
class Places:
    """The held frames of one tensor."""

    frames: Mapping[int, InPlace | Strewn]
    """By index in the tensor's grid, ascending."""
    parts: Sequence[Part]
    """Ascending by frame, then by band."""


def place(layout: Layout, tensor: int, tiling: Tiling) -> Places:
    """Where the tensor's frames lie."""
    spec, blocks, bands = layout.table.tensors[tensor], layout.blocks[tensor], layout.bands[tensor]
    shape, grid = shape_of(spec), spec.grid(tiling)
    frames: dict[int, InPlace | Strewn] = {}
    parts: list[Part] = []
    if not blocks:
        return Places(frames, parts)
    axis = split_axis(spec)
    if prod(shape[:axis]) != grid.outer or shape[axis] != grid.axis:
        axis = 0  # the grid took it instead
    across = _Across(shape, axis, blocks)
    for index in _meeting(grid, axis, blocks):
        frame = grid.frame(index)
        evenly = across.find(frame, grid)
        if evenly is not None:
            band = _band(bands, evenly[0].start)
            frames[index] = InPlace(index, frame, len(parts), evenly[0].store, evenly[1])
            parts.append(Part(index, band, frame.units))
            continue
        found = [
            (_band(bands, start), start, size, block)
            for low, high in _boxes(shape, axis, grid, frame)
            for block in blocks
            if (box := _common(low, high, block)) is not None
            for start, size in [box]
        ]
        if found:
            first = len(parts)
            held = sorted({band for band, *_ in found})
            parts += [Part(index, band, sum(prod(s) for b, _, s, _ in found if b == band)) for band in held]
            frames[index] = _placed(index, frame, shape, axis, first, held, found)
    return Places(frames, parts)


def rows(base: int, size: Sequence[int], strides: Sequence[int]) -> Iterator[Frame]:
    """A box as rows, in the order of its units: one frame where it lies evenly, else one for each leading index."""
    dims: list[tuple[int, int]] = []
    for n, stride in zip(size, strides, strict=True):
        if n == 1:
            continue
        if dims and dims[-1][1] == n * stride:
            dims[-1] = dims[-1][0] * n, stride
        else:
            dims.append((n, stride))
    if not dims:
        dims = [(1, 1)]
    if dims[-1][1] != 1:
        dims.append((1, 1))
    *leading, (length, _) = dims
    outer, (runs, apart) = (leading[:-1], leading[-1]) if leading else ([], (1, length))
    for indices in product(*(range(n) for n, _ in outer)):
        yield Frame(base + _dot(indices, [stride for _, stride in outer]), runs, length, apart)


def rows_in_tensor(shape: Sequence[int], spot: Spot) -> Iterator[Frame]:
    """The spot's units as rows of the tensor itself, in their order."""
    strides = row_major(shape)
    return rows(_dot(spot.start, strides), spot.size, strides)


class _Across:
    """Blocks that are whole but along the axis of the frames: most are, and where their frames lie needs no boxes."""

    def __init__(self, shape: Sequence[int], axis: int, blocks: Sequence[Block]) -> None:
        rest = [dimension for dimension in range(len(shape)) if dimension != axis]
        whole = [block for block in blocks if all(block.size[d] == shape[d] for d in rest)]
        self._axis = axis
        self._blocks = sorted(whole, key=lambda block: block.start[axis])
        self._starts = [block.start[axis] for block in self._blocks]
        self._rows: dict[tuple[int, int], Frame | None] = {}
        """By block and indices of the axis: how a frame lies that begins at the block's first unit."""

    def find(self, frame: Frame, grid: FrameGrid) -> tuple[Block, Frame] | None:
        """The block that holds the frame, and its rows there; None where it is not so simple."""
        if grid.pieces > 1:
            return None
        axis, low, count = self._axis, frame.base // grid.inner, frame.length // grid.inner
        place = bisect_right(self._starts, low) - 1
        if place < 0 or low + count > self._starts[place] + self._blocks[place].size[axis]:
            return None
        block = self._blocks[place]
        if (place, count) not in self._rows:
            size = (*block.size[:axis], count, *block.size[axis + 1 :])
            first = next(rows(0, size, block.strides))
            self._rows[place, count] = first if first.units == frame.units else None
        lies = self._rows[place, count]
        if lies is None:
            return None
        base = block.offset + (low - self._starts[place]) * block.strides[axis]
        return block, Frame(base, lies.runs, lies.length, lies.stride)


def _meeting(grid: FrameGrid, axis: int, blocks: Sequence[Block]) -> list[int]:
    """Indices of the frames that may meet a block, ascending."""
    cuts: set[int] = set()
    for low, high in {(block.start[axis], block.start[axis] + block.size[axis]) for block in blocks}:
        first, last = low * grid.bands // grid.axis - 1, high * grid.bands // grid.axis + 1
        cuts.update(range(max(0, first), min(grid.bands, last + 1)))
    return [cut * grid.pieces + piece for cut in sorted(cuts) for piece in range(grid.pieces)]


_Found = tuple[int, tuple[int, ...], tuple[int, ...], Block]
"""Band, start, size and block of a box."""


def _placed(
    index: int,
    frame: Frame,
    shape: Sequence[int],
    axis: int,
    first: int,
    held: Sequence[int],
    found: Sequence[_Found],
) -> InPlace | Strewn:
    """The frame of these boxes; its parts begin at `first`, one for each band that is held."""
    there = _in_place(frame, found[0][-1], shape, axis, found)
    if there is not None:
        return InPlace(index, frame, first, found[0][-1].store, there)
    strides = _position_strides(frame, shape, axis)
    spots = [
        Spot(
            first + held.index(band),
            start,
            size,
            block.store,
            _base(block, start),
            block.strides,
            _dot(start, strides) - frame.base,
        )
        for band, start, size, block in found
    ]
    return Strewn(index, frame, strides, spots)


def _in_place(frame: Frame, block: Block, shape: Sequence[int], axis: int, found: Sequence[_Found]) -> Frame | None:
    """The whole frame as one set of rows of the block's store, or None."""
    if sum(prod(size) for _, _, size, _ in found) != frame.units or any(b is not block for *_, b in found):
        return None
    if len(found) == 1:
        _, start, size, _ = found[0]
    else:  # a piece of one index of the axis, in several boxes: rows only where what it is a piece of is one row
        inner = prod(shape[axis + 1 :])
        if block.size[axis + 1 :] != tuple(shape[axis + 1 :]) or _row(block, axis + 1) != inner:
            return None
        start = (*(0 for _ in shape[:axis]), frame.base // inner, *(0 for _ in shape[axis + 1 :]))
        size = (*shape[:axis], 1, *shape[axis + 1 :])
        lying = list(rows(_base(block, start), size, block.strides))
        if len(lying) != 1:
            return None
        apart = lying[0].stride if lying[0].runs == frame.runs else inner
        return Frame(lying[0].base + frame.base % inner, frame.runs, frame.length, apart)
    lying = rows(_base(block, start), size, block.strides)
    only = next(lying)
    return only if only.units == frame.units else None


def _row(block: Block, axis: int) -> int:
    """Units of the dimensions from `axis` on, where they lie without gaps; else 0."""
    lying = list(rows(0, block.size[axis:], block.strides[axis:]))
    return lying[0].length if len(lying) == 1 and lying[0].runs == 1 else 0


def _base(block: Block, start: Sequence[int]) -> int:
    return block.offset + _dot(start, block.strides) - _dot(block.start, block.strides)


def _position_strides(frame: Frame, shape: Sequence[int], axis: int) -> tuple[int, ...]:
    across = row_major(shape)
    return (*(stride * frame.length for stride in row_major(shape[:axis])), *across[axis:])


def _dot(indices: Sequence[int], strides: Sequence[int]) -> int:
    return sum(index * stride for index, stride in zip(indices, strides, strict=True))


def _band(bands: Sequence[Band], start: Sequence[int]) -> int:
    return next(place for place, band in enumerate(bands) if band.low <= start[band.axis] < band.high)


def _common(low: Sequence[int], high: Sequence[int], block: Block) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    start = tuple(map(max, low, block.start))
    size = tuple(
        min(top, first + n) - at for top, first, n, at in zip(high, block.start, block.size, start, strict=True)
    )
    return None if min(size) < 1 else (start, size)


def _boxes(
    shape: Sequence[int], axis: int, grid: FrameGrid, frame: Frame
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The frame as boxes [low, high) of the tensor."""
    outer, inner = tuple(shape[:axis]), tuple(shape[axis + 1 :])
    index, first = divmod(frame.base, grid.inner)
    if grid.pieces == 1:
        yield (*(0 for _ in outer), index, *(0 for _ in inner)), (*outer, index + frame.length // grid.inner, *inner)
        return
    for low, high in _range(inner, first, first + frame.length):
        yield (*(0 for _ in outer), index, *low), (*outer, index + 1, *high)


def _range(shape: tuple[int, ...], low: int, high: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Units [low, high) of a box in row-major order, as boxes, in order."""
    if len(shape) == 1:
        yield (low,), (high,)
        return
    row = prod(shape[1:])
    first, last = low // row, (high - 1) // row
    if low % row or (first == last and high % row):  # a row that is not whole
        end = min(high, (first + 1) * row)
        for a, b in _range(shape[1:], low % row, end - first * row):
            yield (first, *a), (first + 1, *b)
        low, first = end, first + 1
    whole = high // row
    if first < whole and low < high:
        yield (first, *(0 for _ in shape[1:])), (whole, *shape[1:])
        low = whole * row
    if low < high:
        for a, b in _range(shape[1:], 0, high - low):
            yield (whole, *a), (whole + 1, *b)
