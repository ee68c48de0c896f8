"""A codec table: widths and value lists by context, as bytes and as the compiled loops want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from syncline.errors import FormatInvalid
from syncline.kernels.clock import VALUE_BITS
from syncline.kernels.vectors import planes
from syncline.wire.varint import put_varint

CONTEXTS = 256
SYMBOLS = 256
LISTS_MAX = 256
ZONE_BITS_MIN, ZONE_BITS_MAX = 16, 20
WIDTH_MAX = 1 << 18
_TOTAL = 1 << VALUE_BITS
GUIDED = 64
"""Slots that share a guide."""

Words = NDArray[np.uint32]
ValueList = tuple[tuple[int, int], ...]
"""(symbol, frequency) in the order in which a decoder looks; the frequencies sum to 4096."""


def widest(zone_bits: int) -> int:
    """Greatest width that a table with zones of 2^zone_bits ticks may have."""
    return min(4 << zone_bits, WIDTH_MAX)


@dataclass(frozen=True, slots=True)
class ContextTable:
    """Made by `fitting.fit`, or parsed. Equal tables have equal bytes."""

    zone_bits: int
    """Z: a zone is 2^Z ticks."""
    widths: tuple[int, ...]
    """Of each of the 256 contexts, in ticks; 0: no change can be coded in it."""
    lists: tuple[ValueList, ...]
    """Value lists; at least one."""
    of_context: tuple[int, ...]
    """Number of the value list of each context."""
    data: bytes = field(init=False, compare=False, repr=False)
    """The table's bytes."""
    ticks: Words = field(init=False, compare=False, repr=False)
    """`widths` for the loops."""
    list_numbers: Words = field(init=False, compare=False, repr=False)
    codes: Words = field(init=False, compare=False, repr=False)
    """start << 16 | frequency at list * 256 + symbol; 0 where the list does not hold the symbol."""
    planes: NDArray[np.uint8] = field(init=False, compare=False, repr=False)
    """`ticks` by their bytes: see `kernels.vectors`."""
    guides: Words = field(init=False, compare=False, repr=False)
    """At list * 64 + slot >> 6, where to begin looking in `entries` for a slot."""
    entries: Words = field(init=False, compare=False, repr=False)
    """start | frequency - 1 << 12 | symbol << 24, list after list."""

    def __post_init__(self) -> None:
        codes = np.zeros(len(self.lists) * SYMBOLS, np.uint32)
        guides: list[int] = []
        entries: list[int] = []
        for number, value_list in enumerate(self.lists):
            start = 0
            for symbol, frequency in value_list:
                codes[number * SYMBOLS + symbol] = start << 16 | frequency
                guides += [len(entries)] * (-(-(start + frequency) // GUIDED) - -(-start // GUIDED))
                entries.append(start | (frequency - 1) << VALUE_BITS | symbol << 24)
                start += frequency
        derived: dict[str, Sequence[int]] = {
            "ticks": self.widths,
            "list_numbers": self.of_context,
            "codes": codes.tolist(),
            "guides": guides,
            "entries": entries,
        }
        for name, values in derived.items():
            object.__setattr__(self, name, np.array(values, np.uint32))
        object.__setattr__(self, "planes", planes(self.ticks))
        object.__setattr__(self, "data", self._encoded())

    def _encoded(self) -> bytes:
        # The default is what most contexts have, so that few need a name.
        out = bytearray([self.zone_bits])
        put_varint(out, len(self.lists))
        for entries in self.lists:
            put_varint(out, len(entries))
            for symbol, frequency in entries:
                put_varint(out, symbol)
                put_varint(out, frequency)
        pairs = list(zip(self.widths, self.of_context, strict=True))
        default = max(sorted(set(pairs)), key=pairs.count)
        put_varint(out, default[0])
        put_varint(out, default[1])
        named = [(context, pair) for context, pair in enumerate(pairs) if pair != default]
        put_varint(out, len(named))
        expected = 0
        for context, (width, number) in named:
            put_varint(out, context - expected)
            put_varint(out, width)
            put_varint(out, number)
            expected = context + 1
        return bytes(out)

    @classmethod
    def parse(cls, data: bytes | memoryview, *, what: str = "codec table") -> Self:
        """Read a table. FormatInvalid unless every count, width and frequency keeps its bound."""
        reader = _Reader(bytes(data), what)
        zone_bits = reader.byte()
        if not ZONE_BITS_MIN <= zone_bits <= ZONE_BITS_MAX:
            raise FormatInvalid(
                f"{what} has zones of 2^{zone_bits} ticks; {ZONE_BITS_MIN} to {ZONE_BITS_MAX} are known"
            )
        lists = [reader.value_list() for _ in range(reader.varint(LISTS_MAX, least=1))]
        limit = widest(zone_bits)
        default = (reader.varint(limit), reader.varint(len(lists) - 1))
        pairs = [default] * CONTEXTS
        context = -1
        for _ in range(reader.varint(CONTEXTS)):
            context += 1 + reader.varint(CONTEXTS)
            if context >= CONTEXTS:
                raise FormatInvalid(f"{what} names context {context} of {CONTEXTS}")
            pairs[context] = (reader.varint(limit), reader.varint(len(lists) - 1))
        reader.end()
        return cls(zone_bits, tuple(w for w, _ in pairs), tuple(lists), tuple(n for _, n in pairs))


class _Reader:
    """A cursor over a table's bytes; every read checks what is left."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def byte(self) -> int:
        if self._at == len(self._data):
            raise FormatInvalid(f"{self._what} ends early")
        self._at += 1
        return self._data[self._at - 1]

    def varint(self, most: int, *, least: int = 0) -> int:
        value = 0
        for shift in range(0, 28, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if (byte == 0 and shift) or not least <= value <= most:
                    raise FormatInvalid(f"{self._what} has {value} where {least} to {most} is allowed")
                return value
        raise FormatInvalid(f"{self._what} has a varint of more than four bytes")

    def value_list(self) -> ValueList:
        entries = [
            (self.varint(SYMBOLS - 1), self.varint(_TOTAL, least=1)) for _ in range(self.varint(SYMBOLS, least=1))
        ]
        if len({symbol for symbol, _ in entries}) != len(entries):
            raise FormatInvalid(f"{self._what} has a value list that names a symbol twice")
        if (total := sum(frequency for _, frequency in entries)) != _TOTAL:
            raise FormatInvalid(f"{self._what} has a value list that sums to {total}, not {_TOTAL}")
        return tuple(entries)

    def end(self) -> None:
        if self._at != len(self._data):
            raise FormatInvalid(f"{self._what} has bytes behind its end")
