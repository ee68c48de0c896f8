"""Frames in and out of tensors: compare, take, scatter, read back (geometry: wire.tiling).

Positions ascend, so the loops walk a frame's runs beside them and divide once a run, not once a position.
"""

# pyright: basic
# compiled functions have no annotations: numba infers their types at the call

from __future__ import annotations

from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from syncline.kernels.compiling import INT, U32, U64, Signature, array, compiled
from syncline.wire.tiling import Frame

Units = NDArray[np.unsignedinteger]
Positions = NDArray[np.uint32]

_BLOCK = 8
"""Words of 8 bytes compared at once: a cache line, so that one vector test skips what did not change."""
_WORD = np.dtype(np.uint64)


@dataclass(frozen=True, slots=True)
class Difference:
    """Ascending frame-relative positions where a frame differs, and the units there before and after."""

    positions: Positions
    old: Units
    new: Units

    @property
    def parts(self) -> tuple[Positions, Units, Units]:
        return self.positions, self.old, self.new


def view(flat: Units, frame: Frame) -> Units:
    """The frame's units, contiguous: a view where the frame is one run, else a copy."""
    _check_inside(flat, frame)
    if frame.runs == 1:
        return flat[frame.base : frame.base + frame.length]
    rows = np.lib.stride_tricks.as_strided(
        flat[frame.base :],
        shape=(frame.runs, frame.length),
        strides=(frame.stride * flat.itemsize, flat.itemsize),
        writeable=False,
    )
    return np.ascontiguousarray(rows).reshape(-1)  # rows of one unit would reshape to a view with gaps


