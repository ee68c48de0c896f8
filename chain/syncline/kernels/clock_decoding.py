"""The context coder backwards: from words to changes, all lanes of a frame side by side (wire/FORMAT.md, `context`).

Whatever the words are, nothing outside the frame, the words and the outputs is read or written, and every loop ends: an event moves its
lane on, or its aim by a horizon.
"""

# pyright: basic, reportCallIssue=false
# compiled functions have no annotations: numba infers their types at the call, and gives an intrinsic its first argument

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from syncline.kernels.clock import (
    COUNT,
    DONE,
    ESCAPE,
    NIBBLES,
    NO_MOVE,
    RANGE,
    SIGNED,
    TAIL,
    VALUE_BITS,
    WORDS,
    Alphabet,
    nibble,
    ordered,
    share,
    target,
)
from syncline.kernels.compiling import I32, INT, U8, U16, U32, U64, Signature, array, compiled
from syncline.kernels.lane_clocks import (
    LANES,
    ROWS,
    STRIDE,
    clocks_for,
    context,
    fetch_ahead,
    fill,
    row_beyond,
    running_sums,
    window,
)
from syncline.kernels.vectors import ones

_STATE, _PLACE, _END, _AIM, _ORIGIN, _ROW, _CLOCK, _UNIT = (np.uint64(n) for n in range(8))
"""A lane's book: its state; the place of its next word, and where they end; beyond which clock of the block its next change or miss lies,
and since which clock that counts; the row where it lies, or to look on at; the unit where it lies, and the clock before that."""
_BOOK = 8


@nb.njit(inline="always")
def _step(x, frequency, start, bits):
    return frequency * (x >> bits) + (x & ((np.int64(1) << bits) - 1)) - start


@nb.njit(inline="always")
def _refill(x, words, at, end):
    if at < end:  # a word more or not, without a branch to guess; a second one is rare
        short = np.int64(x < 4294967296)
        x = x << (short << 4) | np.int64(words[np.uint64(at)]) & -short
        at += short
        while x < 4294967296 and at < end:
            x = x << 16 | np.int64(words[np.uint64(at)])
            at += 1
    return x, at


