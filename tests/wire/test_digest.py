"""The digest finds what the field's checks miss: moves, swaps and flips, in any order of summing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.wire.digest import Digest, seeds, term, total

SEED = seeds("model.layers.0.mlp.up_proj.weight")
bits16 = st.integers(0, 0xFFFF)


def test_seeds_are_pinned() -> None:
    assert (3710875159, 1403283929) == seeds("a")


def test_terms_are_pinned() -> None:
    assert Digest(3138576761746069989, 1865618048269564619) == term(seeds("a"), 5, 0x3F80)
    assert Digest(49255348107628469, 19864412546260290) == term(seeds("a"), (1 << 40) + 5, 0x3F80)


@given(position=st.integers(0, 1 << 50), old=bits16, new=bits16)
def test_one_changed_unit_always_changes_the_digest(position: int, old: int, new: int) -> None:
    assert (old == new) == (term(SEED, position, old) == term(SEED, position, new))


@given(values=st.lists(st.tuples(st.integers(0, 1 << 40), bits16), max_size=20), data=st.data())
def test_order_does_not_matter(values: list[tuple[int, int]], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(values))
    assert total(term(SEED, p, b) for p, b in values) == total(term(SEED, p, b) for p, b in shuffled)


def test_swapped_neighbours_and_shifted_rows_are_found() -> None:
    row = [(i * 7919) & 0xFFFF for i in range(256)]
    whole = total(term(SEED, p, b) for p, b in enumerate(row))
    for at in range(255):
        if row[at] != row[at + 1]:
            swapped = [*row[:at], row[at + 1], row[at], *row[at + 2 :]]
            assert whole != total(term(SEED, p, b) for p, b in enumerate(swapped))
    assert whole != total(term(SEED, p, b) for p, b in enumerate([row[-1], *row[:-1]]))


def test_compensating_changes_are_found() -> None:
    """Sums of plain values miss +d here and -d there; 2^16 such pairs at neighbouring positions give no collision."""
    base = term(SEED, 10, 0x3F80) + term(SEED, 11, 0x3F80)
    for step in range(1, 1 << 12):
        assert base != term(SEED, 10, 0x3F80 + step) + term(SEED, 11, 0x3F80 - step)


def test_terms_do_not_collide_on_a_million_positions_and_bits() -> None:
    seen = {term(SEED, p, b).lane1 for p in range(300) for b in range(0, 1 << 16, 97)}
    assert 300 * len(range(0, 1 << 16, 97)) == len(seen)


@pytest.mark.parametrize("bits", [0, 1, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1])
def test_eight_byte_units_are_two_words(bits: int) -> None:
    low, high = bits & 0xFFFFFFFF, bits >> 32
    assert term(SEED, 2 * 5, low, 4) + term(SEED, 2 * 5 + 1, high, 4) == term(SEED, 5, bits, 8)


@given(lane1=st.integers(0, (1 << 64) - 1), lane2=st.integers(0, (1 << 64) - 1))
def test_digests_round_trip_and_subtract(lane1: int, lane2: int) -> None:
    digest = Digest(lane1, lane2)
    assert digest == Digest.from_hex(digest.hex)
    assert Digest() == digest - digest
