"""Text that ends before a stop string, whatever way it is cut into tokens, and never lets part of one out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_agent.reference.stopping import TextStream

texts = st.text("ab", max_size=12)


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


@given(texts, st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_what_goes_out_is_what_stands_before_the_first_stop_string_to_end(text: str, stops: list[str]) -> None:
    stream = TextStream(decode, stops)
    out = ""
    for read, character in enumerate(text, 1):
        out += stream.feed(ord(character))
        assert text.startswith(out)
        if stream.stopped:
            assert any(text[:read].endswith(stop) for stop in stops)
            break
    else:
        assert not any(stop in text for stop in stops)
        assert text == out + stream.flush()
        return
    assert not any(stop in out for stop in stops)
    assert any(text[len(out) :].startswith(stop) for stop in stops)
    assert "" == stream.feed(ord("a")) + stream.flush()


@pytest.mark.parametrize(("fed", "out"), [("xy", "xy"), ("xa", "x"), ("xab", "x"), ("xac", "xac")])
def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_decided(fed: str, out: str) -> None:
    stream = TextStream(decode, ["abc"])
    assert out == "".join(stream.feed(ord(c)) for c in fed)
