"""Frames in and out of tensors, or of whatever they lie in as rows: compare, take, scatter, read back (geometry: wire.tiling).

Positions ascend, so the loops walk a frame's runs beside them and divide once a run, not once a position.
"""

# pyright: basic, reportCallIssue=false
# compiled functions have no annotations: numba infers their types at the call, and gives an intrinsic its first argument

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncline.kernels.compiling import INT, U32, Signature, array, compiled
from syncline.kernels.vectors import differing, lowest, ones, prefetch
from syncline.wire.tiling import Frame

Units = NDArray[np.unsignedinteger]
Positions = NDArray[np.uint32]

_BLOCK = 64
"""Units compared at once: a bit each in a word."""
_USUAL = 2
"""Changes of a block that are written without looking whether there are so many: where few units change, most blocks have no more."""

RUNS_AHEAD = 4
SHORT = 4096
"""Units of a run below which the next runs are asked for: across a band of columns the processor does not see by itself what comes."""
LINE = 64


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
    check_inside(flat, frame)
    if frame.runs == 1:
        return flat[frame.base : frame.base + frame.length]
    whole = np.empty(frame.units, flat.dtype)
    _gather(flat.dtype)(flat, whole, frame.base, frame.runs, frame.length, frame.stride)
    return whole


def difference(old: Units, new: Units, frame: Frame) -> Difference:
    """Where two tensors differ inside a frame."""
    check_inside(old, frame)
    check_inside(new, frame)
    if old.dtype != new.dtype:
        raise IndexError(f"{old.dtype} and {new.dtype} do not compare")
    return _differing(old, new, frame)


def contiguous_difference(old: Units, new: Units) -> Difference:
    """Where two contiguous frames differ."""
    if old.size != new.size or old.dtype != new.dtype:
        raise IndexError(f"frames of {old.size} {old.dtype} and {new.size} {new.dtype} do not compare")
    return _differing(old, new, Frame(0, 1, old.size, 0))


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


def check_inside(flat: Units, frame: Frame) -> None:
    """IndexError unless all of the frame lies in `flat`."""
    if frame.units and frame.offset(frame.units - 1) >= flat.size:
        raise IndexError(f"{frame} does not fit a tensor of {flat.size} units")


def _differing(old: Units, new: Units, frame: Frame) -> Difference:
    # More than can differ: the fill writes before it knows whether to keep. Pages that it does not reach cost nothing.
    scratch = [np.empty(frame.units + _BLOCK, dtype) for dtype in (np.uint32, old.dtype, old.dtype)]
    count = _diff(old.dtype)(old, new, frame.base, frame.runs, frame.length, frame.stride, *scratch)
    return Difference(*(part[:count].copy() for part in scratch))


def _check(flat: Units, frame: Frame, positions: Positions, values: Units | None = None) -> None:
    # The compiled loops do not check bounds; a few comparisons here keep a wrong geometry from writing elsewhere.
    check_inside(flat, frame)
    if positions.size and int(positions[-1]) >= frame.units:
        raise IndexError(f"position {positions[-1]} is outside a frame of {frame.units} units")
    if values is not None and (values.size != positions.size or values.dtype != flat.dtype):
        raise IndexError(f"{values.size} values of {values.dtype} for {positions.size} positions of {flat.dtype}")


def _gather_kernel(flat, whole, base, runs, length, stride):
    for run in range(runs):
        row = base + run * stride
        if length < SHORT:
            for line in range(0, length, LINE // flat.itemsize):
                prefetch(flat, row + RUNS_AHEAD * stride + line)
        for i in range(length):
            whole[np.uint64(run * length + i)] = flat[np.uint64(row + i)]


def _diff_kernel(old, new, base, runs, length, stride, positions, before, after):
    found = np.uint64(0)
    whole = length // _BLOCK * _BLOCK
    ahead = RUNS_AHEAD * stride if length < SHORT else 0
    for run in range(runs):
        row = base + run * stride
        for start in range(0, whole, _BLOCK):
            if ahead:
                for line in range(0, _BLOCK, LINE // old.itemsize):
                    prefetch(old, row + start + ahead + line)
                    prefetch(new, row + start + ahead + line)
            mask = differing(old, new, row + start)
            first = found
            found += np.uint64(ones(mask))
            while True:
                for _ in range(_USUAL):  # of no bit the place is that of the first: written, and written over
                    lane = lowest(mask) & (_BLOCK - 1)
                    at = np.uint64(row + start + lane)
                    positions[first] = run * length + start + lane
                    before[first] = old[at]
                    after[first] = new[at]
                    first += np.uint64(1)
                    mask &= mask - np.uint64(1)
                if mask == 0:
                    break
        for place in range(whole, length):
            at = np.uint64(row + place)
            positions[found] = run * length + place
            before[found] = old[at]
            after[found] = new[at]
            found += np.uint64(old[at] != new[at])
    return found


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


def _of_gather(unit) -> Signature:
    return (array(unit), array(unit, writable=True), INT, INT, INT, INT)


def _of_diff(unit) -> Signature:
    out = array(unit, writable=True)
    return (array(unit), array(unit), INT, INT, INT, INT, array(U32, writable=True), out, out)


def _of_take(unit) -> Signature:
    return (array(unit), array(U32), array(unit, writable=True), INT, INT, INT)


def _of_scatter(unit) -> Signature:
    return (array(unit, writable=True), array(U32), array(unit), INT, INT, INT)


def _of_matches(unit) -> Signature:
    return (array(unit), array(U32), array(unit), INT, INT, INT)


_gather = compiled(_gather_kernel, _of_gather)
_diff = compiled(_diff_kernel, _of_diff)
_take = compiled(_take_kernel, _of_take)
_scatter = compiled(_scatter_kernel, _of_scatter)
_matches = compiled(_matches_kernel, _of_matches)
