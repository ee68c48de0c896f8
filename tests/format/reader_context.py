"""The `context` codec as FORMAT.md section 6 has it: one unit after the other, in integers of any size.

Part of the independent reader; never imports Syncline. Slow and plain on purpose.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, chain

from reader_cursor import Cursor
from reader_records import BITS, need

WIDTH_MOST = 1 << 18
FREQUENCIES = 4096


# --- units ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """o(x) and its inverse on units of `bits` bits, of which it gives least..most."""

    of: Callable[[int], int]
    unit: Callable[[int], int]
    least: int
    most: int


def sign_magnitude(bits: int) -> Order:
    top = 1 << bits - 1
    return Order(lambda x: x if x < top else -1 - (x - top), lambda o: o if o >= 0 else top + (-1 - o), -top, top - 1)


def plain(bits: int) -> Order:
    return Order(lambda x: x, lambda o: o, 0, (1 << bits) - 1)


NIBBLE = sign_magnitude(4)
EXPONENTS = {"BF16": (7, 256), "F16": (10, 32), "F32": (23, 256)}
SIGNED = {*EXPONENTS, "F8_E4M3", "F8_E5M2"}


def bits_of(dtype: str) -> int:
    """Bits of a unit."""
    return max(BITS[dtype], 8)


def contexts(dtype: str, old: list[int]) -> list[int]:
    if dtype in EXPONENTS:
        shift, modulus = EXPONENTS[dtype]
        return [(x >> shift) % modulus for x in old]
    return old if bits_of(dtype) == 8 else [0] * len(old)


def stepped(key: str, dtype: str, x: int, symbol: int, raw: Callable[[int], int]) -> int:
    """The new bits of a unit that held x. `raw` reads so many raw bits."""
    bits = bits_of(dtype)
    order = (sign_magnitude if dtype in SIGNED else plain)(bits)
    if symbol == 0:
        y = raw(bits)
        need(y != x, key, "an escape to the bits that a unit already holds")
        return y
    if dtype == "F4":
        low, high = (
            NIBBLE.unit((NIBBLE.of(part) + step + 8) % 16 - 8)
            for part, step in ((x % 16, symbol % 16), (x // 16, symbol // 16))
        )
        return low + 16 * high
    if bits == 8:
        return order.unit((order.of(x) + symbol - order.least) % 256 + order.least)
    need(symbol < 30, key, f"symbol {symbol} in a unit of {bits} bits")
    if symbol < 17:
        above, negative = divmod(symbol - 1, 2)
    else:
        k = symbol - 14
        above, negative = divmod(raw(k + 1), 2)
        above += 1 << k
    o = order.of(x) + (-(above + 1) if negative else above + 1)
    need(order.least <= o <= order.most, key, "a step leaves the range of a unit")
    return order.unit(o)


# --- codec table ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValueList:
    symbols: list[int]
    frequencies: list[int]
    starts: list[int]


@dataclass(frozen=True, slots=True)
class Table:
    """Width and value list of each of 256 contexts."""

    zone: int
    widths: list[int]
    lists: list[ValueList]


def value_list(cursor: Cursor) -> ValueList:
    symbols: list[int] = []
    frequencies: list[int] = []
    for _ in range(cursor.varint(256, least=1)):
        symbols.append(cursor.varint(255))
        frequencies.append(cursor.varint(FREQUENCIES, least=1))
    need(len({*symbols}) == len(symbols), cursor.key, "a symbol stands twice in a value list")
    need(sum(frequencies) == FREQUENCIES, cursor.key, f"a value list's frequencies do not sum to {FREQUENCIES}")
    return ValueList(symbols, frequencies, [0, *accumulate(frequencies[:-1])])


def read_table(key: str, data: bytes) -> Table:
    cursor = Cursor(key, data)
    zone = cursor.take(1)[0]
    need(16 <= zone <= 20, key, f"a zone of 2^{zone} ticks")
    lists = [value_list(cursor) for _ in range(cursor.varint(256, least=1))]
    widths = [cursor.varint(WIDTH_MOST)] * 256
    of_context = [lists[cursor.varint(len(lists) - 1)]] * 256
    context = -1
    for _ in range(cursor.varint(256)):
        context += 1 + cursor.varint(255)
        need(context < 256, key, f"context {context} does not exist")
        widths[context] = cursor.varint(WIDTH_MOST)
        of_context[context] = lists[cursor.varint(len(lists) - 1)]
    cursor.finish()
    return Table(zone, widths, of_context)


@dataclass(frozen=True, slots=True)
class Coding:
    """What a section's parameters say."""

    table: Table
    lane_shift: int


