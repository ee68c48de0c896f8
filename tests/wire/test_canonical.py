"""One value, one encoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import FormatInvalid
from syncline.wire.canonical import decode, encode

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(value=values)
def test_every_value_round_trips(value: object) -> None:
    assert value == decode(encode(value), max_bytes=1 << 20, what="value")


@pytest.mark.parametrize(
    "text",
    [
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'{"a":1,"a":1}',
        b'{"a":1.0}',
        b'{"a":1e3}',
        b'{"a":NaN}',
        b'{"a":9223372036854775808}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'"\\u0041"',
        b'"\xff"',
        b"[" * 100_000,
        b"01",
        b"-0",
        b"",
        b"{}\n",
    ],
)
def test_everything_else_is_refused(text: bytes) -> None:
    with pytest.raises(FormatInvalid, match="thing"):
        decode(text, max_bytes=1 << 20, what="thing")


def test_an_oversized_object_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(FormatInvalid, match="more than the 3 allowed"):
        decode(b"[1,2]", max_bytes=3, what="thing")


@given(garbage=st.binary(max_size=200))
def test_garbage_parses_or_raises_format_invalid(garbage: bytes) -> None:
    try:
        decode(garbage, max_bytes=1000, what="thing")
    except FormatInvalid:
        pass
