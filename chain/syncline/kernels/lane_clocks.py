"""Clocks of a frame's lanes, a block at a time: how far each lane's clock is at each of its pieces, changes left aside.

A block is ROWS pieces of every lane. Its sums do not depend on what changes, so they are made without a branch, and both directions of the
coder look up in them where a change lies.
"""

# pyright: basic, reportCallIssue=false
# compiled functions have no annotations: numba infers their types at the call, and gives an intrinsic its first argument

from __future__ import annotations

import numba as nb
import numpy as np

from syncline.kernels import vectors

LANES = 32
ROWS = 64
WINDOW = 32
"""Rows that `row_beyond` compares at once."""
STRIDE = ROWS + WINDOW + 1
"""Clocks of a lane: before each row, behind the last one, and FAR where a window reaches beyond. Odd, so that lanes share no cache set."""
FAR = (1 << 31) - 1
"""Beyond any clock of a block: 64 pieces of 16 units of 2^18 ticks, and a horizon."""


@nb.njit(inline="always")
def context(unit, shift, mask):
    """Unsigned, so that a look-up needs no test for negative places."""
    return np.uint64(unit) >> np.uint64(shift) & np.uint64(mask)


@nb.njit(nogil=True, error_model="numpy")
def plain_sums(units, start, count, widths, tables, sums, shift, mask, piece):
    """Sums of `count` whole pieces from unit `start` on. Returns how many it made: all."""
    for i in range(count):
        total = np.uint32(0)
        for j in range(piece):
            total += widths[context(units[np.uint64(start + i * piece + j)], shift, mask)]
        sums[i] = total
    return count


@nb.njit(nogil=True, error_model="numpy")
def vector_sums(units, start, count, widths, tables, sums, shift, mask, piece):
    """Likewise, several at once; leaves a rest to another."""
    at_once = 8 if piece < 16 else 4
    whole = count // at_once * at_once
    for i in range(0, whole, at_once):
        vectors.piece_sums(units, start + i * piece, tables, sums, i, shift, mask)
    return whole


_sums = vector_sums if vectors.has_byte_permutes() else plain_sums


@nb.njit(nogil=True, error_model="numpy")
def fill(clocks, units, start, lanes, widths, tables, sums, shift, mask, piece):
    """clocks[lane * STRIDE + row]: widths of the lane's units in the block at `start` before that row; beyond the frame there are none.

    `clocks` has STRIDE places a lane, FAR at first; `sums` has ROWS * LANES. Returns the units of the block.
    """
    left = min(units.size - start, ROWS * lanes * piece)
    count = left // piece
    done = _sums(units, start, count, widths, tables, sums, shift, mask, piece)
    for i in range(done, ROWS * lanes):
        total = np.uint32(0)
        for at in range(start + i * piece, min(start + (i + 1) * piece, units.size)):
            total += widths[context(units[at], shift, mask)]
        sums[i] = total
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
