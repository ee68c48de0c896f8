"""Which tensors share a codec table: those of one kind always, kinds where that costs fewer bits than tables of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from syncline.codecs.context.counts import Counts, Totals
from syncline.codecs.context.fitting import fit, shared_bits
from syncline.codecs.context.table import ContextTable
from syncline.kernels.clock import Alphabet

KINDS_MOST = 32
"""Kinds that a group tells apart: each pair is compared, and each takes half a megabyte."""


def kind_of(dtype: str, name: str) -> str:
    """What tensors of one kind have in common: the dtype, and the name but for its numbers."""
    return f"{dtype} {re.sub('[0-9]+', '#', name)}"


@dataclass(slots=True)
class Kind:
    """Tensors that are alike."""

    alphabet: Alphabet
    counts: Counts = field(default_factory=Counts.none)
    table: ContextTable | None = None
    sharing: int = 1
    """Changes of all kinds that share the table."""


class Kinds:
    """The kinds that a group of tensors tells apart."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def of(self, dtype: str, name: str, alphabet: Alphabet, *, dense: bool = False) -> Kind:
        """The kind of a tensor; its frames that change nearly everywhere (`dense`) are another."""
        dtype = f"dense {dtype}" if dense else dtype
        known = kind_of(dtype, name)
        if known not in self._kinds and len(self._kinds) >= KINDS_MOST:
            known = dtype  # names that say nothing: whatever else there is of the dtype is one kind
        return self._kinds.setdefault(known, Kind(alphabet))

    def share_tables(self, *, exact: bool) -> None:
        """Give every kind its table, from the counts of all (`exact`: see `fitting.fit`)."""
        of_alphabet: dict[Alphabet, list[Kind]] = {}
        for kind in self._kinds.values():
            of_alphabet.setdefault(kind.alphabet, []).append(kind)
        for alphabet, alike in of_alphabet.items():
            _give_tables(alphabet, alike, exact=exact)


def _give_tables(alphabet: Alphabet, alike: list[Kind], *, exact: bool) -> None:
    for members in _merged([Totals.of(kind.counts) for kind in alike], alphabet):
        together = Counts.none()
        for member in members:
            together += alike[member].counts
        table = fit(together, alphabet, exact=exact)
        for member in members:
            alike[member].table, alike[member].sharing = table, int(together.symbols.sum())


def _merged(counts: list[Totals], alphabet: Alphabet) -> Iterator[list[int]]:
    """Which of the counts go together: pairs are merged, best first, while a merge saves bits."""
    groups = {i: ([i], one, shared_bits(one, alphabet)) for i, one in enumerate(counts)}
    # Of each pair; a merge changes no gain but those of what it made, so none is reckoned twice.
    gains: dict[tuple[int, int], int] = {}
    while len(groups) > 1:
        order = list(groups)
        best = (0, 0, 0)
        for first in range(len(order)):
            for second in range(first):
                pair = (order[first], order[second])
                if pair not in gains:
                    (_, one, bits), (_, other, others) = groups[pair[0]], groups[pair[1]]
                    gains[pair] = bits + others - shared_bits(one + other, alphabet)
                best = max(best, (gains[pair], first, second))
        gain, first, second = best
        if gain <= 0:
            break
        one, other = groups.pop(order[first]), groups.pop(order[second])
        groups[order[-1] + 1] = (one[0] + other[0], one[1] + other[1], one[2] + other[2] - gain)
    yield from (sorted(members) for members, _, _ in groups.values())
