"""Where the units of tensors landed in a parameter, found by reading back units that spell their own number.

A *region* is a box of a parameter within which the numbers grow by a fixed step along each dimension. Numbers come a
digit a pass, so that nothing is kept an element: a pass refines the regions of the passes before and verifies every
unit of them. It owns the search for regions and their translation to boxes of the tensors, and knows no loader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from syncline.errors import LayoutRefused

REGIONS_MAX = 1 << 12
"""A parameter that falls into more boxes is no arrangement of tensors, but a shuffle."""
_CHUNK_UNITS = {"cpu": 1 << 17}
"""Units that are compared at a time: what a core's cache holds, and on a device enough that a launch is a small part."""
_CHUNK_UNITS_ELSEWHERE = 1 << 24
SINGLES_MAX = 1 << 12


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a parameter: unit x of it, counted from `start`, has the number `value + sum(x * steps)`, as far as the
    `bits` lowest bits are known."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    value: int = 0
    steps: tuple[int, ...] = ()
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a tensor in a store: `start` and `size` in its dimensions, then where it lies, in units."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]


def refine(digits: torch.Tensor, region: Region, width: int, *, constant: bool) -> list[Region]:
    """Cut a region so that within each part the next digit, of `width` bits, fits too.

    `digits` is the whole parameter as signed integers. `constant`: a number that does not grow. LayoutRefused beyond
    REGIONS_MAX parts.
    """
    found: list[Region] = []
    waiting = [region]
    while waiting:
        if len(found) + len(waiting) > REGIONS_MAX:
            raise LayoutRefused(f"more than {REGIONS_MAX} pieces that do not lie in rows; its order is no layout")
        part = waiting.pop()
        fitted = _fit(digits, part, width, constant=constant)
        found.append(fitted)
        waiting.extend(_rest(part, fitted.size))
    return found


def _fit(digits: torch.Tensor, region: Region, width: int, *, constant: bool) -> Region:
    """The largest box at the region's start, found along its edges and cut until it holds, in which the digit fits."""
    mask = (1 << width) - 1
    lowest = region.steps or (0,) * len(region.size)
    wrap = (1 << (region.bits + width)) - 1

    def number(place: tuple[int, ...], low: int) -> int:
        return ((int(digits[place]) & mask) << region.bits | low) & wrap

    low_mask = (1 << region.bits) - 1
    value = number(region.start, region.value)
    steps: list[int] = []
    for axis, size in enumerate(region.size):
        if size == 1 or constant:
            steps.append(0)
            continue
        beside = tuple(at + (axis == d) for d, at in enumerate(region.start))
        steps.append((number(beside, (region.value + lowest[axis]) & low_mask) - value) & wrap)
    fitted = Region(region.start, region.size, value, tuple(steps), region.bits + width)
    edges = list(region.size)
    for axis, size in enumerate(region.size):
        line = replace(fitted, size=tuple(size if d == axis else 1 for d in range(len(edges))))
        edges[axis] = _first_bad(digits, line, axis, width)
    fitted = replace(fitted, size=tuple(edges))
    for axis in range(len(edges)):  # a box whose edges fit may still hold others inside
        good = _first_bad(digits, fitted, axis, width)
        if good == fitted.size[axis]:
            return fitted
        edges[axis] = max(good, 1)
        fitted = replace(fitted, size=tuple(edges))
        if good > 0:
            return fitted
    return fitted


