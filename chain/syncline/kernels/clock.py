"""The context coder's loops over one frame: widths summed along a clock, rANS steps at the changes (wire/FORMAT.md, `context`).

A unit costs a look-up and an add; only a change costs arithmetic-coder work. Whatever the words of a payload are, nothing outside the
frame, the words and the outputs is read or written, and every loop ends.
"""

# pyright: basic
# compiled functions have no annotations: numba infers their types at the call

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba as nb
import numpy as np

from syncline.kernels.compiling import INT, U16, U32, Signature, array, compiled

PLAIN, SIGNED, NIBBLES = 0, 1, 2
"""Order of a unit's bit patterns: as they are, sign-magnitude, sign-magnitude a nibble."""
ESCAPE = 0
"""Symbol of a unit that is sent as it is."""
UNCODABLE = -1
"""What encoding returns where a table has no code for a change."""
DONE, COUNT, WORDS, NO_MOVE, RANGE, TAIL = range(6)
"""How decoding ended: well; other changes than promised; words are left over or the state is not the start; an escape that changes
nothing; a step out of range; a lane that ends inside a change."""
VALUE_BITS = 12


@dataclass(frozen=True, slots=True)
class Alphabet:
    """What a unit's bits mean to the coder. Constants of the compiled loops."""

    bits: int
    """8, 16 or 32."""
    shift: int
    mask: int
    """Context of unit x: x >> shift & mask, below 256."""
    order: int
    """PLAIN, SIGNED or NIBBLES."""

    @property
    def unit(self) -> np.dtype[Any]:
        return np.dtype(f"u{self.bits // 8}")

    @property
    def piece(self) -> int:
        """Units dealt to a lane at a time: 16 bytes."""
        return 128 // self.bits


@nb.njit(inline="always")
def share(tick, z):
    """First slot of a tick, 0..4 * 2^z."""
    zone = tick >> z
    return (np.int64(17) << z) - ((np.int64(16) << z) >> zone) + (tick - (zone << z)) * (np.int64(8) >> zone)


@nb.njit(inline="always")
def target(slot, z):
    """The tick that holds a slot; for a miss the last one before the horizon."""
    zone = np.int64(1) << z
    at = slot - zone
    if at < 0:
        return 4 * zone - 1
    if at < 8 * zone:
        return at >> 3
    if at < 12 * zone:
        return zone + ((at - 8 * zone) >> 2)
    if at < 14 * zone:
        return 2 * zone + ((at - 12 * zone) >> 1)
    return 3 * zone + (at - 14 * zone)


@nb.njit(inline="always")
def _nibble(x):
    """Order of a sign-magnitude nibble, modulo 16. Its own inverse."""
    return x if x < 8 else 23 - x


@nb.njit(inline="always")
def _ordered(x, bits, order):
    """Order of a unit of more than four bits."""
    top = np.int64(1) << (bits - 1)
    return top - 1 - x if order == SIGNED and x >= top else x


@nb.njit(inline="always")
def _symbol(old, new, bits, order):
    """Symbol, raw value and raw bits of a change."""
    if order == NIBBLES:
        low = (_nibble(new & 15) - _nibble(old & 15)) & 15
        high = (_nibble(new >> 4) - _nibble(old >> 4)) & 15
        return high << 4 | low, np.int64(0), 0
    d = _ordered(new, bits, order) - _ordered(old, bits, order)
    if bits == 8:
        return d & 255, np.int64(0), 0
    sign = np.int64(d < 0)
    u = abs(d) - 1
    if u < 8:
        return 1 + 2 * u + sign, np.int64(0), 0
    if u >= 65536:
        return np.int64(ESCAPE), new, bits
    k = np.int64(3)
    while u >> (k + 1):
        k += 1
    return 14 + k, (u - (np.int64(1) << k)) * 2 + sign, k + 1


@nb.njit(inline="always")
def _step(x, frequency, start, bits):
    return frequency * (x >> bits) + (x & ((np.int64(1) << bits) - 1)) - start


@nb.njit(inline="always")
def _refill(x, words, at, end):
    while x < 4294967296 and at < end:
        x = x << 16 | np.int64(words[at])
        at += 1
    return x, at


@nb.njit(inline="always")
def _put(x, frequency, start, bits, words, at):
    """Code a symbol: new state, and where the words now begin; they grow towards lower places."""
    limit = np.int64(frequency) << (48 - bits)
    while x >= limit:
        at -= 1
        words[at] = x & 65535
        x >>= 16
    quotient = x // frequency
    return (quotient << bits) + (x - quotient * frequency) + start, at


def _constants(alphabet: Alphabet):
    """Shift and mask in the unit's own width, so that a look-up stays unsigned; and the piece."""
    unit = alphabet.unit.type
    return unit(alphabet.shift), unit(alphabet.mask), alphabet.piece


