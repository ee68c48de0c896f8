"""What was seen of a tensor: how often each context occurs, changes, and with which symbols."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.context.table import CONTEXTS, SYMBOLS
from syncline.kernels import clock_counting
from syncline.kernels.clock import Alphabet

Integers = NDArray[np.int64]

BLOCK = 64
SAMPLE = 1 << 18
"""Units whose contexts are counted, of each tensor at least: more tell nothing new, and cost a look at every unit."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums over units; add those of tensors that shall share a table."""

    units: Integers
    """Of each context; an estimate where only a sample was looked at."""
    symbols: Integers
    """[context, symbol] of the changed units."""

    @classmethod
    def none(cls) -> Counts:
        return cls(np.zeros(CONTEXTS, np.int64), np.zeros((CONTEXTS, SYMBOLS), np.int64))

    @property
    def changes(self) -> Integers:
        """Changed units of each context."""
        return self.symbols.sum(1)

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.units + other.units, self.symbols + other.symbols)


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of which only the sums over contexts and over symbols are kept."""

    units: Integers
    changes: Integers
    """Of each context."""
    symbols: Integers
    """Changed units of each symbol."""

    @classmethod
    def of(cls, counts: Counts) -> Totals:
        return cls(counts.units, counts.changes, counts.symbols.sum(0))

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.units + other.units, self.changes + other.changes, self.symbols + other.symbols)


def count_units(alphabet: Alphabet, flat: NDArray[np.unsignedinteger]) -> Integers:
    """Units of each context: of a small tensor exactly, else from every so many blocks of 64."""
    stride = max(1, flat.size // SAMPLE)
    found = np.zeros(CONTEXTS, np.int64)
    seen = clock_counting.count_units(alphabet)(flat, BLOCK, stride, found)
    return found if seen == flat.size else found * flat.size // max(int(seen), 1)


def count_symbols(
    alphabet: Alphabet, before: NDArray[np.unsignedinteger], after: NDArray[np.unsignedinteger], into: Integers
) -> None:
    """Add changed units to `into` [context, symbol]."""
    clock_counting.count_symbols(alphabet)(before, after, into.reshape(-1))
