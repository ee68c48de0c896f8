"""Which tensors share a codec table: those of one kind always, kinds where that costs fewer bits than tables of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from syncline.codecs.context.counts import Counts
from syncline.codecs.context.fitting import fit, shared_bits
from syncline.codecs.context.table import ContextTable
from syncline.kernels.clock import Alphabet


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


def share_tables(kinds: Iterable[Kind], *, exact: bool) -> None:
    """Give every kind its table, from the counts of all kinds (`exact`: see `fitting.fit`)."""
    of_alphabet: dict[Alphabet, list[Kind]] = {}
    for kind in kinds:
        of_alphabet.setdefault(kind.alphabet, []).append(kind)
    for alphabet, alike in of_alphabet.items():
        for members in _merged([kind.counts for kind in alike], alphabet):
            together = Counts.none()
            for member in members:
                together += alike[member].counts
            table = fit(together, alphabet, exact=exact)
            for member in members:
                alike[member].table, alike[member].sharing = table, int(together.symbols.sum())


def _merged(counts: list[Counts], alphabet: Alphabet) -> Iterator[list[int]]:
    """Which of the counts go together: pairs are merged, best first, while a merge saves bits."""
    groups = [([i], one, shared_bits(one, alphabet)) for i, one in enumerate(counts)]
    while len(groups) > 1:
        best = (0, 0, 0)
        for first in range(len(groups)):
            for second in range(first):
                merged = shared_bits(groups[first][1] + groups[second][1], alphabet)
                best = max(best, (groups[first][2] + groups[second][2] - merged, first, second))
        gain, first, second = best
        if gain <= 0:
            break
        one, other = groups.pop(first), groups.pop(second)
        groups.append((one[0] + other[0], one[1] + other[1], one[2] + other[2] - gain))
    yield from (sorted(members) for members, _, _ in groups)