def _clocks_kernel(alphabet: Alphabet):
    shift, mask, piece = _constants(alphabet)

    def kernel(old, positions, widths, clocks, tails):
        """The clock of its lane since the change before, at each change in frame order; and since the last one, a lane."""
        lanes = tails.size
        lane = 0
        done = 0
        following = np.int64(positions[0])
        for start in range(0, old.size, piece):
            clock = np.int64(tails[lane])
            stop = min(start + piece, old.size)
            if following >= start + piece and stop == start + piece:
                for j in range(piece):
                    clock += widths[(old[start + j] >> shift) & mask]
            else:
                at = start
                while following < stop:
                    for i in range(at, following):
                        clock += widths[(old[i] >> shift) & mask]
                    clocks[done] = clock
                    clock = np.int64(0)
                    at = following + 1
                    done += 1
                    following = np.int64(positions[done]) if done < positions.size else np.int64(1 << 40)
                for i in range(at, stop):
                    clock += widths[(old[i] >> shift) & mask]
            tails[lane] = clock
            lane += 1
            if lane == lanes:
                lane = 0

    return kernel


def _encode_kernel(alphabet: Alphabet):
    bits, order = alphabet.bits, alphabet.order
    shift, mask, piece = _constants(alphabet)

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
            if tails[lane] % horizon:
                x, end = _put(x, one, np.int64(0), z + 4, words, end)
            for _ in range(tails[lane] // horizon):
                x, end = _put(x, one, np.int64(0), z + 4, words, end)
            states[lane] = x
            begins[lane] = end
        for change in range(positions.size - 1, -1, -1):
            lane = np.int64(positions[change]) // piece % lanes
            x, end = states[lane], begins[lane]
            old, new = np.int64(before[change]), np.int64(after[change])
            context = (old >> shift) & mask
            width = np.int64(widths[context])
            row = np.int64(lists[context]) * 256
            symbol, raw, left = _symbol(old, new, bits, order)
            code = np.int64(codes[row + symbol])
            if code == 0:
                symbol, raw, left = np.int64(ESCAPE), new, bits
                code = np.int64(codes[row + ESCAPE])
            if code == 0 or width == 0:
                return UNCODABLE
            if left > 16:
                x, end = _put(x, np.int64(1), raw >> 16, left - 16, words, end)
                x, end = _put(x, np.int64(1), raw & 65535, 16, words, end)
            elif left:
                x, end = _put(x, np.int64(1), raw, left, words, end)
            x, end = _put(x, code & 65535, code >> 16, VALUE_BITS, words, end)
            clock = np.int64(clocks[change])
            misses = clock // horizon
            clock -= misses * horizon
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


def _decode_kernel(alphabet: Alphabet):
    bits, order = alphabet.bits, alphabet.order
    shift, mask, piece = _constants(alphabet)
    top = 1 << (bits - 1)

    def kernel(
        base, widths, firsts, uppers, symbols, z, words, ends, states, clocks, places, targets, positions, values
    ):
        """Changes of a frame, in frame order. `ends` holds where each lane's words begin, then where the last one's end.

        Of each context, `firsts` is where its value list begins in `uppers` (sums of frequencies) and `symbols`.
        Returns how it ended and the number of changes found; never more than `positions` holds.
        """
        lanes = states.size
        horizon = np.int64(4) << z
        slots = (np.int64(16) << z) - 1
        missed = np.int64(1) << z
        for lane in range(lanes):
            x, at = _refill(np.int64(0), words, ends[lane], ends[lane + 1])
            states[lane] = x
            clocks[lane] = 0
            places[lane] = at
            targets[lane] = target(x & slots, z)
        found = 0
        lane = 0
        for start in range(0, base.size, piece):
            clock = clocks[lane]
            goal = targets[lane]
            stop = start + piece
            if stop <= base.size:
                total = clock
                for j in range(piece):
                    total += widths[(base[start + j] >> shift) & mask]
                if total <= goal:
                    clocks[lane] = total
                    lane += 1
                    if lane == lanes:
                        lane = 0
                    continue
            else:
                stop = base.size
            x = states[lane]
            at, limit = places[lane], ends[lane + 1]
            for i in range(start, stop):
                old = np.int64(base[i])
                context = (old >> shift) & mask
                close = clock + np.int64(widths[context])
                while close > goal:
                    slot = x & slots
                    if slot < missed:
                        x = _step(x, missed, np.int64(0), z + 4)
                        x, at = _refill(x, words, at, limit)
                        close -= horizon
                        clock = np.int64(0)
                        goal = target(x & slots, z)
                        continue
                    if found == positions.size:
                        return COUNT, found
                    first = share(clock, z)
                    x = _step(x, share(min(close, horizon), z) - first, first, z + 4)
                    x, at = _refill(x, words, at, limit)
                    slot = x & ((1 << VALUE_BITS) - 1)
                    entry = np.int64(firsts[context])
                    lower = np.int64(0)
                    while np.int64(uppers[entry]) <= slot:
                        lower = np.int64(uppers[entry])
                        entry += 1
                    x = _step(x, np.int64(uppers[entry]) - lower, lower, VALUE_BITS)
                    x, at = _refill(x, words, at, limit)
                    symbol = np.int64(symbols[entry])
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
                        low = _nibble((_nibble(old & 15) + symbol) & 15)
                        high = _nibble((_nibble(old >> 4) + (symbol >> 4)) & 15)
                        new = high << 4 | low
                    elif bits == 8:
                        new = _ordered(old, bits, order) + symbol & 255
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
                        new = _ordered(old, bits, order) + (-step if sign else step)
                        if order == SIGNED:
                            if new < -top or new >= top:
                                return RANGE, found
                            if new < 0:
                                new = top - 1 - new
                        elif new < 0 or new >= 2 * top:
                            return RANGE, found
                    positions[found] = i
                    values[found] = new
                    found += 1
                    close = np.int64(0)
                    goal = target(x & slots, z)
                    break
                clock = close
            states[lane] = x
            clocks[lane] = clock
            places[lane] = at
            targets[lane] = goal
            lane += 1
            if lane == lanes:
                lane = 0
        for lane in range(lanes):
            x, at = states[lane], places[lane]
            if clocks[lane] > 0:
                if x & slots >= missed:
                    return TAIL, found
                x = _step(x, missed, np.int64(0), z + 4)
                x, at = _refill(x, words, at, ends[lane + 1])
            if x != 0 or at != ends[lane + 1]:
                return WORDS, found
        return (DONE if found == positions.size else COUNT), found

    return kernel


def _units_kernel(alphabet: Alphabet):
    shift, mask, _ = _constants(alphabet)

    def kernel(flat, block, stride, found):
        """Contexts of the first of every `stride` blocks. Returns how many units were looked at."""
        seen = 0
        apart = np.zeros((4, 256), np.int64)  # equal neighbours would wait for each other in one row
        for start in range(0, flat.size, block * stride):
            stop = min(start + block, flat.size)
            for i in range(start, stop):
                apart[i & 3, (flat[i] >> shift) & mask] += 1
            seen += stop - start
        for row in range(4):
            for context in range(256):
                found[context] += apart[row, context]
        return seen

    return kernel


def _symbols_kernel(alphabet: Alphabet):
    bits, order = alphabet.bits, alphabet.order
    shift, mask, _ = _constants(alphabet)

    def kernel(before, after, found):
        """Changes at context * 256 + symbol."""
        for i in range(before.size):
            symbol, _, _ = _symbol(np.int64(before[i]), np.int64(after[i]), bits, order)
            found[np.int64((before[i] >> shift) & mask) * 256 + symbol] += 1

    return kernel


def _of_units(unit) -> Signature:
    return (array(unit), INT, INT, array(INT, writable=True))


def _of_symbols(unit) -> Signature:
    return (array(unit), array(unit), array(INT, writable=True))


def _of_clocks(unit) -> Signature:
    return (array(unit), array(U32), array(U32), array(INT, writable=True), array(INT, writable=True))


def _of_encode(unit) -> Signature:
    row = array(INT, writable=True)
    return (
        array(U32), array(unit), array(unit), array(INT), array(INT), array(U32), array(U32), array(U32), INT,
        array(U16, writable=True), INT, row, row,
    )  # fmt: skip


def _of_decode(unit) -> Signature:
    row = array(INT, writable=True)
    return (
        array(unit), array(U32), array(U32), array(U32), array(U32), INT, array(U16), array(INT), row, row, row, row,
        array(U32, writable=True), array(unit, writable=True),
    )  # fmt: skip


@cache
def count_units(alphabet: Alphabet) -> Callable[..., Any]:
    """Compiled loop; see `_units_kernel`."""
    return compiled(_units_kernel(alphabet), _of_units)(alphabet.unit)


@cache
def count_symbols(alphabet: Alphabet) -> Callable[..., Any]:
    """Compiled loop; see `_symbols_kernel`."""
    return compiled(_symbols_kernel(alphabet), _of_symbols)(alphabet.unit)


@cache
def clocks(alphabet: Alphabet) -> Callable[..., Any]:
    """Compiled loop; see `_clocks_kernel`."""
    return compiled(_clocks_kernel(alphabet), _of_clocks)(alphabet.unit)


@cache
def encode(alphabet: Alphabet) -> Callable[..., Any]:
    """Compiled loop; see `_encode_kernel`."""
    return compiled(_encode_kernel(alphabet), _of_encode)(alphabet.unit)


@cache
def decode(alphabet: Alphabet) -> Callable[..., Any]:
    """Compiled loop; see `_decode_kernel`."""
    return compiled(_decode_kernel(alphabet), _of_decode)(alphabet.unit)
