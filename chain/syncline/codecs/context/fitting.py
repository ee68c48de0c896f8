"""From counts to a codec table, in integers only: the same counts give the same bytes everywhere.

A width is -log2(1 - p) zones. Contexts share value lists where that costs fewer bits than lists of their own, and tensors share a table
likewise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.context.counts import Counts, Totals
from syncline.codecs.context.logarithms import exact_log2, log2, mantissas
from syncline.codecs.context.table import (
    CONTEXTS,
    WIDTH_MAX,
    ZONE_BITS_MAX,
    ZONE_BITS_MIN,
    ContextTable,
    ValueList,
    widest,
)
from syncline.kernels.clock import ESCAPE, VALUE_BITS, Alphabet
from syncline.kernels.merging import FRACTION, bits, merge
from syncline.wire.limits import CODEC_TABLE_MAX_BYTES

Integers = NDArray[np.int64]

_TOTAL = 1 << VALUE_BITS
_LOG_BITS = 40
ENTRY_COST = 24
"""Bits of a value list's entry in a table, about: its symbol and its frequency."""
CONTEXT_COST = 32
"""Bits that name a context in a table: which, its width, its list."""
TABLE_COST = 256
"""Bits of a table without contexts: its value lists, and the parameters that choose it."""


def fit(counts: Counts, alphabet: Alphabet, *, exact: bool) -> ContextTable:
    """The table for units such as those counted.

    `exact`: every change that will be coded was counted, so what was not seen costs nothing and has no code. Else every context gets a
    width and every list an escape.
    """
    changes = counts.changes
    units = np.maximum(counts.units, changes)
    seen = np.flatnonzero(changes)
    zone_bits, widths = _widths(units, changes, least=0 if exact else 1)
    entry_cost = ENTRY_COST
    while True:  # dearer entries until the table has its bound: in the end every change is an escape
        table = _with_lists(counts, seen, zone_bits, widths, alphabet, exact=exact, entry_cost=entry_cost)
        if len(table.data) <= CODEC_TABLE_MAX_BYTES:
            return table
        entry_cost *= 8


def _with_lists(
    counts: Counts,
    seen: Integers,
    zone_bits: int,
    widths: list[int],
    alphabet: Alphabet,
    *,
    exact: bool,
    entry_cost: int,
) -> ContextTable:
    rows = counts.symbols[seen]
    labels = merge(rows, _raw_bits(alphabet), entry_cost=entry_cost, mantissas=mantissas())
    sums: dict[int, Integers] = {}
    for label, row in zip(labels.tolist(), rows, strict=True):
        sums[label] = sums[label] + row if label in sums else row
    of_label = {s: _value_list(row, alphabet, exact=exact, entry_cost=entry_cost) for s, row in sums.items()}
    lists = list(dict.fromkeys(of_label.values())) or [((ESCAPE, _TOTAL),)]
    most = max(sums, key=lambda label: int(sums[label].sum()), default=None)
    of_context = [0 if most is None else lists.index(of_label[most])] * CONTEXTS
    for context, label in zip(seen.tolist(), labels.tolist(), strict=True):
        of_context[context] = lists.index(of_label[label])
    return ContextTable(zone_bits, tuple(widths), tuple(lists), tuple(of_context))


def _widths(units: Integers, changes: Integers, *, least: int) -> tuple[int, list[int]]:
    """Zone bits and a width for each context: the finest clock that holds the widest context."""
    logs = [
        (exact_log2(n, _LOG_BITS) - exact_log2(n - k, _LOG_BITS) if n > k else _LOG_BITS << _LOG_BITS) if k else 0
        for n, k in zip(units.tolist(), changes.tolist(), strict=True)
    ]
    zone_bits = ZONE_BITS_MAX
    while zone_bits > ZONE_BITS_MIN and _ticks(max(logs), zone_bits) > WIDTH_MAX:
        zone_bits -= 1
    limit = widest(zone_bits)
    return zone_bits, [min(max(_ticks(log, zone_bits), 1), limit) if log else least for log in logs]


def _ticks(log: int, zone_bits: int) -> int:
    shift = _LOG_BITS - zone_bits
    return (log + (1 << (shift - 1))) >> shift


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

    One value list is reckoned for all contexts, which is near enough and quick.
    """
    changes = totals.changes
    units = np.maximum(totals.units, changes)
    quiet = units - changes
    where = int((units * log2(units) - changes * log2(changes) - quiet * log2(quiet)).sum()) >> FRACTION
    what = bits(totals.symbols, _raw_bits(alphabet), entry_cost=ENTRY_COST, mantissas=mantissas())
    return where + what + int(np.count_nonzero(changes)) * CONTEXT_COST + TABLE_COST
