"""Which parts of which tensors a rank holds, and where they lie in its memory.

Pure: made by whoever knows the engine (a loader that slices, or probing), read by whoever reads and writes the memory.
It knows no arrays, no frames and no versions, and refuses by name what cannot be held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Self

import numpy as np

from syncline.errors import LayoutRefused
from syncline.wire import dtypes
from syncline.wire.tensors import TensorSpec, TensorTable


@dataclass(frozen=True, slots=True)
class Block:
    """A box of one tensor, and where it lies. All numbers are units; a dimension is one of the tensor's shape in units
    (wire.dtypes.unit_shape)."""

    tensor: int
    """Index in the table."""
    start: tuple[int, ...]
    """First index of each dimension."""
    size: tuple[int, ...]
    """Indices of each dimension, at least one."""
    store: int
    """Index of a live storage: a flat row of units as wide as the tensor's."""
    offset: int
    """Where in the store the box's first unit lies."""
    strides: tuple[int, ...]
    """From one index of a dimension to the next, in the store."""


@dataclass(frozen=True, slots=True)
class Band:
    """Indices [low, high) of one dimension of a tensor, whole in every other."""

    tensor: int
    axis: int
    low: int
    high: int


@dataclass(frozen=True)
class Layout:
    """All blocks of one rank. Make it with `of` or `whole`, which check it."""

    table: TensorTable
    blocks: Sequence[Sequence[Block]]
    """By tensor. Of a tensor without any this rank holds nothing."""
    bands: Sequence[Sequence[Band]]
    """By tensor, ascending, apart from each other: what its blocks are together."""

    @classmethod
    def of(cls, table: TensorTable, blocks: Iterable[Block]) -> Self:
        """LayoutRefused, naming the tensor, when a block does not fit its tensor, when two overlap in the tensor or in
        a store, or when together they are no bands along one dimension."""
        of_tensor: list[list[Block]] = [[] for _ in table.tensors]
        for block in blocks:
            if not 0 <= block.tensor < len(table.tensors):
                raise LayoutRefused(f"a block is of tensor {block.tensor}, the table has {len(table.tensors)}")
            _check_fits(table.tensors[block.tensor], block)
            of_tensor[block.tensor].append(block)
        bands = [
            bands_of(tensor, spec, held)
            for tensor, (spec, held) in enumerate(zip(table.tensors, of_tensor, strict=True))
        ]
        layout = cls(table, of_tensor, bands)
        _check_apart(layout)
        return layout

    @classmethod
    def whole(cls, table: TensorTable) -> Self:
        """Every tensor whole, row by row, in a store of its own (by the tensor's index)."""
        blocks: list[list[Block]] = []
        bands: list[list[Band]] = []
        for tensor, spec in enumerate(table.tensors):
            shape = shape_of(spec)
            empty = spec.units == 0
            blocks.append([] if empty else [Block(tensor, (0,) * len(shape), shape, tensor, 0, row_major(shape))])
            bands.append([] if empty else [Band(tensor, split_axis(spec), 0, shape[split_axis(spec)])])
        return cls(table, blocks, bands)

    @cached_property
    def is_whole(self) -> bool:
        """Whether every unit of every tensor is held."""
        return all(
            spec.units == 0 or (bool(self.bands[tensor]) and not self.holds_part(tensor))
            for tensor, spec in enumerate(self.table.tensors)
        )

    def holds_part(self, tensor: int) -> bool:
        """Whether some units of the tensor are held and others are not."""
        held = self.bands[tensor]
        indices = sum(band.high - band.low for band in held)
        return bool(held) and indices < shape_of(self.table.tensors[tensor])[held[0].axis]

    @property
    def all_bands(self) -> Iterator[Band]:
        """The bands of all tensors, in the order of the table."""
        return (band for held in self.bands for band in held)


def shape_of(spec: TensorSpec) -> tuple[int, ...]:
    """The tensor's shape in units."""
    return dtypes.unit_shape(spec.dtype, spec.shape)


