"""The digest of flat units, and how it changes with them, at memory speed. The arithmetic is `wire.digest`'s.

32-bit words, 64-bit sums: both lanes vectorize. A unit of 8 bytes is two words, so its tensor is seen as 32-bit words at
twice the position.
"""

from __future__ import annotations

from typing import Any

import numba  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from numpy.typing import NDArray

from syncline.kernels.compiling import INT, U32, Signature, Units, array, compiled
from syncline.wire import digest as plain
from syncline.wire.digest import MASK32, Digest
from syncline.wire.tiling import Frame

A1, A2 = np.uint32(plain.A1), np.uint32(plain.A2)
B1, B2 = np.uint32(plain.B1), np.uint32(plain.B2)
H1, H2 = np.uint32(plain.H1), np.uint32(plain.H2)
M1, M2 = np.uint32(plain.M1), np.uint32(plain.M2)
_u32 = np.uint32
_u64 = np.uint64


def digest_units(flat: Units, seed: tuple[int, int], *, start: int = 0) -> Digest:
    """What the units of a tensor, the first of them at position `start`, add to its digest."""
    if flat.dtype.itemsize == 8:
        flat, start = flat.view(np.uint32), 2 * start
    lane1, lane2 = _digest(flat.dtype)(flat, start, _u32(seed[0]), _u32(seed[1]))
    return Digest(int(lane1), int(lane2))


def digest_change(
    seed: tuple[int, int], frame: Frame, *, positions: NDArray[np.uint32], old: Units, new: Units
) -> Digest:
    """How the digest of a tensor changes when `old` becomes `new` at `positions` of `frame`."""
    geometry = (frame.base, frame.length, frame.stride)
    seeds = (_u32(seed[0]), _u32(seed[1]))
    if old.dtype.itemsize == 8:
        words = (np.ascontiguousarray(old).view(np.uint32), np.ascontiguousarray(new).view(np.uint32))
        lane1, lane2 = _change_of_pairs(np.dtype(np.uint32))(positions, *words, *geometry, *seeds)
    else:
        lane1, lane2 = _change(old.dtype)(positions, old, new, *geometry, *seeds)
    return Digest(int(lane1), int(lane2))


@numba.njit(inline="always")
def _mix(x: Any, multiplier: Any) -> Any:  # pragma: no cover - compiled
    x = _u32(x ^ (x >> _u32(16)))
    x = _u32(x * multiplier)
    return _u32(x ^ (x >> _u32(15)))


@numba.njit(inline="always")
def _word(position: Any, bits: Any, s1: Any, s2: Any) -> Any:  # pragma: no cover - compiled
    low, high = _u32(position & MASK32), _u32(position >> 32)
    x1 = _u64(_mix(_u32(_u32(low * A1) + _u32(bits * B1) + _u32(high * H1) + s1), M1))
    x2 = _u64(_mix(_u32(_u32(low * A2) + _u32(bits * B2) + _u32(high * H2) + s2), M2))
    return _u64(_u64(x2 << _u64(32)) | x1), _u64(x1 * x2)


def _digest_kernel(words: Any, start: int, s1: Any, s2: Any) -> Any:  # pragma: no cover - compiled
    lane1, lane2 = _u64(0), _u64(0)
    at = 0
    while at < words.size:
        position = start + at
        low, high = position & MASK32, _u32(position >> 32)
        count = min(words.size - at, (1 << 32) - low)  # inside, the high half of the position stands still
        c1 = _u32(_u32(_u32(low) * A1) + _u32(high * H1) + s1)
        c2 = _u32(_u32(_u32(low) * A2) + _u32(high * H2) + s2)
        for j in range(count):
            bits = _u32(words[at + j])
            x1 = _u64(_mix(_u32(_u32(_u32(j) * A1) + _u32(bits * B1) + c1), M1))
            x2 = _u64(_mix(_u32(_u32(_u32(j) * A2) + _u32(bits * B2) + c2), M2))
            lane1 += _u64(x2 << _u64(32)) | x1
            lane2 += x1 * x2
        at += count
    return lane1, lane2


def _change_kernel(
    positions: Any, old: Any, new: Any, base: int, length: int, stride: int, s1: Any, s2: Any
) -> Any:  # pragma: no cover - compiled
    lane1, lane2 = _u64(0), _u64(0)
    run_start, run_end = 0, length
    row = base
    for k in range(positions.size):
        q = np.int64(positions[k])
        if q >= run_end:
            run = q // length
            run_start, run_end, row = run * length, (run + 1) * length, base + run * stride
        at = row + q - run_start
        n1, n2 = _word(at, _u32(new[k]), s1, s2)
        o1, o2 = _word(at, _u32(old[k]), s1, s2)
        lane1 += n1 - o1
        lane2 += n2 - o2
    return lane1, lane2


def _change_of_pairs_kernel(
    positions: Any, old: Any, new: Any, base: int, length: int, stride: int, s1: Any, s2: Any
) -> Any:  # pragma: no cover - compiled
    lane1, lane2 = _u64(0), _u64(0)
    for k in range(positions.size):
        q = np.int64(positions[k])
        at = 2 * (base + q // length * stride + q % length)
        for half in range(2):
            n1, n2 = _word(at + half, new[2 * k + half], s1, s2)
            o1, o2 = _word(at + half, old[2 * k + half], s1, s2)
            lane1 += n1 - o1
            lane2 += n2 - o2
    return lane1, lane2


def _of_words(unit: Any) -> Signature:
    return (array(unit), INT, U32, U32)


def _of_change(unit: Any) -> Signature:
    return (array(U32), array(unit), array(unit), INT, INT, INT, U32, U32)


_digest = compiled(_digest_kernel, _of_words)
_change = compiled(_change_kernel, _of_change)
_change_of_pairs = compiled(_change_of_pairs_kernel, _of_change)
