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
        return cls(quiet, whole - exact_log2(changes, RATE_BITS))

    def bits(self, units: int, changes: int) -> int:
        """What it takes to say which of the units changed."""
        return (units - changes) * self.quiet + changes * self.change


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
    """What is to be weighed, value lists included: names for all contexts that changed, and for those alone that pay for theirs.

    `least`: the width of what never changes.
    """
    own = [Rate.of(n, k) for n, k in zip(units, changes, strict=True)]
    _, widths = _widths(own, least=least)
    names = [_NAME_COST + 8 * (-(-width.bit_length() // 7) or 1) for width in widths]
    never = [context for context, k in enumerate(changes) if k == 0]
    rest = _unpaid(units, changes, own, names)
    found: list[Naming] = []
    for one in [never, rest] if rest else [never]:
        shared = _together(one, units, changes)
        rates = list(own)
        for context in one:
            rates[context] = shared
        where = sum(rate.bits(n, k) for rate, n, k in zip(rates, units, changes, strict=True))
        found.append(Naming(one, *_widths(rates, least=least), where >> RATE_BITS))
    return found


def _unpaid(units: Sequence[int], changes: Sequence[int], own: Sequence[Rate], names: Sequence[int]) -> list[int]:
    """The contexts that would save less than their names take with widths of their own; none where those have no changes.

    Begins with the context whose rate is the middle one of those that change (the rate of all together is that of a few with most units),
    and takes whoever can do with the rate of those that it has, until that calls for no other choice.
    """
    apart = [rate.bits(n, k) + (name << RATE_BITS) for rate, n, k, name in zip(own, units, changes, names, strict=True)]
    changing = sorted((context for context, k in enumerate(changes) if k), key=lambda context: own[context].quiet)
    rest = changing[len(changing) // 2 :][:1]
    for _ in range(_ROUNDS):
        if not any(changes[context] for context in rest):
            return []
        shared = _together(rest, units, changes)
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
    limit = widest(zone_bits)
    return zone_bits, [min(max(_ticks(rate.quiet, zone_bits), 1), limit) if rate.quiet else least for rate in rates]


def _ticks(quiet: int, zone_bits: int) -> int:
    shift = RATE_BITS - zone_bits
    return (quiet + (1 << (shift - 1))) >> shift