def split_axis(spec: TensorSpec) -> int:
    """The dimension that the tensor is cut along: that of a band where every dimension would do."""
    return spec.axis if len(shape_of(spec)) == max(1, len(spec.shape)) else 0


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a box that lies row by row without gaps."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def bands_of(tensor: int, spec: TensorSpec, blocks: Sequence[Block]) -> list[Band]:
    """What the blocks of one tensor are together; touching bands are one. LayoutRefused when they are no bands."""
    if not blocks:
        return []
    shape, preferred = shape_of(spec), split_axis(spec)
    _check_disjoint(spec, blocks)
    held = sum(prod(block.size) for block in blocks)
    for axis in sorted(range(len(shape)), key=lambda axis: axis != preferred):
        spans = _merged((block.start[axis], block.start[axis] + block.size[axis]) for block in blocks)
        if sum(high - low for low, high in spans) * (prod(shape) // shape[axis]) == held:
            return [Band(tensor, axis, low, high) for low, high in spans]
    raise LayoutRefused(
        f"what is held of {spec.name} {list(shape)} is no band along one dimension: {held} units in {len(blocks)} blocks"
    )


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def _check_fits(spec: TensorSpec, block: Block) -> None:
    shape = shape_of(spec)
    if not len(shape) == len(block.start) == len(block.size) == len(block.strides):
        raise LayoutRefused(f"a block of {spec.name} has other dimensions than the tensor's {list(shape)}")
    if any(
        start < 0 or size < 1 or start + size > of
        for start, size, of in zip(block.start, block.size, shape, strict=True)
    ):
        raise LayoutRefused(f"a block of {spec.name} at {block.start} of {block.size} is outside {list(shape)}")
    if block.store < 0 or block.offset < 0:
        raise LayoutRefused(f"a block of {spec.name} lies outside its store")
    reach = 0
    for stride, size in sorted(zip(block.strides, block.size, strict=True)):
        if size > 1 and stride <= reach:
            raise LayoutRefused(f"a block of {spec.name} with strides {block.strides} lies over itself in its store")
        reach += (size - 1) * stride


def _check_disjoint(spec: TensorSpec, blocks: Sequence[Block]) -> None:
    if len(blocks) < 2:
        return
    low = np.array([block.start for block in blocks], np.int64)
    high = low + np.array([block.size for block in blocks], np.int64)
    for place in range(len(blocks) - 1):  # a row at a time: the number of blocks may be that of experts or heads
        meet = np.all((low[place] < high[place + 1 :]) & (low[place + 1 :] < high[place]), axis=1)
        if meet.any():
            other = blocks[place + 1 + int(meet.argmax())]
            raise LayoutRefused(f"{spec.name} is held twice: at {blocks[place].start} and at {other.start}")


def _check_apart(layout: Layout) -> None:
    """No two blocks share a unit of a store."""
    of_store: dict[int, list[Block]] = {}
    for held in layout.blocks:
        for block in held:
            of_store.setdefault(block.store, []).append(block)
    for blocks in of_store.values():
        blocks.sort(key=lambda block: block.offset)
        among: list[Block] = []  # blocks whose extents reach into each other
        reach = 0
        for block in blocks:
            if block.offset >= reach:
                _check_woven(layout, among)
                among = []
            among.append(block)
            reach = max(reach, end_of(block))
        _check_woven(layout, among)


def _check_woven(layout: Layout, blocks: Sequence[Block]) -> None:
    """Blocks that lie between each other's units, as the column slices of one store do, and hence must be looked at unit
    by unit: a byte for each, for as long as this takes."""
    if len(blocks) < 2:
        return
    first = blocks[0].offset
    taken = np.zeros(max(end_of(block) for block in blocks) - first, np.bool_)
    for block in blocks:
        units = np.lib.stride_tricks.as_strided(taken[block.offset - first :], block.size, block.strides)
        if units.any():
            raise LayoutRefused(
                f"{layout.table.tensors[block.tensor].name} at {block.start} lies where another block of store"
                f" {block.store} lies"
            )
        units[...] = True


def end_of(block: Block) -> int:
    """Where in its store the block ends."""
    return block.offset + 1 + sum((size - 1) * stride for size, stride in zip(block.size, block.strides, strict=True))
