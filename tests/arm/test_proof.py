"""Who counts for what in an island, and what is said when ranks do not fit together. No sockets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import DigestMismatch, LayoutRefused, ProtocolViolation
from syncline.wire.digest import Digest, seeds, term, total
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.proof import NamedBand, Shares

TABLE = TensorTable(
    tensors=[
        TensorSpec(name="a", dtype="BF16", shape=[6, 4], axis=0),
        TensorSpec(name="b", dtype="F32", shape=[5, 3], axis=1),
        TensorSpec(name="c", dtype="BF16", shape=[0, 3], axis=0),
        TensorSpec(name="d", dtype="BF16", shape=[], axis=0),
    ]
)
SCALAR = NamedBand("d", 0, 0, 1)


def cut(name: str, axis: int, *at: int) -> list[NamedBand]:
    return [NamedBand(name, axis, low, high) for low, high in pairwise(at)]


def digest_of(band: NamedBand, weights: dict[str, np.ndarray]) -> str:
    """What the band adds to its tensor's digest, unit by unit."""
    units = weights[band.tensor]
    parts = [
        term(seeds(band.tensor), position, int(units.reshape(-1)[position]))
        for position in range(units.size)
        if units.ndim == 0 or band.low <= np.unravel_index(position, units.shape)[band.axis] < band.high
    ]
    return total(parts).hex


@given(st.integers(0, 1 << 30), st.integers(1, 4), st.data())
def test_the_parts_of_any_island_sum_to_the_digest_of_the_view(seed: int, ranks: int, data: st.DataObject) -> None:
    draw = np.random.default_rng(seed)
    weights = {
        "a": draw.integers(0, 1 << 16, (6, 4)),
        "b": draw.integers(0, 1 << 32, (5, 3)),
        "d": draw.integers(0, 1 << 16, ()),
    }
    holds: list[list[NamedBand]] = [[SCALAR] for _ in range(ranks)]
    for name, axis, size in (("a", 0, 6), ("b", 1, 3)):
        edges = sorted(data.draw(st.sets(st.integers(1, size - 1), max_size=size - 1)))
        for band in cut(name, axis, 0, *edges, size):
            for rank in data.draw(st.sets(st.integers(0, ranks - 1), min_size=1)):
                holds[rank].append(band)
    shares = Shares(holds)
    digests = [[digest_of(band, weights) for band in held] for held in holds]
    every = [NamedBand("a", 0, 0, 6), NamedBand("b", 0, 0, 5), SCALAR]
    assert total(Digest.from_hex(digest_of(band, weights)) for band in every) == shares.total(digests)
    assert shares.unlike(TABLE) is None


def test_a_copy_with_other_bits_is_named_with_its_ranks() -> None:
    shares = Shares([cut("a", 0, 0, 3), cut("a", 0, 3, 6), cut("a", 0, 0, 3)])
    digests = [["aa" * 16], ["bb" * 16], ["ac" * 16]]
    with pytest.raises(DigestMismatch, match="rank 2 has other bits than rank 0 of a, indices 0 to 2 of axis 0"):
        shares.total(digests)
    digests[2] = digests[0]
    assert Digest.from_hex("aa" * 16) + Digest.from_hex("bb" * 16) == shares.total(digests)


@pytest.mark.parametrize(
    ("holds", "says"),
    [
        ([cut("a", 0, 0, 4), cut("a", 0, 3, 6)], "rank 0 holds a, indices 0 to 3 of axis 0, rank 1 a, indices 3 to 5"),
        ([cut("a", 0, 0, 3), cut("a", 1, 0, 2)], "neither the same nor apart"),
        ([cut("a", 0, 0, 6), cut("a", 0, 0, 3)], "neither the same nor apart"),
        ([cut("a", 0, 2, 2)], "rank 0 holds nothing of a"),
        ([[], [SCALAR, SCALAR]], "rank 1 names d, indices 0 to 0 of axis 0 twice"),
        ([None, [SCALAR]], "rank 0 holds the view whole, rank 1 parts of it"),
    ],
)
def test_bands_that_make_no_view_are_refused_by_name(holds: list[list[NamedBand] | None], says: str) -> None:
    with pytest.raises(LayoutRefused, match=says):
        Shares(holds)


def test_ranks_that_hold_it_whole_need_nobody_to_count() -> None:
    assert Shares([None, None]).is_whole
    assert Shares([None]).unlike(TABLE) is None
    assert Shares([None, []]).is_whole  # the second has said that it cannot be followed


@pytest.mark.parametrize("digests", [[["aa" * 16], None], [["aa" * 16], []], [["aa" * 16], ["aa" * 16] * 2]])
def test_digests_that_are_not_one_a_band_are_a_breach(digests: list[list[str] | None]) -> None:
    with pytest.raises(ProtocolViolation, match="rank 1 told"):
        Shares([cut("a", 0, 0, 3), cut("a", 0, 3, 6)]).total(digests)


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        ([*cut("a", 0, 0, 6), SCALAR], "b"),
        ([*cut("a", 0, 0, 6), *cut("b", 0, 0, 5)], "d"),
        ([*cut("a", 0, 0, 6), *cut("b", 1, 1, 3), SCALAR], "b, indices 0 to 0 of axis 1"),
        ([*cut("a", 0, 0, 2), *cut("a", 0, 4, 6), *cut("b", 0, 0, 5), SCALAR], "a, indices 2 to 3 of axis 0"),
        ([*cut("a", 0, 0, 5), *cut("b", 0, 0, 5), SCALAR], "a, indices 5 to 5 of axis 0"),
    ],
)
def test_what_no_rank_holds_is_named(held: list[NamedBand], missing: str) -> None:
    assert f"no rank holds {missing}" == Shares([held]).unlike(TABLE)
