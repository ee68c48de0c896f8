"""Every codec brings back the very bits: all unit widths, all densities, any content."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from syncline.codecs.base import Codec, FrameChange
from syncline.codecs.registry import CODECS, SectionCodecs, codec_named
from syncline.errors import FormatInvalid, FrameCorrupt
from syncline.wire.chunk import CodecTable

Units = NDArray[np.unsignedinteger]

WIDTHS = (np.uint8, np.uint16, np.uint32, np.uint64)
GUARD = 64
every_codec = pytest.mark.parametrize("each", list(CODECS.values()), ids=lambda c: c.name)
widths = pytest.mark.parametrize("width", WIDTHS, ids=lambda w: w.__name__)


def random_units(width: type[np.unsignedinteger], size: int, seed: int) -> Units:
    return np.frombuffer(np.random.default_rng(seed).bytes(size * np.dtype(width).itemsize), width).copy()


def change_some(old: Units, share: float, seed: int) -> Units:
    """At least one unit differs; as many as `share` says."""
    random = np.random.default_rng(seed)
    where = random.choice(old.size, max(1, round(share * old.size)), replace=False)
    new = old.copy()
    new[where] ^= old.dtype.type(1) << random.integers(0, 8 * old.itemsize, where.size).astype(old.dtype)
    return new


def guarded(old: Units) -> tuple[Units, Units]:
    """A frame between two guard zones, and the whole."""
    whole = np.full(old.size + 2 * GUARD, 0xA5, old.dtype)
    frame = whole[GUARD : GUARD + old.size]
    frame[:] = old
    return frame, whole


def guards_stand(whole: Units) -> bool:
    return bool(np.all(whole[:GUARD] == 0xA5) and np.all(whole[-GUARD:] == 0xA5))


def decoded(each: Codec, payload: bytes, old: Units, changed: int) -> Units:
    frame, whole = guarded(old)
    each.decode(memoryview(payload), frame, changed=changed)
    assert guards_stand(whole)
    return frame


@every_codec
@widths
@pytest.mark.parametrize("size", [1, 63, 257, 4099, 1 << 16])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0])
def test_what_is_encoded_comes_back(each: Codec, width: type[np.unsignedinteger], size: int, share: float) -> None:
    old = random_units(width, size, seed=size)
    new = change_some(old, share, seed=1)
    change = FrameChange.between(old, new)
    assert np.array_equal(new, decoded(each, each.encode(change), old, change.positions.size))


@st.composite
def two_frames(draw: st.DrawFn) -> tuple[Units, Units]:
    width = draw(st.sampled_from(WIDTHS))
    top = (1 << 8 * np.dtype(width).itemsize) - 1
    bits = st.sampled_from([0, 1, top, top >> 1, 1 << (top.bit_length() - 1)]) | st.integers(0, top)
    old = np.array(draw(st.lists(bits, min_size=1, max_size=600)), width)
    changes = draw(st.dictionaries(st.integers(0, old.size - 1), bits, max_size=40))
    new = old.copy()
    for position, value in changes.items():
        new[position] = value
    if np.array_equal(old, new):
        new[-1] ^= width(1)
    return old, new


@every_codec
@given(pair=two_frames())
def test_any_two_frames_round_trip(each: Codec, pair: tuple[Units, Units]) -> None:
    old, new = pair
    change = FrameChange.between(old, new)
    assert np.array_equal(new, decoded(each, each.encode(change), old, change.positions.size))


def no_base() -> Units:
    raise AssertionError("the base was looked at")


@widths
def test_a_codec_that_places_without_the_base_says_the_same_as_its_decoder(width: type[np.unsignedinteger]) -> None:
    old = random_units(width, 4099, seed=3)
    new = change_some(old, 0.02, seed=4)
    change = FrameChange.between(old, new)
    placing = []
    for each in CODECS.values():
        payload = memoryview(each.encode(change))
        placed = each.place(payload, units=old.size, dtype=old.dtype, changed=change.positions.size, base=no_base)
        if placed is not None:
            placing.append(each.name)
            assert np.array_equal(change.positions, placed.positions)
            assert np.array_equal(change.after, placed.units)
    assert ["sparse"] == placing


@every_codec
def test_the_same_change_gives_the_same_bytes(each: Codec) -> None:
    old = random_units(np.uint16, 1 << 15, seed=5)
    change = FrameChange.between(old, change_some(old, 0.01, seed=6))
    assert each.encode(change) == each.encode(change)


def test_the_head_of_a_change_is_the_change_of_the_head() -> None:
    old = random_units(np.uint16, 1000, seed=7)
    new = change_some(old, 0.1, seed=8)
    head, expected = FrameChange.between(old, new).head(300), FrameChange.between(old[:300], new[:300])
    assert expected.units == head.units
    assert np.array_equal(expected.positions, head.positions)
    assert np.array_equal(expected.before, head.before)
    assert np.array_equal(expected.after, head.after)
    assert np.array_equal(expected.whole(), head.whole())


def section_codec(
    codec_id: int, params: bytes = b"", *, tables: Sequence[CodecTable] = (), dtype: str = "BF16"
) -> Codec:
    return SectionCodecs(tables, what="chunk c").codec(codec_id, params, dtype)


@pytest.mark.parametrize("codec_id", [0, 6, 255])
def test_an_unknown_codec_is_refused_with_its_number(codec_id: int) -> None:
    with pytest.raises(FormatInvalid, match=f"codec {codec_id} "):
        section_codec(codec_id)


@every_codec
def test_a_codec_is_found_by_id_and_by_name(each: Codec) -> None:
    assert each is section_codec(each.id)
    assert each is codec_named(each.name)


@every_codec
def test_parameters_and_tables_are_refused_by_codecs_that_take_none(each: Codec) -> None:
    with pytest.raises(FormatInvalid, match=f"{each.name}.*takes none"):
        section_codec(each.id, b"\x00")
    with pytest.raises(FormatInvalid, match=f"table for codec {each.id} \\({each.name}\\); it takes none"):
        section_codec(each.id, tables=[CodecTable(each.id, b"")])


@every_codec
@pytest.mark.parametrize("other", [-1, 1])
def test_a_wrong_number_of_changes_is_corrupt(each: Codec, other: int) -> None:
    old = random_units(np.uint16, 4099, seed=9)
    change = FrameChange.between(old, change_some(old, 0.01, seed=10))
    with pytest.raises(FrameCorrupt):
        decoded(each, each.encode(change), old, change.positions.size + other)


@pytest.mark.parametrize("name", ["raw", "sparse"])
def test_a_base_that_already_holds_a_new_unit_is_corrupt(name: str) -> None:
    old = random_units(np.uint16, 4099, seed=11)
    new = change_some(old, 0.01, seed=12)
    change = FrameChange.between(old, new)
    other = old.copy()
    other[change.positions[0]] = new[change.positions[0]]
    with pytest.raises(FrameCorrupt):
        decoded(codec_named(name), codec_named(name).encode(change), other, change.positions.size)
