"""The digest at memory speed: 32-bit multiplications that vectorise, 64-bit sums (wire.digest has the formula)."""

# pyright: basic, reportCallIssue=false
# compiled functions have no annotations: numba infers their types at the call, and gives an intrinsic its first argument

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from syncline.kernels.compiling import INT, U32, Signature, array, compiled
from syncline.kernels.frames import LINE, RUNS_AHEAD, SHORT, check_inside
from syncline.kernels.vectors import prefetch
from syncline.wire import digest as wire
from syncline.wire.digest import MASK32, MASK64, Digest
from syncline.wire.tiling import Frame

Units = NDArray[np.unsignedinteger]

_A1, _A2 = np.uint32(wire.A1), np.uint32(wire.A2)
_B1, _B2 = np.uint32(wire.B1), np.uint32(wire.B2)
_H1, _H2 = np.uint32(wire.H1), np.uint32(wire.H2)
_M1, _M2 = np.uint32(wire.M1), np.uint32(wire.M2)


def digest_units(flat: Units, seed: tuple[int, int], *, start: int = 0) -> Digest:
    """Digest of a flat contiguous unit view whose first unit stands at position `start` of its tensor."""
    words = flat.view(np.uint32) if flat.itemsize == 8 else flat
    at = 2 * start if flat.itemsize == 8 else start
    kernel = _sum_words(words.dtype)
    lane1 = lane2 = done = 0
    while done < words.size:
        low, high = (at + done) & MASK32, (at + done) >> 32
        # The high half of the position is folded into the seeds, so it must not change within a call.
        count = min(words.size - done, MASK32 + 1 - low)
        s1, s2 = (seed[0] + high * wire.H1) & MASK32, (seed[1] + high * wire.H2) & MASK32
        part1, part2 = kernel(words[done : done + count], np.uint32(low), np.uint32(s1), np.uint32(s2))
        lane1, lane2, done = lane1 + int(part1), lane2 + int(part2), done + count
    return Digest(lane1 & MASK64, lane2 & MASK64)


def digest_frame(flat: Units, there: Frame, frame: Frame, seed: tuple[int, int]) -> Digest:
    """What the units that lie as `there` says add to the digest of a tensor in which they are `frame`: position for position."""
    check_inside(flat, there)
    if there.units != frame.units:
        raise IndexError(f"{there} and {frame} do not have the same units")
    if there.runs == frame.runs == 1:
        return digest_units(flat[there.base : there.base + there.units], seed, start=frame.base)
    scale = 2 if flat.itemsize == 8 else 1
    words = flat.view(np.uint32) if scale == 2 else flat
    rows = (there.base, max(there.length, 1), there.stride, frame.base, max(frame.length, 1), frame.stride)
    lane1, lane2 = _sum_rows(words.dtype)(words, *rows, frame.units, scale, np.uint32(seed[0]), np.uint32(seed[1]))
    return Digest(int(lane1), int(lane2))


def change_digest(frame: Frame, positions: NDArray[np.uint32], old: Units, new: Units, seed: tuple[int, int]) -> Digest:
    """What changing `old` to `new` at ascending frame-relative `positions` adds to the tensor's digest."""
    if not old.size == new.size == positions.size:
        raise IndexError(f"{old.size} old and {new.size} new units for {positions.size} positions")
    geometry = (frame.base, max(frame.length, 1), frame.stride)
    s1, s2 = np.uint32(seed[0]), np.uint32(seed[1])
    if new.itemsize < 8:
        lane1, lane2 = _sum_changes(new.dtype)(positions, old, new, *geometry, 1, 0, s1, s2)
        return Digest(int(lane1), int(lane2))
    result = Digest()
    for half in (0, 1):
        words = [np.ascontiguousarray(a.view(np.uint32)[half::2]) for a in (old, new)]
        lane1, lane2 = _sum_changes(words[0].dtype)(positions, *words, *geometry, 2, half, s1, s2)
        result = result + Digest(int(lane1), int(lane2))
    return result


@nb.njit(inline="always")
def _mix(x, multiplier):
    x = np.uint32(x ^ (x >> np.uint32(16)))
    x = np.uint32(x * multiplier)
    return np.uint32(x ^ (x >> np.uint32(15)))


def _sum_words_kernel(words, low, s1, s2):
    lane1 = np.uint64(0)
    lane2 = np.uint64(0)
    for i in range(words.size):
        b = np.uint32(words[i])
        p = np.uint32(low + np.uint32(i))
        x1 = _mix(np.uint32(np.uint32(p * _A1) + np.uint32(b * _B1) + s1), _M1)
        x2 = _mix(np.uint32(np.uint32(p * _A2) + np.uint32(b * _B2) + s2), _M2)
        lane1 += (np.uint64(x2) << np.uint64(32)) | np.uint64(x1)
        lane2 += np.uint64(x1) * np.uint64(x2)
    return lane1, lane2