def read_coding(key: str, params: bytes, table: Callable[[int], Table]) -> Coding:
    cursor = Cursor(key, params)
    number, lane_shift = cursor.varint(2**63 - 1), cursor.take(1)[0]
    cursor.finish()
    need(10 <= lane_shift <= 30, key, f"a lane shift of {lane_shift}")
    return Coding(table(number), lane_shift)


# --- clock and lanes --------------------------------------------------------------------------------------------------------------


class Coder:
    """One lane's rANS state, over its words."""

    def __init__(self, words: bytes) -> None:
        self.words, self.at, self.x = struct.unpack(f"<{len(words) // 2}H", words), 0, 0
        self.refill()

    def refill(self) -> None:
        while self.x < 1 << 32 and self.at < len(self.words):
            self.x = (self.x << 16) + self.words[self.at]
            self.at += 1

    def step(self, frequency: int, start: int, bits: int) -> None:
        self.x = frequency * (self.x >> bits) + self.x % (1 << bits) - start
        self.refill()

    def raw(self, bits: int) -> int:
        value = 0
        for low in range(0, bits, 16):
            size = min(16, bits - low)
            piece = self.x % (1 << size)
            self.step(1, piece, size)
            value += piece << low
        return value


def share(zone: int, c: int) -> int:
    """G(c)."""
    z = min(c >> zone, 3)
    return (1 << zone) + (16 - (16 >> z) << zone) + (c - (z << zone)) * (8 >> z)


def tick(zone: int, slot: int) -> int:
    """The c with G(c) <= slot < G(c + 1)."""
    z = bisect_right((9, 13, 15), slot >> zone)  # G, in zones, where zones 1 to 3 begin
    return (z << zone) + (slot - share(zone, z << zone)) // (8 >> z)


def decode_lane(key: str, dtype: str, table: Table, words: bytes, old: list[int]) -> dict[int, int]:
    """New bits by place among the lane's units."""
    need(len(words) % 2 == 0, key, "half a word")
    coder, zone, lists = Coder(words), table.zone, table.lists
    horizon = 4 << zone
    found: dict[int, int] = {}

    def target() -> tuple[bool, int]:
        slot = coder.x % (16 << zone)
        miss = slot < 1 << zone
        return miss, horizon - 1 if miss else tick(zone, slot)

    each = contexts(dtype, old)
    ends = list(accumulate(map(table.widths.__getitem__, each), initial=0))
    zero = place = 0  # where on the lane's own time the clock stands at 0; the unit that it has come to
    miss, goal = target()
    while (place := bisect_right(ends, zero + goal, place + 1) - 1) < len(old):
        if miss:
            coder.step(1 << zone, 0, zone + 4)
            zero += horizon
        else:
            start = share(zone, max(ends[place] - zero, 0))
            coder.step(share(zone, min(ends[place + 1] - zero, horizon)) - start, start, zone + 4)
            values = lists[each[place]]
            entry = bisect_right(values.starts, coder.x % FREQUENCIES) - 1
            coder.step(values.frequencies[entry], values.starts[entry], 12)
            found[place] = stepped(key, dtype, old[place], values.symbols[entry], coder.raw)
            place += 1
            zero = ends[place]
        miss, goal = target()
    need(coder.x == 0 and coder.at == len(coder.words), key, "a lane does not end in its start state")
    return found


def decode_context(key: str, dtype: str, coding: Coding, payload: bytes, old: list[int]) -> dict[int, int]:
    """New bits by position in the frame. `old` are its units."""
    need(bits_of(dtype) <= 32, key, f"{dtype} cannot be coded by context")
    cursor = Cursor(key, payload)
    most = min(len(old) >> coding.lane_shift, 32)
    lanes = 1 << most.bit_length() - 1 if most else 1
    lengths = [cursor.varint(len(payload)) for _ in range(lanes - 1)]
    bodies = [cursor.take(2 * length) for length in lengths] + [cursor.rest()]
    piece = 128 // bits_of(dtype)
    every = range(len(old))
    pieces = [every[first : first + piece] for first in every[::piece]]
    new: dict[int, int] = {}
    for lane, words in enumerate(bodies):
        positions = list(chain.from_iterable(pieces[lane::lanes]))
        units = [old[position] for position in positions]
        new |= {positions[at]: y for at, y in decode_lane(key, dtype, coding.table, words, units).items()}
    return new
