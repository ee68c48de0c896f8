"""Clocks of a frame's lanes, a block at a time: how far each lane's clock is at each of its pieces, changes left aside.

A block is ROWS pieces of every lane. Its sums do not depend on what changes, so they are made without a branch, and both directions of the
coder look up in them where a change lies.
"""

# pyright: basic, reportCallIssue=false
# compiled functions have no annotations: numba infers their types at the call, and gives an intrinsic its first argument

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from syncline.kernels import vectors
from syncline.kernels.vectors import SQUARE, columns_before, prefetch

LANES = 32
ROWS = 64
WINDOW = 32
"""Rows that `row_beyond` compares at once."""
STRIDE = ROWS + WINDOW + 1
"""Clocks of a lane: before each row, behind the last one, and FAR where a window reaches beyond. Odd, so that lanes share no cache set."""
AHEAD = 4
"""Cache lines of the next block that are asked for at a change: while a change is coded, memory has nothing else to do."""
_LINE = 4
"""Pieces of a cache line."""
FAR = (1 << 31) - 1
"""Beyond any clock of a block: 64 pieces of 16 units of 2^18 ticks, and a horizon."""


@nb.njit(inline="always")
def context(unit, shift, mask):
    """Unsigned, so that a look-up needs no test for negative places."""
    return np.uint64(unit) >> np.uint64(shift) & np.uint64(mask)


@nb.njit(nogil=True, error_model="numpy", _nrt=False)
def plain_sums(units, start, count, widths, tables, low, sums, shift, mask, piece):
    """Sums of `count` whole pieces from unit `start` on. Returns how many it made: all. `low` is the table's `window`."""
    for i in range(count):
        total = np.uint32(0)
        for j in range(piece):
            total += widths[context(units[np.uint64(start + i * piece + j)], shift, mask)]
        sums[i] = total
    return count


@nb.njit(nogil=True, error_model="numpy", _nrt=False)
def vector_sums(units, start, count, widths, tables, low, sums, shift, mask, piece):
    """Likewise, several at once; leaves a rest to another."""
    at_once = 8 if piece < 16 else 4
    whole = count // at_once * at_once
    if low < 0:
        for i in range(0, whole, at_once):
            vectors.piece_sums(units, start + i * piece, tables, None, sums, i, shift, mask)
    else:
        for i in range(0, whole, at_once):
            vectors.piece_sums(units, start + i * piece, tables, low, sums, i, shift, mask)
    return whole


@nb.njit(inline="always")
def plain_running_sums(units, at, widths, tables, low, sums, limit, shift, mask, piece):
    """sums[1..]: widths of the units of the piece at `at`, summed up to each. Returns how many of these do not exceed `limit`."""
    total = np.int64(0)
    within = np.int64(0)
    for j in range(min(piece, units.size - at)):
        total += np.int64(widths[context(units[np.uint64(at + j)], shift, mask)])
        sums[np.uint64(j + 1)] = total
        within += total <= limit
    return within


@nb.njit(inline="always")
def vector_running_sums(units, at, widths, tables, low, sums, limit, shift, mask, piece):
    """Likewise."""
    if at + piece > units.size:
        return plain_running_sums(units, at, widths, tables, low, sums, limit, shift, mask, piece)
    if low < 0:
        return vectors.running_sums(units, at, tables, None, sums, np.int32(limit), shift, mask)
    return vectors.running_sums(units, at, tables, low, sums, np.int32(limit), shift, mask)


@nb.njit(nogil=True, error_model="numpy", _nrt=False)
def window(widths):
    """The first of 64 contexts such that all before have its width, and all behind that of the last one; -1 where there are none."""
    first = 0
    while first < 192 and widths[first + 1] == widths[0]:
        first += 1
    for at in range(first + 64, 256):
        if widths[at] != widths[first + 63]:
            return -1
    return first


running_sums = vector_running_sums if vectors.has_byte_permutes() else plain_running_sums
_sums = vector_sums if vectors.has_byte_permutes() else plain_sums


@nb.njit(inline="always")
def fetch_ahead(units, at, piece):
    """Ask for the next lines from unit `at` on, in the frame or behind it. Returns where to go on."""
    for line in range(AHEAD):
        prefetch(units, at + line * _LINE * piece)
    return at + AHEAD * _LINE * piece


def clocks_for(lanes: int) -> NDArray[np.int32]:
    """What `fill` fills: STRIDE places a lane, FAR where it does not write, and one more a lane that it works in."""
    return np.full(lanes * (STRIDE + 1), FAR, np.int32)


@nb.njit(nogil=True, error_model="numpy", _nrt=False)
def fill(clocks, units, start, lanes, widths, tables, low, sums, shift, mask, piece):
    """clocks[lane * STRIDE + row]: widths of the lane's units in the block at `start` before that row; beyond the frame there are none.

    `clocks` are `clocks_for` the lanes; `sums` has ROWS * LANES. Returns the units of the block.
    """
    left = min(units.size - start, ROWS * lanes * piece)
    count = left // piece
    done = _sums(units, start, count, widths, tables, low, sums, shift, mask, piece)
    for i in range(done, ROWS * lanes):
        total = np.uint32(0)
        for at in range(start + i * piece, min(start + (i + 1) * piece, units.size)):
            total += widths[context(units[at], shift, mask)]
        sums[i] = total
    if lanes % SQUARE == 0:
        ends = clocks[lanes * STRIDE :]
        for lane in range(0, lanes, SQUARE):
            for i in range(SQUARE):
                ends[np.uint64(lane + i)] = 0
            for row in range(0, ROWS, SQUARE):
                columns_before(sums, row * lanes + lane, lanes, ends, lane, clocks, lane * STRIDE + row, STRIDE)
        for lane in range(lanes):
            clocks[np.uint64(lane * STRIDE + ROWS)] = ends[np.uint64(lane)]
        return left
    for lane in range(lanes):
        clock = np.uint32(0)
        at = np.uint64(lane * STRIDE)
        for row in range(ROWS):
            clocks[at + np.uint64(row)] = clock
            clock = np.uint32(clock + sums[np.uint64(row * lanes + lane)])
        clocks[at + np.uint64(ROWS)] = clock
    return left


@nb.njit(inline="always")
def row_beyond(clocks, lane, row, aim):
    """The first row from `row` on that ends beyond `aim`; ROWS where none does."""
    at = lane * STRIDE + 1
    found = vectors.beyond(clocks, at + row, np.int32(aim))
    while found == 0:
        row += WINDOW
        found = vectors.beyond(clocks, at + row, np.int32(aim))
    return row + vectors.lowest(found)