def _sum_rows_kernel(words, base, length, stride, first, row, apart, units, scale, s1, s2):
    lane1 = np.uint64(0)
    lane2 = np.uint64(0)
    at, left = base * scale, length * scale  # in the store: where, and how much of its row is left
    place, rest = first * scale, row * scale  # the same in the tensor
    todo = units * scale
    while todo > 0:
        low, high = np.uint32(place), np.uint32(place >> 32)
        # As in `digest_units`: the high half of the position is folded into the seeds, so no stretch goes beyond it.
        count = min(left, rest, todo, 4294967296 - np.int64(low))
        t1 = np.uint32(s1 + np.uint32(high * _H1))
        t2 = np.uint32(s2 + np.uint32(high * _H2))
        if length < SHORT:
            for line in range(0, count, LINE // words.itemsize):
                prefetch(words, at + RUNS_AHEAD * stride * scale + line)
        for i in range(count):
            b = np.uint32(words[np.uint64(at + i)])
            p = np.uint32(low + np.uint32(i))
            x1 = _mix(np.uint32(np.uint32(p * _A1) + np.uint32(b * _B1) + t1), _M1)
            x2 = _mix(np.uint32(np.uint32(p * _A2) + np.uint32(b * _B2) + t2), _M2)
            lane1 += (np.uint64(x2) << np.uint64(32)) | np.uint64(x1)
            lane2 += np.uint64(x1) * np.uint64(x2)
        todo -= count
        at, left = at + count, left - count
        place, rest = place + count, rest - count
        if left == 0:
            at, left = at + (stride - length) * scale, length * scale
        if rest == 0:
            place, rest = place + (apart - row) * scale, row * scale
    return lane1, lane2


@nb.njit(inline="always")
def _moved(place, old, new, scale, shift, s1, s2):
    p = np.uint64(place * scale + shift)
    low = np.uint32(p)
    high = np.uint32(p >> np.uint64(32))
    t1 = np.uint32(np.uint32(low * _A1) + np.uint32(high * _H1) + s1)
    t2 = np.uint32(np.uint32(low * _A2) + np.uint32(high * _H2) + s2)
    x1 = _mix(np.uint32(t1 + np.uint32(np.uint32(new) * _B1)), _M1)
    x2 = _mix(np.uint32(t2 + np.uint32(np.uint32(new) * _B2)), _M2)
    y1 = _mix(np.uint32(t1 + np.uint32(np.uint32(old) * _B1)), _M1)
    y2 = _mix(np.uint32(t2 + np.uint32(np.uint32(old) * _B2)), _M2)
    lane1 = ((np.uint64(x2) << np.uint64(32)) | np.uint64(x1)) - ((np.uint64(y2) << np.uint64(32)) | np.uint64(y1))
    return lane1, np.uint64(x1) * np.uint64(x2) - np.uint64(y1) * np.uint64(y2)


def _sum_changes_kernel(positions, old, new, base, length, stride, scale, shift, s1, s2):
    lane1 = np.uint64(0)
    lane2 = np.uint64(0)
    if (
        positions.size == 0 or positions[positions.size - 1] < length
    ):  # one run: nothing to follow, so this loop vectorises
        for i in range(positions.size):
            part1, part2 = _moved(base + np.int64(positions[i]), old[i], new[i], scale, shift, s1, s2)
            lane1 += part1
            lane2 += part2
        return lane1, lane2
    start, end, row = 0, length, base
    for i in range(positions.size):
        q = np.int64(positions[i])
        if q >= end:
            run = q // length
            start, end, row = run * length, (run + 1) * length, base + run * stride
        part1, part2 = _moved(row + q - start, old[i], new[i], scale, shift, s1, s2)
        lane1 += part1
        lane2 += part2
    return lane1, lane2


def _of_words(word) -> Signature:
    return (array(word), U32, U32, U32)


def _of_rows(word) -> Signature:
    return (array(word), INT, INT, INT, INT, INT, INT, INT, INT, U32, U32)


def _of_changes(word) -> Signature:
    return (array(U32), array(word), array(word), INT, INT, INT, INT, INT, U32, U32)


_sum_words = compiled(_sum_words_kernel, _of_words)
_sum_rows = compiled(_sum_rows_kernel, _of_rows)
_sum_changes = compiled(_sum_changes_kernel, _of_changes)
