"""From counts to a codec table, in integers only: the same counts give the same bytes everywhere.

A width is -log2(1 - p) zones. Contexts share value lists where that costs fewer bits than lists of their own, those that do not pay for a
name share a width too, and tensors share a table likewise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.context.counts import Counts, Totals
from syncline.codecs.context.logarithms import log2, mantissas, quiet_bits
from syncline.codecs.context.naming import RATE_BITS, Naming, Rate, namings
from syncline.codecs.context.table import (
    CONTEXTS,
    SYMBOLS,
    ContextTable,
    ValueList,
)
from syncline.kernels.clock import ESCAPE, VALUE_BITS, Alphabet
from syncline.kernels.merging import FRACTION, bits, merge
from syncline.wire.limits import CODEC_TABLE_MAX_BYTES

Integers = NDArray[np.int64]

_TOTAL = 1 << VALUE_BITS
ENTRY_COST = 24
"""Bits of a value list's entry in a table, about: its symbol and its frequency."""
CONTEXT_COST = 32
"""Bits that name a context in a table, about: which it is, its width, its list."""
TABLE_COST = 256
"""Bits of a table without contexts: its value lists, and the parameters that choose it."""
_COARSE_BITS = 24
"""Fraction bits of a rate that is multiplied by arrays of units: so many that units of a terabyte do not overflow."""


def fit(counts: Counts, alphabet: Alphabet, *, exact: bool) -> ContextTable:
    """The table for units such as those counted.

    `exact`: every change that will be coded was counted, so what was not seen costs nothing and has no code. Else every context gets a
    width and every list an escape.
    """
    changes = counts.changes
    weighed = namings(np.maximum(counts.units, changes).tolist(), changes.tolist(), least=0 if exact else 1)
    entry_cost = ENTRY_COST
    while True:  # dearer entries until the table has its bound: in the end every change is an escape
        alike = _alike(counts, alphabet, entry_cost)
        tables = [_table(counts, naming, alike, alphabet, exact=exact, entry_cost=entry_cost) for naming in weighed]
        _, table = min(tables, key=lambda found: found[0])
        if len(table.data) <= CODEC_TABLE_MAX_BYTES:
            return table
        entry_cost *= 8


def _table(
    counts: Counts, naming: Naming, alike: dict[int, int], alphabet: Alphabet, *, exact: bool, entry_cost: int
) -> tuple[int, ContextTable]:
    """The table with these names, behind its bits and those of all that it codes, about."""
    coded, lists, of_context = _lists(counts, naming.rest, alike, alphabet, exact=exact, entry_cost=entry_cost)
    table = ContextTable(naming.zone_bits, tuple(naming.widths), tuple(lists), tuple(of_context))
    return naming.bits + coded + 8 * len(table.data), table


def _alike(counts: Counts, alphabet: Alphabet, entry_cost: int) -> dict[int, int]:
    """For each context that changed the first of those that it would share a value list with, if all had names."""
    changed = np.flatnonzero(counts.changes)
    firsts = merge(counts.symbols[changed], _raw_bits(alphabet), entry_cost=entry_cost, mantissas=mantissas())
    return dict(zip(changed.tolist(), changed[firsts].tolist(), strict=True))


def _lists(
    counts: Counts, rest: list[int], alike: dict[int, int], alphabet: Alphabet, *, exact: bool, entry_cost: int
) -> tuple[int, list[ValueList], list[int]]:
    """Bits of all symbols, about; the value lists; and which of them each context has, those of `rest` one."""
    groups: dict[int, list[int]] = {}
    nameless = set(rest)
    for (
        context,
        first,
    ) in alike.items():  # merged as groups: looking at each pair of contexts again would double the time
        groups.setdefault(-1 if context in nameless else first, []).append(context)
    rows = np.array([counts.symbols[group].sum(0) for group in groups.values()], np.int64).reshape(-1, SYMBOLS)
    raw = _raw_bits(alphabet)
    labels = merge(rows, raw, entry_cost=entry_cost, mantissas=mantissas())
    sums: dict[int, Integers] = {}
    for label, row in zip(labels.tolist(), rows, strict=True):
        sums[label] = sums[label] + row if label in sums else row
    of_label = {s: _value_list(row, alphabet, exact=exact, entry_cost=entry_cost) for s, row in sums.items()}
    coded = sum(bits(row, raw, entry_cost=entry_cost, mantissas=mantissas()) for row in sums.values())
    coded -= entry_cost * sum(len(entries) for entries in of_label.values())
    lists = list(dict.fromkeys(of_label.values())) or [((ESCAPE, _TOTAL),)]
    most = max(sums, key=lambda label: int(sums[label].sum()), default=None)
    of_context = [0 if most is None else lists.index(of_label[most])] * CONTEXTS
    for (first, group), label in zip(groups.items(), labels.tolist(), strict=True):
        for context in rest if first < 0 else group:
            of_context[context] = lists.index(of_label[label])
    return coded, lists, of_context


def _raw_bits(alphabet: Alphabet) -> Integers:
    """Bits that follow each symbol."""
    raw = np.zeros(256, np.int64)
    if alphabet.bits > 8:
        raw[17:30] = np.arange(4, 17)
    raw[ESCAPE] = alphabet.bits
    return raw


def _escaping(symbols: Integers, alphabet: Alphabet, entry_cost: int) -> NDArray[np.bool_]:
    """Symbols that cost less as an escape than as an entry of their list."""
    return symbols * (alphabet.bits - _raw_bits(alphabet)) < entry_cost


def _value_list(symbols: Integers, alphabet: Alphabet, *, exact: bool, entry_cost: int) -> ValueList:
    """Frequencies of 4096, most frequent first."""
    escaping = _escaping(symbols, alphabet, entry_cost)
    counts = {int(s): int(symbols[s]) for s in np.flatnonzero(symbols) if not escaping[s]}
    escaped = int(symbols[escaping].sum())
    if escaped or not exact or not counts:
        counts[ESCAPE] = counts.get(ESCAPE, 0) + escaped
    total = max(sum(counts.values()), 1)
    frequencies = {s: max(n * _TOTAL // total, 1) for s, n in counts.items()}
    ranked = sorted(frequencies, key=lambda s: (-counts[s], s))
    left = _TOTAL - sum(frequencies.values())
    at = 0
    while left:  # what rounding left goes to the most frequent; what it took comes from the largest
        change = left if left > 0 else -min(-left, max(frequencies[ranked[at]] - 1, 0))
        frequencies[ranked[at]] += change
        left -= change
        at += 1
    return tuple((s, frequencies[s]) for s in ranked)


def shared_bits(totals: Totals, alphabet: Alphabet) -> int:
    """Bits of a table for these counts and of all that it codes, about: what decides who shares one.

    One value list is reckoned for all contexts, and for each that its name or what it loses without one is the cheaper against the rate
    of all together, which is near enough and quick.
    """
    changes = totals.changes
    units = np.maximum(totals.units, changes)
    own = changes * (log2(units) - log2(changes) + quiet_bits(units, changes))
    rate = Rate.of(int(units.sum()), int(changes.sum()))
    coarse = (units - changes) * (rate.quiet >> RATE_BITS - _COARSE_BITS) >> _COARSE_BITS - FRACTION
    together = coarse + changes * (rate.change >> RATE_BITS - FRACTION)
    where = int((own + np.clip(together - own, 0, CONTEXT_COST << FRACTION)).sum()) >> FRACTION
    what = bits(totals.symbols, _raw_bits(alphabet), entry_cost=ENTRY_COST, mantissas=mantissas())
    return where + what + TABLE_COST
