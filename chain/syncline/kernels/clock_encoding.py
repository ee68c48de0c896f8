"""The context coder forwards: clocks at the changes of a frame, then words, last change first (wire/FORMAT.md, `context`)."""

# pyright: basic
# compiled functions have no annotations: numba infers their types at the call

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from syncline.kernels.clock import ESCAPE, UNCODABLE, VALUE_BITS, Alphabet, share, symbol_of
from syncline.kernels.compiling import I32, INT, U8, U16, U32, Signature, array, compiled
from syncline.kernels.lane_clocks import (
    LANES,
    ROWS,
    STRIDE,
    clocks_for,
    context,
    fetch_ahead,
    fill,
    running_sums,
    window,
)


@nb.njit(inline="always")
def _put(x, frequency, start, bits, words, at):
    """Code a symbol: new state, and where the words now begin; they grow towards lower places, of which one more may be written."""
    limit = np.int64(frequency) << (48 - bits)
    words[np.uint64(at - 1)] = x & 65535  # a word or not, without a branch to guess; a second one is rare
    full = np.int64(x >= limit)
    x >>= full << 4
    at -= full
    while x >= limit:
        at -= 1
        words[np.uint64(at)] = x & 65535
        x >>= 16
    quotient = np.int64(np.uint64(x) // np.uint64(frequency))
    return (quotient << bits) + (x - quotient * frequency) + start, at


def _clocks_kernel(alphabet: Alphabet):
    shift, mask, piece = alphabet.shift, alphabet.mask, alphabet.piece

    def kernel(base, positions, widths, tables, z, lane_bits, clocks, tails, at_row, sums, within, origins, changes):
        """The clock of its lane since the change before, at each change in frame order; and since the last one, a lane.

        Returns how many changes the fullest lane has, and how many horizons all clocks passed.
        """
        lanes = 1 << lane_bits
        block = ROWS * lanes * piece
        done = 0
        horizons = 0
        narrow = window(widths)
        for start in range(0, base.size, block):
            fill(at_row, base, start, lanes, widths, tables, narrow, sums, shift, mask, piece)
            ahead = start + block
            while done < positions.size and np.int64(positions[np.uint64(done)]) < start + block:
                position = np.int64(positions[np.uint64(done)])
                number = (position - start) // piece
                lane = number & (lanes - 1)
                at_lane = np.uint64(lane)
                clock = np.int64(at_row[np.uint64(lane * STRIDE + (number >> lane_bits))])
                first = start + number * piece
                ahead = fetch_ahead(base, ahead, piece)
                unit = np.uint64(position - first)
                running_sums(base, first, widths, tables, narrow, within, np.int64(0), shift, mask, piece)
                clock += np.int64(within[unit])
                past = clock - origins[at_lane]
                clocks[np.uint64(done)] = past
                horizons += past >> (z + 2)
                origins[at_lane] = clock + np.int64(within[unit + np.uint64(1)] - within[unit])
                changes[at_lane] += 1
                done += 1
            for lane in range(lanes):
                origins[lane] -= at_row[lane * STRIDE + ROWS]
        for lane in range(lanes):
            tails[lane] = -origins[lane]
            horizons += -origins[lane] >> (z + 2)
        fullest = np.int64(0)
        for lane in range(lanes):
            fullest = max(fullest, changes[lane])
        return fullest, horizons

    return kernel


def _encode_kernel(alphabet: Alphabet):
    bits, order = alphabet.bits, alphabet.order
    shift, mask, piece = alphabet.shift, alphabet.mask, alphabet.piece

    def kernel(positions, before, after, clocks, tails, widths, lists, codes, z, words, at, states, begins):
        """All lanes, last change first. `words` is one row of `at` words a lane; `begins` says where each lane's words begin.

        Lists of a context, and codes (start << 16 | frequency, 0 for none) of list * 256 + symbol. Returns the number of changes, or
        UNCODABLE.
        """
        lanes = tails.size
        horizon = np.int64(4) << z
        one = np.int64(1) << z
        for lane in range(lanes):
            end = at * (lane + 1)
            x = np.int64(0)
            if tails[lane] & (horizon - 1):
                x, end = _put(x, one, np.int64(0), z + 4, words, end)
            for _ in range(tails[lane] >> (z + 2)):
                x, end = _put(x, one, np.int64(0), z + 4, words, end)
            states[lane] = x
            begins[lane] = end
        for change in range(positions.size - 1, -1, -1):
            change = np.uint64(change)
            lane = np.uint64(np.int64(positions[change]) // piece & (lanes - 1))
            x, end = states[lane], begins[lane]
            old, new = np.int64(before[change]), np.int64(after[change])
            of = context(before[change], shift, mask)
            width = np.int64(widths[of])
            row = np.int64(lists[of]) * 256
            symbol, raw, left = symbol_of(old, new, bits, order)
            code = np.int64(codes[np.uint64(row + symbol)])
            if code == 0:
                symbol, raw, left = np.int64(ESCAPE), new, bits
                code = np.int64(codes[np.uint64(row + ESCAPE)])
            if code == 0 or width == 0:
                return UNCODABLE
            if left > 16:
                x, end = _put(x, np.int64(1), raw >> 16, left - 16, words, end)
                x, end = _put(x, np.int64(1), raw & 65535, 16, words, end)
            elif left:
                x, end = _put(x, np.int64(1), raw, left, words, end)
            x, end = _put(x, code & 65535, code >> 16, VALUE_BITS, words, end)
            misses = clocks[change] >> (z + 2)
            clock = clocks[change] & (horizon - 1)
            close = clock + width
            if close > horizon and horizon - clock < close - horizon:
                misses += 1
                close -= horizon
                clock = np.int64(0)
            first = share(clock, z)
            x, end = _put(x, share(min(close, horizon), z) - first, first, z + 4, words, end)
            for _ in range(misses):
                x, end = _put(x, one, np.int64(0), z + 4, words, end)
            states[lane] = x
            begins[lane] = end
        for lane in range(lanes):
            x, end = states[lane], begins[lane]
            while x:
                end -= 1
                words[end] = x & 65535
                x >>= 16
            begins[lane] = end
        return positions.size

    return kernel


def _of_clocks(unit) -> Signature:
    out = array(INT, writable=True)
    clocks = array(I32, writable=True)
    return (
        array(unit),
        array(U32),
        array(U32),
        array(U8),
        INT,
        INT,
        out,
        out,
        clocks,
        array(U32, writable=True),
        clocks,
        out,
        out,
    )


def scratch(alphabet: Alphabet, lanes: int) -> tuple[NDArray[Any], ...]:
    """What `clocks` works in, for a frame of so many lanes."""
    return (
        clocks_for(lanes), np.empty(ROWS * LANES, np.uint32), np.zeros(1 + alphabet.piece, np.int32),
        np.zeros(LANES, np.int64), np.zeros(LANES, np.int64),
    )  # fmt: skip


def _of_encode(unit) -> Signature:
    row = array(INT, writable=True)
    return (
        array(U32), array(unit), array(unit), array(INT), array(INT), array(U32), array(U32), array(U32), INT,
        array(U16, writable=True), INT, row, row,
    )  # fmt: skip


@cache
def clocks(alphabet: Alphabet) -> Callable[..., Any]:
    """Compiled loop; see `_clocks_kernel`."""
    return compiled(_clocks_kernel(alphabet), _of_clocks)(alphabet.unit)


@cache
def encode(alphabet: Alphabet) -> Callable[..., Any]:
    """Compiled loop; see `_encode_kernel`."""
    return compiled(_encode_kernel(alphabet), _of_encode)(alphabet.unit)
