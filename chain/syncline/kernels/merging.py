"""Which rows of symbol counts share a value list: merged pair by pair, best first, as long as a merge saves bits.

Costs are integers from integer logarithms, so that the outcome is the same on every machine.
"""

# pyright: basic
# compiled functions have no annotations: numba infers their types at the call

from __future__ import annotations

import numba as nb
import numpy as np
from numba import types
from numpy.typing import NDArray

from syncline.kernels.compiling import INT, array, compiled_as

FRACTION = 16
"""Fraction bits of `log2`."""
MANTISSA = 12

Integers = NDArray[np.int64]


@nb.njit(inline="always")
def log2(value, mantissas):
    """log2 of an integer below 2^53 with 16 fraction bits, from its leading 13 bits; 0 for values below 2."""
    if value < 2:
        return np.int64(0)
    bits = np.float64(value).view(np.int64)
    return (((bits >> 52) - 1023) << FRACTION) + mantissas[(bits >> (52 - MANTISSA)) & ((1 << MANTISSA) - 1)]


@nb.njit
def _bits(one, other, raw, entry_cost, mantissas):
    """Bits of the symbols of two rows under one list, the list included. Symbol 0 is the escape."""
    total = np.int64(0)
    escaped = np.int64(0)
    spent = np.int64(0)
    extra = np.int64(0)
    entries = np.int64(0)
    for symbol in range(one.size):
        n = one[symbol] + other[symbol]
        if n == 0:
            continue
        total += n
        if symbol == 0 or n * (raw[0] - raw[symbol]) < entry_cost:
            escaped += n
            continue
        entries += 1
        extra += n * raw[symbol]
        spent -= n * log2(n, mantissas)
    if escaped:
        entries += 1
        extra += escaped * raw[0]
        spent -= escaped * log2(escaped, mantissas)
    spent += total * log2(total, mantissas)
    return (spent >> FRACTION) + extra + entries * entry_cost


def _merge_kernel(rows, raw, entry_cost, mantissas, labels):
    """Sum rows that go together into the first of them; `labels` says which that is, for each. Rows are changed."""
    count = rows.shape[0]
    nothing = np.zeros(rows.shape[1], np.int64)
    own = np.empty(count, np.int64)
    best = np.full(count, -1, np.int64)  # the best partner of a row above it, and what the merge saves
    gain = np.full(count, np.int64(-1), np.int64)
    for row in range(count):
        labels[row] = row
        own[row] = _bits(rows[row], nothing, raw, entry_cost, mantissas)
    alive = np.ones(count, np.bool_)
    stale = np.ones(count, np.bool_)
    while True:
        first = -1
        for row in range(count):
            if not alive[row]:
                continue
            if stale[row]:
                best[row], gain[row] = -1, -1
                for other in range(row + 1, count):
                    if alive[other]:
                        saved = own[row] + own[other] - _bits(rows[row], rows[other], raw, entry_cost, mantissas)
                        if saved > gain[row]:
                            best[row], gain[row] = other, saved
                stale[row] = False
            if gain[row] >= 0 and (first < 0 or gain[row] > gain[first]):
                first = row
        if first < 0:
            return
        second = best[first]
        rows[first] += rows[second]
        own[first] = _bits(rows[first], nothing, raw, entry_cost, mantissas)
        alive[second] = False
        stale[first] = True
        for row in range(count):
            if labels[row] == second:
                labels[row] = first
            if not alive[row] or row == first:
                continue
            if best[row] == first or best[row] == second:
                stale[row] = True
            elif row < first:
                saved = own[row] + own[first] - _bits(rows[row], rows[first], raw, entry_cost, mantissas)
                if saved > gain[row]:
                    best[row], gain[row] = first, saved


def _bits_kernel(row, raw, entry_cost, mantissas):
    return _bits(row, np.zeros(row.size, np.int64), raw, entry_cost, mantissas)


_ROW = array(INT)
_ROWS = types.Array(INT, 2, "C")


def merge(rows: Integers, raw: Integers, *, entry_cost: int, mantissas: Integers) -> Integers:
    """For each row of counts [row, symbol] the first row of those that it shares a list with.

    `raw` has the bits that follow each symbol, those of a whole unit for symbol 0.
    """
    labels = np.empty(rows.shape[0], np.int64)
    compiled_as(_merge_kernel, (_ROWS, _ROW, INT, _ROW, array(INT, writable=True)), allocates=True)(
        rows.copy(), raw, entry_cost, mantissas, labels
    )
    return labels


def bits(row: Integers, raw: Integers, *, entry_cost: int, mantissas: Integers) -> int:
    """Bits of a row's symbols under a list of its own, the list included."""
    return int(compiled_as(_bits_kernel, (_ROW, _ROW, INT, _ROW), allocates=True)(row, raw, entry_cost, mantissas))
