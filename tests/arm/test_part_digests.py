"""Digests of parts as columns are what they are one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from syncline.wire.digest import MASK64, Digest, total
from syncline_agent.arm.part_digests import PartDigests

words = st.one_of(st.integers(0, 9), st.integers(MASK64 - 9, MASK64))
entries = st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 9)), st.builds(Digest, words, words), max_size=12)
Entries = dict[tuple[int, int], Digest]


def columns(entries: Entries) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    keys = np.array(list(entries), np.int64).reshape(-1, 2)
    lanes = np.array([(digest.lane1, digest.lane2) for digest in entries.values()], np.uint64).reshape(-1, 2)
    return keys[:, 0], keys[:, 1], lanes


@given(entries, st.data())
def test_they_are_held_and_summed_by_tensor(entries: Entries, data: st.DataObject) -> None:
    expected: dict[int, dict[int, Digest]] = {}
    for (tensor, part), digest in entries.items():
        expected.setdefault(tensor, {})[part] = digest
    kinds = {key: data.draw(st.integers(0, 2)) for key in entries}
    rows = [columns({key: own for key, own in entries.items() if kinds[key] == kind}) for kind in (0, 1)]
    single = [(*key, own) for key, own in entries.items() if kinds[key] == 2]
    for found in (PartDigests(*columns(entries)), PartDigests.of(rows, single)):
        assert expected == found
        assert sorted(expected) == list(found)
        assert {tensor: total(parts.values()) for tensor, parts in expected.items()} == found.sums
        assert all((tensor in expected) == (tensor in found) for tensor in range(6))