def _decode_kernel(alphabet: Alphabet):
    bits, order = alphabet.bits, alphabet.order
    shift, mask, piece = alphabet.shift, alphabet.mask, alphabet.piece
    top = 1 << (bits - 1)

    def kernel(base, widths, tables, lists, guides, entries, z, words, ends, lane_bits, positions, values, olds,
        clocks, sums, within, books, active, marks, ranks, met, became):  # fmt: skip
        """Changes of a frame, in frame order. `ends` holds where each lane's words begin, then where the last one's end.

        A context's list has 64 guides: where in `entries` to begin looking for a slot of that 64th. An entry is start |
        frequency - 1 << 12 | symbol << 24. Returns how it ended and the number of changes found; never more than `positions` holds.
        """
        lanes = 1 << lane_bits
        horizon = np.int64(4) << z
        slots = (np.int64(16) << z) - 1
        missed = np.int64(1) << z
        for lane in range(lanes):
            x, at = _refill(np.int64(0), words, ends[lane], ends[lane + 1])
            book = np.uint64(lane * _BOOK)
            books[book + _STATE], books[book + _PLACE], books[book + _END] = x, at, ends[lane + 1]
            books[book + _AIM] = target(x & slots, z)
        block = ROWS * lanes * piece
        found = 0
        narrow = window(widths)
        for start in range(0, base.size, block):
            fill(clocks, base, start, lanes, widths, tables, narrow, sums, shift, mask, piece)
            here = 0
            ahead = start + block
            for lane in range(lanes):
                active[lane] = lane
                books[np.uint64(lane * _BOOK) + _ROW] = 0
            left = lanes
            while left:  # each lane's next change or miss, in three loops so short that the processor is in several lanes at once
                turn = 0
                for lane in range(left):
                    lane = active[np.uint64(lane)]
                    book = np.uint64(lane * _BOOK)
                    row = row_beyond(clocks, lane, books[book + _ROW], books[book + _AIM])
                    books[book + _ROW] = row
                    active[np.uint64(turn)] = lane
                    turn += row < ROWS
                left = turn
                for turn in range(left):
                    lane = active[np.uint64(turn)]
                    book = np.uint64(lane * _BOOK)
                    aim, row = books[book + _AIM], books[book + _ROW]
                    first = start + ((row << lane_bits) + lane) * piece
                    ahead = fetch_ahead(base, ahead, piece)
                    clock = np.int64(clocks[np.uint64(lane * STRIDE + row)])
                    count = running_sums(base, first, widths, tables, narrow, within, aim - clock, shift, mask, piece)
                    books[book + _CLOCK] = clock + np.int64(within[np.uint64(count)])
                    # A base that moves under the decoder may leave no unit beyond the aim: the place stays inside the block.
                    books[book + _UNIT] = min(first + count - start, base.size - 1 - start, block - 1)
                for turn in range(left):
                    lane = active[np.uint64(turn)]
                    book = np.uint64(lane * _BOOK)
                    x, at, limit = books[book + _STATE], books[book + _PLACE], books[book + _END]
                    origin = books[book + _ORIGIN]
                    if x & slots < missed:
                        x, at = _refill(_step(x, missed, np.int64(0), z + 4), words, at, limit)
                        origin += horizon
                        books[book + _STATE], books[book + _PLACE], books[book + _ORIGIN] = x, at, origin
                        books[book + _AIM] = origin + target(x & slots, z)
                        continue
                    if found + here == positions.size:
                        return COUNT, found
                    unit, clock = books[book + _UNIT], books[book + _CLOCK]
                    old = np.int64(base[np.uint64(start + unit)])
                    of = context(old, shift, mask)
                    close = clock + np.int64(widths[of])
                    begin = share(max(clock - origin, 0), z)
                    x = _step(x, share(min(close - origin, horizon), z) - begin, begin, z + 4)
                    x, at = _refill(x, words, at, limit)
                    slot = x & ((1 << VALUE_BITS) - 1)
                    place = np.int64(guides[np.uint64(np.int64(lists[of]) << 6 | slot >> 6)])
                    entry = np.int64(entries[np.uint64(place)])
                    while slot - (entry & 4095) > entry >> 12 & 4095:
                        place += 1
                        entry = np.int64(entries[np.uint64(place)])
                    x = _step(x, (entry >> 12 & 4095) + 1, entry & 4095, VALUE_BITS)
                    x, at = _refill(x, words, at, limit)
                    symbol = entry >> 24
                    if symbol == ESCAPE:
                        new = np.int64(0)
                        for low in range(0, bits, 16):
                            part = min(16, bits - low)
                            raw = x & ((np.int64(1) << part) - 1)
                            new |= raw << low
                            x = _step(x, np.int64(1), raw, part)
                            x, at = _refill(x, words, at, limit)
                        if new == old:
                            return NO_MOVE, found
                    elif order == NIBBLES:
                        low = nibble((nibble(old & 15) + symbol) & 15)
                        high = nibble((nibble(old >> 4) + (symbol >> 4)) & 15)
                        new = high << 4 | low
                    elif bits == 8:
                        new = ordered(old, bits, order) + symbol & 255
                        if order == SIGNED and new >= top:
                            new = 383 - new
                    else:
                        if symbol <= 16:
                            step = (symbol + 1) >> 1
                            sign = (symbol - 1) & 1
                        elif symbol <= 29:
                            k = symbol - 14
                            raw = x & ((np.int64(2) << k) - 1)
                            x = _step(x, np.int64(1), raw, k + 1)
                            x, at = _refill(x, words, at, limit)
                            step = (np.int64(1) << k) + (raw >> 1) + 1
                            sign = raw & 1
                        else:
                            return RANGE, found
                        new = ordered(old, bits, order) + (-step if sign else step)
                        if order == SIGNED:
                            if new < -top or new >= top:
                                return RANGE, found
                            new = top - 1 - new if new < 0 else new
                        elif new < 0 or new >= 2 * top:
                            return RANGE, found
                    met[np.uint64(here)] = unit
                    became[np.uint64(here)] = new
                    here += 1
                    marks[np.uint64(unit >> 6)] |= np.uint64(1) << np.uint64(unit & 63)
                    books[book + _STATE], books[book + _PLACE], books[book + _ORIGIN] = x, at, close
                    books[book + _AIM] = close + target(x & slots, z)
            rank = found
            for word in range(marks.size):
                ranks[word] = rank
                rank += ones(marks[word])
            if rank != found + here:
                return COUNT, found  # the base moved meanwhile
            for i in range(here):
                unit = np.int64(met[i])
                mark = np.uint64(1) << np.uint64(unit & 63)
                word = np.uint64(unit >> 6)
                at = np.uint64(ranks[word] + ones(marks[word] & (mark - np.uint64(1))))
                positions[at] = start + unit
                values[at] = became[i]
                olds[at] = base[np.uint64(start + unit)]
            marks[:] = 0
            found += here
            for lane in range(lanes):
                total = np.int64(clocks[lane * STRIDE + ROWS])
                books[np.uint64(lane * _BOOK) + _ORIGIN] -= total
                books[np.uint64(lane * _BOOK) + _AIM] -= total
        for lane in range(lanes):
            x, at = books[np.uint64(lane * _BOOK) + _STATE], books[np.uint64(lane * _BOOK) + _PLACE]
            if books[np.uint64(lane * _BOOK) + _ORIGIN] < 0:
                if x & slots >= missed:
                    return TAIL, found
                x = _step(x, missed, np.int64(0), z + 4)
                x, at = _refill(x, words, at, ends[lane + 1])
            if x != 0 or at != ends[lane + 1]:
                return WORDS, found
        return (DONE if found == positions.size else COUNT), found

    return kernel


def _of_decode(unit) -> Signature:
    clocks, numbers = array(I32, writable=True), array(INT, writable=True)
    return (
        array(unit), array(U32), array(U8), array(U32), array(U32), array(U32), INT, array(U16), array(INT), INT,
        array(U32, writable=True), array(unit, writable=True), array(unit, writable=True),
        clocks, array(U32, writable=True), clocks, numbers, numbers, array(U64, writable=True), numbers,
        array(U32, writable=True), array(unit, writable=True),
    )  # fmt: skip


def scratch(alphabet: Alphabet, lanes: int, changed: int) -> tuple[NDArray[Any], ...]:
    """What the loop works in, for a frame of so many lanes and changes."""
    block = ROWS * lanes * alphabet.piece
    most = min(block, changed)
    return (
        clocks_for(lanes), np.empty(ROWS * LANES, np.uint32), np.zeros(1 + alphabet.piece, np.int32),
        np.zeros(LANES * _BOOK, np.int64), np.empty(LANES, np.int64), np.zeros(block // 64, np.uint64),
        np.empty(block // 64, np.int64), np.empty(most, np.uint32), np.empty(most, alphabet.unit),
    )  # fmt: skip


@cache
def decode(alphabet: Alphabet) -> Callable[..., Any]:
    """Compiled loop; see `_decode_kernel`."""
    return compiled(_decode_kernel(alphabet), _of_decode)(alphabet.unit)
