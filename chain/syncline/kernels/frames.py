"""Frames of a flat tensor: copy one out, find what differs, write and check single positions.

A frame's units are rows of the tensor (`wire.tiling.Frame`), and a position counts them row by row. The tensor must be
large enough for the frame, and positions must ascend below `frame.units`; only the last one is checked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from syncline.kernels.compiling import INT, U32, Signature, Units, array, compiled
from syncline.wire.tiling import Frame

BLOCK = 32
"""Units that are compared at once; most blocks hold no change."""

Positions = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two versions of a frame differ: ascending positions, and the units there before and after."""

    positions: Positions
    old: Units
    new: Units


def gather(flat: Units, frame: Frame) -> Units:
    """The frame's units as one row: a read-only view where they lie in one, else a copy."""
    if frame.runs == 1:
        row = flat[frame.base : frame.base + frame.length].view()
        row.flags.writeable = False
        return row
    _inside(flat, frame)
    width = flat.itemsize
    rows = as_strided(flat[frame.base :], (frame.runs, frame.length), (frame.stride * width, width), writeable=False)
    return rows.reshape(-1)


def diff(old: Units, new: Units, frame: Frame) -> Difference | None:
    """Where the frame of `new` differs from that of `old`; None when nowhere."""
    _inside(old, frame)
    _inside(new, frame)
    kernel = _diff(old.dtype)
    room = min(frame.units, max(1024, frame.units // 16))
    while True:
        positions = np.empty(room + BLOCK, np.uint32)
        count = kernel(old, new, frame.base, frame.runs, frame.length, frame.stride, positions, room)
        if count >= 0:
            break
        room = frame.units
    if count == 0:
        return None
    kept = positions[:count].copy()
    return Difference(kept, take(old, frame, kept), take(new, frame, kept))


def take(flat: Units, frame: Frame, positions: Positions) -> Units:
    """The units at `positions` of the frame."""
    _below(positions, frame, flat)
    out = np.empty(positions.size, flat.dtype)
    _take(flat.dtype)(flat, frame.base, frame.length, frame.stride, positions, out)
    return out


def scatter(flat: Units, frame: Frame, *, positions: Positions, values: Units) -> None:
    """Write `values` at `positions` of the frame."""
    _below(positions, frame, flat)
    _scatter(flat.dtype)(flat, frame.base, frame.length, frame.stride, positions, values)


def verify(flat: Units, frame: Frame, *, positions: Positions, values: Units) -> bool:
    """Whether the frame holds `values` at `positions`."""
    _below(positions, frame, flat)
    return bool(_verify(flat.dtype)(flat, frame.base, frame.length, frame.stride, positions, values))


def _inside(flat: Units, frame: Frame) -> None:
    if frame.units and frame.offset(frame.units - 1) >= flat.size:
        raise IndexError(f"{frame} does not fit a tensor of {flat.size} units")


def _below(positions: Positions, frame: Frame, flat: Units) -> None:
    _inside(flat, frame)
    if positions.size and int(positions[-1]) >= frame.units:
        raise IndexError(f"position {positions[-1]} is outside a frame of {frame.units} units")


def _diff_kernel(
    old: Any, new: Any, base: int, runs: int, length: int, stride: int, positions: Any, room: int
) -> int:  # pragma: no cover - compiled
    n = 0
    for run in range(runs):
        row = base + run * stride
        first = run * length
        whole = length // BLOCK * BLOCK
        for start in range(0, whole, BLOCK):
            differs = old.dtype.type(0)
            for j in range(BLOCK):
                differs |= old[row + start + j] ^ new[row + start + j]
            if differs != 0:
                if n + BLOCK > room + BLOCK:
                    return -1
                for j in range(BLOCK):  # stores always, moves on at a change: no branch to guess
                    positions[n] = first + start + j
                    n += old[row + start + j] != new[row + start + j]
        for j in range(whole, length):
            if old[row + j] != new[row + j]:
                if n >= room:
                    return -1
                positions[n] = first + j
                n += 1
    return n


def _take_kernel(
    flat: Any, base: int, length: int, stride: int, positions: Any, out: Any
) -> None:  # pragma: no cover - compiled
    run_start, run_end, row = 0, length, base
    for k in range(positions.size):
        q = np.int64(positions[k])
        if q >= run_end:
            run = q // length
            run_start, run_end, row = run * length, (run + 1) * length, base + run * stride
        out[k] = flat[row + q - run_start]


def _scatter_kernel(
    flat: Any, base: int, length: int, stride: int, positions: Any, values: Any
) -> None:  # pragma: no cover - compiled
    run_start, run_end, row = 0, length, base
    for k in range(positions.size):
        q = np.int64(positions[k])
        if q >= run_end:
            run = q // length
            run_start, run_end, row = run * length, (run + 1) * length, base + run * stride
        flat[row + q - run_start] = values[k]


def _verify_kernel(
    flat: Any, base: int, length: int, stride: int, positions: Any, values: Any
) -> bool:  # pragma: no cover - compiled
    run_start, run_end, row = 0, length, base
    for k in range(positions.size):
        q = np.int64(positions[k])
        if q >= run_end:
            run = q // length
            run_start, run_end, row = run * length, (run + 1) * length, base + run * stride
        if flat[row + q - run_start] != values[k]:
            return False
    return True


def _of_diff(unit: Any) -> Signature:
    return (array(unit), array(unit), INT, INT, INT, INT, array(U32, writable=True), INT)


def _of_take(unit: Any) -> Signature:
    return (array(unit), INT, INT, INT, array(U32), array(unit, writable=True))


def _of_scatter(unit: Any) -> Signature:
    return (array(unit, writable=True), INT, INT, INT, array(U32), array(unit))


def _of_verify(unit: Any) -> Signature:
    return (array(unit), INT, INT, INT, array(U32), array(unit))


_diff = compiled(_diff_kernel, _of_diff)
_take = compiled(_take_kernel, _of_take)
_scatter = compiled(_scatter_kernel, _of_scatter)
_verify = compiled(_verify_kernel, _of_verify)