def difference(old: Units, new: Units, frame: Frame) -> Difference:
    """Where two tensors differ inside a frame."""
    lanes = 8 // old.itemsize
    if frame.runs == 1 or any(n % lanes for n in (frame.base, frame.length, frame.stride, old.size, new.size)):
        return contiguous_difference(view(old, frame), view(new, frame))
    _check_inside(old, frame)
    _check_inside(new, frame)
    geometry = (frame.base // lanes, frame.runs, frame.length // lanes, frame.stride // lanes)
    return _differing(old, new, geometry)


def contiguous_difference(old: Units, new: Units) -> Difference:
    """Where two contiguous frames differ."""
    if old.size != new.size or old.dtype != new.dtype:
        raise IndexError(f"frames of {old.size} {old.dtype} and {new.size} {new.dtype} do not compare")
    lanes = 8 // old.itemsize
    whole = old.size // lanes * lanes
    found = _differing(old[:whole], new[:whole], (0, 1, whole // lanes, 0))
    rest = np.flatnonzero(old[whole:] != new[whole:]) + whole
    if rest.size == 0:
        return found
    tail = (rest.astype(np.uint32), old[rest], new[rest])
    return Difference(*(np.concatenate(parts) for parts in zip(found.parts, tail, strict=True)))


def take(flat: Units, frame: Frame, positions: Positions) -> Units:
    """The units at ascending frame-relative positions."""
    _check(flat, frame, positions)
    out = np.empty(positions.size, flat.dtype)
    _take(flat.dtype)(flat, positions, out, frame.base, frame.length, frame.stride)
    return out


def scatter(flat: Units, frame: Frame, positions: Positions, values: Units) -> None:
    """Write absolute bits at ascending frame-relative positions of a tensor."""
    _check(flat, frame, positions, values)
    _scatter(flat.dtype)(flat, positions, values, frame.base, frame.length, frame.stride)


def matches(flat: Units, frame: Frame, positions: Positions, values: Units) -> bool:
    """Whether the tensor holds `values` at the ascending positions."""
    _check(flat, frame, positions, values)
    return _matches(flat.dtype)(flat, positions, values, frame.base, frame.length, frame.stride) == 0


def _differing(old: Units, new: Units, geometry: tuple[int, int, int, int]) -> Difference:
    _, runs, length, _ = geometry
    unit = old.dtype
    lanes = 8 // unit.itemsize
    # One more than can differ: the fill writes before it knows whether to keep. Pages that it does not reach cost nothing.
    scratch = [np.empty(runs * length * lanes + 1, dtype) for dtype in (np.uint32, unit, unit)]
    count = _diff[lanes](unit)(old.view(_WORD), new.view(_WORD), *geometry, *scratch)
    return Difference(*(part[:count].copy() for part in scratch))


def _check(flat: Units, frame: Frame, positions: Positions, values: Units | None = None) -> None:
    # The compiled loops do not check bounds; a few comparisons here keep a wrong geometry from writing elsewhere.
    _check_inside(flat, frame)
    if positions.size and int(positions[-1]) >= frame.units:
        raise IndexError(f"position {positions[-1]} is outside a frame of {frame.units} units")
    if values is not None and (values.size != positions.size or values.dtype != flat.dtype):
        raise IndexError(f"{values.size} values of {values.dtype} for {positions.size} positions of {flat.dtype}")


def _check_inside(flat: Units, frame: Frame) -> None:
    if frame.units and frame.offset(frame.units - 1) >= flat.size:
        raise IndexError(f"{frame} does not fit a tensor of {flat.size} units")


@nb.njit(inline="always")
def _units_of(word_old, word_new, at, found, positions, before, after, lanes):
    bits = 64 // lanes
    mask = ~np.uint64(0) >> np.uint64(64 - bits)
    for lane in range(lanes):  # writes always, moves on at a change: no branch to guess
        unit_old = (word_old >> np.uint64(bits * lane)) & mask
        unit_new = (word_new >> np.uint64(bits * lane)) & mask
        positions[found] = at + lane
        before[found] = unit_old
        after[found] = unit_new
        found += unit_old != unit_new
    return found


def _diff_kernel(lanes: int):
    """The loop for words of so many units; a constant, so that the walk over a changed word unrolls."""

    def kernel(old, new, base, runs, length, stride, positions, before, after):
        found = 0
        blocks = length // _BLOCK * _BLOCK
        for run in range(runs):
            row_old = old[base + run * stride : base + run * stride + length]
            row_new = new[base + run * stride : base + run * stride + length]
            first = run * length
            for start in range(0, blocks, _BLOCK):
                differs = np.uint64(0)
                for j in range(_BLOCK):
                    differs |= row_old[start + j] ^ row_new[start + j]
                if differs == 0:
                    continue
                for j in range(_BLOCK):
                    a, b = row_old[start + j], row_new[start + j]
                    if a != b:
                        at = (first + start + j) * lanes
                        found = _units_of(a, b, at, found, positions, before, after, lanes)
            for j in range(blocks, length):
                a, b = row_old[j], row_new[j]
                if a != b:
                    found = _units_of(a, b, (first + j) * lanes, found, positions, before, after, lanes)
        return found

    return kernel


def _take_kernel(flat, positions, out, base, length, stride):
    if (
        positions.size == 0 or positions[positions.size - 1] < length
    ):  # one run: a loop that the processor runs ahead in
        row = flat[base : base + length]
        for i in range(positions.size):
            out[i] = row[positions[i]]
        return
    start, end, row_at = 0, length, base
    for i in range(positions.size):
        q = np.int64(positions[i])
        if q >= end:
            run = q // length
            start, end, row_at = run * length, (run + 1) * length, base + run * stride
        out[i] = flat[row_at + q - start]


def _scatter_kernel(flat, positions, values, base, length, stride):
    if positions.size == 0 or positions[positions.size - 1] < length:
        row = flat[base : base + length]
        for i in range(positions.size):
            row[positions[i]] = values[i]
        return
    start, end, row_at = 0, length, base
    for i in range(positions.size):
        q = np.int64(positions[i])
        if q >= end:
            run = q // length
            start, end, row_at = run * length, (run + 1) * length, base + run * stride
        flat[row_at + q - start] = values[i]


def _matches_kernel(flat, positions, values, base, length, stride):
    differing = 0
    if positions.size == 0 or positions[positions.size - 1] < length:
        row = flat[base : base + length]
        for i in range(positions.size):
            differing += row[positions[i]] != values[i]
        return differing
    start, end, row_at = 0, length, base
    for i in range(positions.size):
        q = np.int64(positions[i])
        if q >= end:
            run = q // length
            start, end, row_at = run * length, (run + 1) * length, base + run * stride
        differing += flat[row_at + q - start] != values[i]
    return differing


def _of_diff(unit) -> Signature:
    out = array(unit, writable=True)
    return (array(U64), array(U64), INT, INT, INT, INT, array(U32, writable=True), out, out)


def _of_take(unit) -> Signature:
    return (array(unit), array(U32), array(unit, writable=True), INT, INT, INT)


def _of_scatter(unit) -> Signature:
    return (array(unit, writable=True), array(U32), array(unit), INT, INT, INT)


def _of_matches(unit) -> Signature:
    return (array(unit), array(U32), array(unit), INT, INT, INT)


_diff = {lanes: compiled(_diff_kernel(lanes), _of_diff) for lanes in (1, 2, 4, 8)}
_take = compiled(_take_kernel, _of_take)
_scatter = compiled(_scatter_kernel, _of_scatter)
_matches = compiled(_matches_kernel, _of_matches)
