"""An encoder of `context` frames from what FORMAT.md section 6 says of encoding, and a way to write what no encoder would.

Stands on the independent reader alone and never imports Syncline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from reader_context import NIBBLE, SIGNED, Table, bits_of, contexts, plain, share, sign_magnitude

Step = tuple[int, int, int]
"""Frequency, start, bits."""
ESCAPE = 0


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


@dataclass(frozen=True, slots=True)
class TableText:
    """A codec table to be written as it stands, right or wrong."""

    zone: int = 16
    lists: Sequence[Sequence[tuple[int, int]]] = (((1, 2048), (2, 2000), (ESCAPE, 48)),)
    width: int = 40_000
    default: int = 0
    named: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def write(self) -> bytes:
        parts = [bytes([self.zone]), varint(len(self.lists))]
        for values in self.lists:
            parts += [varint(len(values)), *(varint(number) for number in chain.from_iterable(values))]
        parts += [varint(self.width), varint(self.default), varint(len(self.named))]
        previous = -1
        for context, (width, values) in self.named.items():
            parts += [varint(context - previous - 1), varint(width), varint(values)]
            previous = context
        return b"".join(parts)


def symbol(dtype: str, x: int, y: int) -> tuple[int, int, int]:
    """Symbol of a change, its raw value and the value's bits; of a step that no symbol has, the escape."""
    bits = bits_of(dtype)
    if dtype == "F4":
        low, high = ((NIBBLE.of(y >> at & 15) - NIBBLE.of(x >> at & 15)) % 16 for at in (0, 4))
        return low + 16 * high, 0, 0
    order = (sign_magnitude if dtype in SIGNED else plain)(bits)
    d = order.of(y) - order.of(x)
    if bits == 8:
        return d % 256, 0, 0
    u, negative = abs(d) - 1, int(d < 0)
    if u < 8:
        return 1 + 2 * u + negative, 0, 0
    k = u.bit_length() - 1
    return (14 + k, (u - (1 << k)) * 2 + negative, k + 1) if k <= 15 else (ESCAPE, y, bits)


def raw(value: int, bits: int) -> list[Step]:
    sizes = [min(16, bits - low) for low in range(0, bits, 16)]
    return [(1, (value >> 16 * at) % (1 << size), size) for at, size in enumerate(sizes)]


def value_steps(dtype: str, table: Table, context: int, x: int, y: int) -> list[Step]:
    """What a change says in its value list; by an escape where the list lacks its symbol."""
    values = table.lists[context]
    found, value, bits = symbol(dtype, x, y)
    if found not in values.symbols:
        found, value, bits = ESCAPE, y, bits_of(dtype)
    at = values.symbols.index(found)
    return [(values.frequencies[at], values.starts[at], 12), *raw(value, bits)]


def lane_steps(dtype: str, table: Table, old: Sequence[int], new: Sequence[int]) -> list[Step]:
    zone, horizon = table.zone, 4 << table.zone
    miss = (1 << zone, 0, zone + 4)
    steps: list[Step] = []
    a = 0
    for x, y, context in zip(old, new, contexts(dtype, list(old)), strict=True):
        e = a + table.widths[context]
        if x == y:
            if e >= horizon:
                steps.append(miss)
                e -= horizon
            a = e
            continue
        if e > horizon and horizon - a < e - horizon:
            steps.append(miss)
            e, a = e - horizon, 0
        start = share(zone, a)
        steps.append((share(zone, min(e, horizon)) - start, start, zone + 4))
        steps += value_steps(dtype, table, context, x, y)
        a = 0
    return steps


def words(steps: Iterable[Step]) -> bytes:
    """A lane whose decoder takes these steps."""
    x, out = 0, list[int]()
    for frequency, start, bits in reversed(list(steps)):
        while x >= frequency << 48 - bits:
            out.append(x % (1 << 16))
            x >>= 16
        x = (x // frequency << bits) + x % frequency + start
    while x > 0:
        out.append(x % (1 << 16))
        x >>= 16
    return b"".join(word.to_bytes(2, "little") for word in reversed(out))


def payload(dtype: str, table: Table, lane_shift: int, old: Sequence[int], new: Sequence[int]) -> bytes:
    """A frame's payload."""
    piece, m = 128 // bits_of(dtype), len(old) >> lane_shift
    count = next(lanes for lanes in (32, 16, 8, 4, 2, 1) if lanes <= max(m, 1))
    lanes: list[bytes] = []
    for lane in range(count):
        mine = [at for at in range(len(old)) if at // piece % count == lane]
        lanes.append(words(lane_steps(dtype, table, [old[at] for at in mine], [new[at] for at in mine])))
    return b"".join((*(varint(len(lane) // 2) for lane in lanes[:-1]), *lanes))
