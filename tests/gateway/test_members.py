"""JSON objects read member by member, and edited where they stand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_agent.gateway.members import NotAnObject, read_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=6), st.sampled_from([None, 1, 3]), st.booleans())
def test_what_is_read_is_what_json_says_and_an_edit_touches_nothing_else(
    value: dict[str, object], indent: int | None, ascii_only: bool
) -> None:
    found = read_object(json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode())
    assert value == found.fields
    assert value == json.loads(found.edited())
    for name in value:
        without = {key: inner for key, inner in value.items() if key != name}
        assert without == json.loads(found.edited(without=[name]))
        assert without | {name: 1} == json.loads(found.edited(more={name: 1}))


def test_every_byte_of_what_stays_is_kept() -> None:
    body = b' { "a" : 1.50e2, "weight_version":{"min":1} ,\n "b":"\\u00e9\xc3\xa9", "a":[ 1 , 2], "big":123456789012345678901 } '
    edited = read_object(body).edited(without=["weight_version"], more={"c": True})
    assert b'{"a" : 1.50e2,"b":"\\u00e9\xc3\xa9","a":[ 1 , 2],"big":123456789012345678901,"c":true}' == edited
    assert b'{"c":1}' == read_object(b"{ }").edited(more={"c": 1})
    assert b"{}" == read_object(b'{"x":1,"x":2}').edited(without=["x"])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "'{' is missing at character 0"),
        (b"[1]", "'{' is missing"),
        (b'{"a":1', "',' is missing at character 6"),
        (b'{"a"}', "':' is missing"),
        (b'{"a":1,}', "character 7"),
        (b"{1:2}", "no name"),
        (b'{"a":}', "character 5"),
        (b'{"a":1} x', "something follows"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "'{' is missing"),
        (b'{"a":' + b"[" * 100_000, "nested too deep"),
        (b'{"a":' + b"1" * 10_000 + b"}", "digits"),
        (b'{"a":"x', "character"),
    ],
)
def test_what_is_no_object_is_refused_with_the_place(body: bytes, says: str) -> None:
    with pytest.raises(NotAnObject, match=says):
        read_object(body)