def _first_bad(digits: torch.Tensor, region: Region, axis: int, width: int) -> int:
    """Indices along `axis` before the first that holds a unit which does not fit."""
    size = region.size[axis]
    rows = max(1, chunk_units(digits.device) // max(1, prod(region.size) // size))
    for low in range(0, size, rows):
        high = min(low + rows, size)
        held, wanted = _compared(digits, region, axis, low, high, width)
        if not torch.equal(held, wanted):
            bad = held != wanted
            others = [d for d in range(bad.dim()) if d != axis]
            lines = bad.amax(dim=others) if others else bad
            return low + int(lines.int().argmax())
    return size


def chunk_units(device: torch.device) -> int:
    """How many units are worth one operation on this device."""
    return _CHUNK_UNITS.get(device.type, _CHUNK_UNITS_ELSEWHERE)


def _compared(
    digits: torch.Tensor, region: Region, axis: int, low: int, high: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What indices [low, high) of a region hold, and what they should."""
    start = [at + (low if d == axis else 0) for d, at in enumerate(region.start)]
    size = [high - low if d == axis else n for d, n in enumerate(region.size)]
    held = digits[tuple(slice(at, at + n) for at, n in zip(start, size, strict=True))]
    shift = region.bits - width
    if not any(region.steps):
        number = _signed(region.value >> shift, digits.dtype)
        return held, torch.full((1,) * len(size), number, dtype=digits.dtype, device=digits.device).expand(size)
    # The lowest digit wraps around in its own width; a higher one needs all bits below it.
    kind = digits.dtype if shift == 0 else torch.int32 if region.bits <= 32 else torch.int64
    value = region.value + low * region.steps[axis]
    wanted = torch.full((1,) * len(size), _signed(value, kind), dtype=kind, device=digits.device)
    for d, (n, step) in enumerate(zip(size, region.steps, strict=True)):
        if step and n > 1:
            shape = [1] * len(size)
            shape[d] = n
            along = torch.arange(n, dtype=torch.int64, device=digits.device) * _signed(step, torch.int64)
            wanted = wanted + along.to(kind).view(shape)
    return held, ((wanted >> shift).to(digits.dtype) if shift else wanted).expand(size)


def _signed(number: int, kind: torch.dtype) -> int:
    """The number as the signed integer of equal low bits: sums and products wrap around all the same."""
    bits = 8 * kind.itemsize
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _rest(region: Region, taken: tuple[int, ...]) -> Iterator[Region]:
    """What is left of a region when the box `taken` at its start is gone, as boxes; numbers known so far move along."""
    mask = (1 << region.bits) - 1
    for axis, (size, gone) in enumerate(zip(region.size, taken, strict=True)):
        if gone == size:
            continue
        start = tuple(at + (gone if d == axis else 0) for d, at in enumerate(region.start))
        left = tuple(taken[d] if d < axis else (size - gone if d == axis else n) for d, n in enumerate(region.size))
        value = region.value + gone * region.steps[axis] if region.steps else region.value
        yield replace(region, start=start, size=left, value=value & mask)


def boxes(region: Region, shape: Sequence[int], strides: Sequence[int]) -> list[Box]:
    """Boxes of a tensor of `shape` (C order, in units) that a region of flat positions holds, in a parameter whose
    dimensions lie `strides` apart. LayoutRefused where it cannot be said in boxes."""
    half = 1 << (region.bits - 1)
    dims: list[tuple[int, int, int]] = []
    for size, step, stride in zip(region.size, region.steps, strides, strict=True):
        if size > 1:
            dims.append((size, step - 2 * half if step >= half else step, stride))
    offset = sum(at * stride for at, stride in zip(region.start, strides, strict=True))
    return list(_boxes(region.value, offset, dims, tuple(shape)))


def _boxes(value: int, offset: int, dims: list[tuple[int, int, int]], shape: tuple[int, ...]) -> Iterator[Box]:
    dims = _merged(dims)
    steps = [prod(shape[d + 1 :]) for d in range(len(shape))]
    at = [value // step % extent for step, extent in zip(steps, shape, strict=True)]
    size, strides = [1] * len(shape), [0] * len(shape)
    for index, whole in enumerate(dims):
        others = dims[:index] + dims[index + 1 :]
        count, step, stride = whole
        while count > 1:
            axis = next((d for d, n in enumerate(shape) if n > 1 and steps[d] == step and size[d] == 1), None)
            if axis is None:  # a step over several, or one that another dimension took already
                yield from _one_by_one(value, offset, whole, others, shape)
                return
            room = shape[axis] - at[axis]
            fits = room if at[axis] else count // room * room  # rows that are whole go on along the next dimension
            if count > room and fits < count:
                cut = fits * (whole[0] // count)
                for low, high in ((0, cut), (cut, whole[0])):
                    part = (high - low, whole[1], whole[2])
                    yield from _boxes(value + low * whole[1], offset + low * whole[2], [*others, part], shape)
                return
            size[axis], strides[axis] = min(count, room), stride
            count, step, stride = count // size[axis], step * size[axis], stride * size[axis]
    yield Box(tuple(at), tuple(size), offset, tuple(strides))


def _one_by_one(
    value: int, offset: int, dim: tuple[int, int, int], others: list[tuple[int, int, int]], shape: tuple[int, ...]
) -> Iterator[Box]:
    count, step, stride = dim
    if step <= 0 or count > SINGLES_MAX:
        raise LayoutRefused(f"units {step} apart, {count} times; that is no layout of rows and columns")
    for i in range(count):
        yield from _boxes(value + i * step, offset + i * stride, others, shape)


def _merged(dims: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Dimensions that continue each other, as one; largest steps first."""
    merged: list[tuple[int, int, int]] = []
    for count, step, stride in sorted((d for d in dims if d[0] > 1), key=lambda d: -abs(d[1])):
        if merged:
            outer, outer_step, outer_stride = merged[-1]
            if outer_step == count * step and outer_stride == count * stride:
                merged[-1] = (outer * count, step, stride)
                continue
        merged.append((count, step, stride))
    return merged
