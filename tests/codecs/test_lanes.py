"""Lanes that are found for many payloads at once lie where they lie for each alone, and damaged lengths are seen in both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.codecs.context.codec import split_lanes
from syncline.codecs.context.lanes import place_lanes
from syncline.errors import FrameCorrupt
from syncline.wire.varint import put_varint

lengths = st.lists(st.sampled_from([0, 1, 127, 128, 300, 20_000]), min_size=4, max_size=4)


def payload(words: list[int]) -> bytes:
    out = bytearray()
    for count in words[:-1]:
        put_varint(out, count)
    return bytes(out) + bytes(2 * sum(words))


def agree(payloads: list[bytes], lanes: int) -> None:
    sizes = np.array([len(p) for p in payloads], np.int64)
    starts = np.cumsum(sizes) - sizes
    found = place_lanes(np.frombuffer(b"".join(payloads), np.uint8), starts, sizes, lanes)
    for at, one in enumerate(payloads):
        try:
            words, ends = split_lanes(memoryview(one), lanes)
        except FrameCorrupt:
            assert found.corrupt[at]
            assert not found.words[at].any()
            continue
        first = int(starts[at]) + len(one) - 2 * words.size
        assert not found.corrupt[at]
        assert np.diff(ends).tolist() == found.words[at].tolist()
        assert (first + 2 * ends[:-1]).tolist() == found.starts[at].tolist()


@given(st.lists(lengths, max_size=6))
@settings(max_examples=30, deadline=None)
def test_lanes_of_many_payloads_lie_where_each_says(words: list[list[int]]) -> None:
    agree([payload(each) for each in words], 4)
    agree([payload(each)[3:] for each in words], 1)


@given(st.lists(st.binary(max_size=12) | st.binary(max_size=12).map(lambda b: b"\x80" + b), max_size=6))
@settings(max_examples=200, deadline=None)
def test_damaged_lengths_are_corrupt_in_both_and_touch_no_neighbour(payloads: list[bytes]) -> None:
    for lanes in (1, 2, 8):
        agree(payloads, lanes)


@pytest.mark.parametrize(("start", "size"), [(0, 9), (8, 1), (-1, 2), (3, -1), (1 << 62, 1 << 62)])
def test_a_payload_that_does_not_lie_in_the_buffer_is_refused(start: int, size: int) -> None:
    with pytest.raises(ValueError, match="do not lie in 8 bytes"):
        place_lanes(np.zeros(8, np.uint8), np.array([0, start]), np.array([1, size]), 2)
