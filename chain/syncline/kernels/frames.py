"""Frames in and out of tensors: gather, compare, scatter, read back (geometry: wire.tiling)."""

# pyright: basic
# compiled functions have no annotations: numba infers their types at the call

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from syncline.wire.tiling import Frame

Units = NDArray[np.unsignedinteger]
Positions = NDArray[np.uint32]

_BLOCK = 64
"""Units compared at once: about one change a block where one percent changed, and a cache line or two."""


@nb.njit(nogil=True, cache=True)
def _changed(old, new, out):
    found = 0
    whole = old.size // _BLOCK * _BLOCK
    for start in range(0, whole, _BLOCK):
        differs = old[start] ^ old[start]
        for j in range(_BLOCK):
            differs |= old[start + j] ^ new[start + j]
        if differs:
            for j in range(_BLOCK):
                out[found] = start + j
                found += old[start + j] != new[start + j]
    for i in range(whole, old.size):
        out[found] = i
        found += old[i] != new[i]
    return found


@nb.njit(nogil=True, cache=True)
def _count(old, new):
    found = 0
    for i in range(old.size):
        found += old[i] != new[i]
    return found


@nb.njit(nogil=True, cache=True)
def _scatter(flat, positions, values, base, length, stride):
    for i in range(positions.size):
        q = np.int64(positions[i])
        flat[base + q // length * stride + q % length] = values[i]


@nb.njit(nogil=True, cache=True)
def _matches(flat, positions, values, base, length, stride):
    same = True
    for i in range(positions.size):
        q = np.int64(positions[i])
        same &= flat[base + q // length * stride + q % length] == values[i]
    return same


def view(flat: Units, frame: Frame) -> Units:
    """The frame's units, contiguous: a view where the frame is one run, else a copy."""
    if frame.runs == 1:
        return flat[frame.base : frame.base + frame.length]
    rows = np.lib.stride_tricks.as_strided(
        flat[frame.base :],
        shape=(frame.runs, frame.length),
        strides=(frame.stride * flat.itemsize, flat.itemsize),
        writeable=False,
    )
    return rows.reshape(-1)


def changed_positions(old: Units, new: Units) -> Positions:
    """Ascending positions where two contiguous frames differ."""
    scratch = np.empty(old.size + 1, np.uint32)  # one more: the fill writes before it knows whether to keep
    return scratch[: _changed(old, new, scratch)].copy()


def count_changed(old: Units, new: Units) -> int:
    """How many units differ."""
    return int(_count(old, new))


def scatter(flat: Units, frame: Frame, positions: Positions, values: Units) -> None:
    """Write absolute bits at frame-relative positions of a tensor."""
    _check(flat, frame, positions)
    _scatter(flat, positions, values, frame.base, frame.length, frame.stride)


def matches(flat: Units, frame: Frame, positions: Positions, values: Units) -> bool:
    """Whether the tensor holds `values` at the positions."""
    _check(flat, frame, positions)
    return bool(_matches(flat, positions, values, frame.base, frame.length, frame.stride))


def _check(flat: Units, frame: Frame, positions: Positions) -> None:
    # The compiled loops do not check bounds; one comparison here keeps a wrong geometry from writing elsewhere.
    last = frame.offset(frame.units - 1)
    if last >= flat.size or (positions.size and int(positions[-1]) >= frame.units):
        raise IndexError(f"frame of {frame.units} units up to offset {last} does not fit a tensor of {flat.size}")
