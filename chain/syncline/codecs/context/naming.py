"""Which contexts a table names, and how wide each is. A name takes bits, so a context gets one where a width of its own saves more; all
others share a width and a value list. Decided in integers, from exact logarithms: the same counts give the same names everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from syncline.codecs.context.logarithms import exact_log2
from syncline.codecs.context.table import WIDTH_MAX, ZONE_BITS_MAX, ZONE_BITS_MIN, widest

RATE_BITS = 40
"""Fraction bits of a rate."""
_NAME_COST = 16
"""Bits that name a context in a table, its width apart: which it is, and its list."""
_ALWAYS = RATE_BITS << RATE_BITS
"""Bits of an unchanged unit where every one changes: more than any width."""
_FEW_TICKS = 8
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Rate:
    """How often units change, as the bits that tell it, with RATE_BITS fraction bits."""

    quiet: int
    """Of an unchanged unit: log2(1 / (1 - p)); 0 where none changes."""
    change: int
    """Of a changed one: log2(1 / p)."""

    @classmethod
    def of(cls, units: int, changes: int) -> Self:
        """That of so many changes among so many units."""
        if changes == 0:
            return cls(0, 0)
        whole = exact_log2(units, RATE_BITS)
        quiet = whole - exact_log2(units - changes, RATE_BITS) if units > changes else _ALWAYS
        # One among more than 2^40 is less than the logarithm tells, and a width of nothing would have no code for it.
        return cls(max(quiet, 1), whole - exact_log2(changes, RATE_BITS))

    def bits(self, units: int, changes: int) -> int:
        """What it takes to say which of the units changed."""
        return (units - changes) * self.quiet + changes * self.change

    def told(self, zone_bits: int, *, least: int) -> Rate:
        """What becomes of it where a width tells it: one of a few ticks is rounded a long way."""
        width = _width(self, zone_bits, least=least)
        if width >= _FEW_TICKS:
            return self
        quiet = width << RATE_BITS - zone_bits
        if not self.quiet:
            return Rate(quiet, 0)
        oftener = exact_log2(quiet, RATE_BITS) - exact_log2(self.quiet, RATE_BITS)  # by as much a change is likelier
        return Rate(quiet, self.change - oftener)


@dataclass(frozen=True, slots=True)
class Naming:
    """Who has a name, and what follows of it."""

    rest: list[int]
    """The contexts without a name."""
    zone_bits: int
    widths: list[int]
    """Of every context, in ticks; those of `rest` have one."""
    bits: int
    """Of where the changes are."""


def namings(units: Sequence[int], changes: Sequence[int], *, least: int) -> list[Naming]:
    """What is to be weighed, value lists included: names for all contexts that changed, for none, and for those alone that pay for theirs.

    `least`: the width of what never changes.
    """
    own = [Rate.of(n, k) for n, k in zip(units, changes, strict=True)]
    zone_bits, widths = _widths(own, least=least)
    names = [_NAME_COST + 8 * (-(-width.bit_length() // 7) or 1) for width in widths]
    told = [rate.told(zone_bits, least=least) for rate in own]
    apart = [
        rate.bits(n, k) + (name << RATE_BITS) for rate, n, k, name in zip(told, units, changes, names, strict=True)
    ]
    every = list(range(len(changes)))
    rests = [[context for context in every if changes[context] == 0]]
    # From the rate of all together, which may be that of a few with most units; and from the middle one of those that change, which may be
    # that of units which always do.
    changing = sorted((context for context in every if changes[context]), key=lambda context: own[context].quiet)
    for rest in (
        *(_unpaid(start, units, changes, apart, zone_bits) for start in (changing[len(changing) // 2 :][:1], every)),
        every,
    ):
        if rest and rest not in rests:
            rests.append(rest)
    return [_named(rest, units, changes, own, least=least) for rest in rests]


def _named(rest: list[int], units: Sequence[int], changes: Sequence[int], own: Sequence[Rate], *, least: int) -> Naming:
    shared = _together(rest, units, changes)
    rates = list(own)
    for context in rest:
        rates[context] = shared
    zone_bits, widths = _widths(rates, least=least)
    told = [rate.told(zone_bits, least=least) for rate in rates]
    where = sum(rate.bits(n, k) for rate, n, k in zip(told, units, changes, strict=True))
    return Naming(rest, zone_bits, widths, where >> RATE_BITS)


def _unpaid(
    start: list[int], units: Sequence[int], changes: Sequence[int], apart: Sequence[int], zone_bits: int
) -> list[int]:
    """The contexts that would save less than their names take with widths of their own; none where those have no changes.

    Begins with the rate of `start`, and takes whoever can do with the rate of those that it has, until that calls for no other choice.
    """
    rest = start
    for _ in range(_ROUNDS):
        if not any(changes[context] for context in rest):
            return []
        shared = _together(rest, units, changes).told(zone_bits, least=0)
        suited = [c for c, bits in enumerate(apart) if shared.bits(units[c], changes[c]) <= bits]
        if suited == rest:
            break
        rest = suited
    return rest


def _together(contexts: Sequence[int], units: Sequence[int], changes: Sequence[int]) -> Rate:
    return Rate.of(sum(units[context] for context in contexts), sum(changes[context] for context in contexts))


def _widths(rates: Sequence[Rate], *, least: int) -> tuple[int, list[int]]:
    """Zone bits and the widths: of the finest clock that holds the widest context."""
    zone_bits = ZONE_BITS_MAX
    most = max(rate.quiet for rate in rates)
    while zone_bits > ZONE_BITS_MIN and _ticks(most, zone_bits) > WIDTH_MAX:
        zone_bits -= 1
    return zone_bits, [_width(rate, zone_bits, least=least) for rate in rates]


def _width(rate: Rate, zone_bits: int, *, least: int) -> int:
    return min(max(_ticks(rate.quiet, zone_bits), 1), widest(zone_bits)) if rate.quiet else least


def _ticks(quiet: int, zone_bits: int) -> int:
    shift = RATE_BITS - zone_bits
    return (quiet + (1 << (shift - 1))) >> shift
