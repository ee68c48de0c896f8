"""Safetensors headers: what is read, what is refused, and that nothing else ever comes out of garbage."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from syncline.checkpoint import Header, header_bytes, read_safetensors_header
from syncline.checkpoint.headers import HEADER_MAX_BYTES
from syncline.errors import LayoutRefused, SourceInvalid, SourceNotReady
from syncline.wire import dtypes


def file_of(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def read(data: bytes) -> Header:
    return read_safetensors_header(io.BytesIO(data), what="model.safetensors")


def entry(begin: int, end: int, *, dtype: str = "U8", shape: list[int] | None = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def test_tensors_are_found_where_they_lie():
    header = read(
        file_of({"__metadata__": {"format": "pt"}, "b": entry(0, 3), "a": entry(3, 3), "c": entry(3, 4)}, b"1234")
    )
    start = header.file_bytes - 4
    assert {"a": (start + 3, 0), "b": (start, 3), "c": (start + 3, 1)} == {
        n: (t.offset, t.size) for n, t in header.tensors.items()
    }
    assert {"format": "pt"} == header.metadata


def test_packed_and_0d_tensors_have_the_size_of_their_bytes():
    tensors = [("a", "F4", [3, 6]), ("b", "F64", []), ("c", "F6_E2M3", [4]), ("d", "BF16", [0, 9]), ("e", "C64", [2])]
    data = header_bytes(tensors) + bytes(9 + 8 + 3 + 0 + 16)
    assert [9, 8, 3, 0, 16] == [read(data).tensors[n].size for n, _, _ in tensors]
    assert [9, 1, 3, 0, 2] == [read(data).tensors[n].units for n, _, _ in tensors]


def test_a_written_header_is_one_that_the_safetensors_library_reads(tmp_path: Path):
    tensors = [("x.weight", "BF16", [2, 3]), ("y", "I64", []), ("żółć", "F32", [1])]
    file = tmp_path / "model.safetensors"
    data = header_bytes(tensors, {"format": "pt"})
    assert 0 == len(data) % 8
    file.write_bytes(data + bytes(12 + 8 + 4))
    with safe_open(file, framework="numpy") as opened:
        assert {"x.weight", "y", "żółć"} == set(opened.keys())
        assert {"format": "pt"} == opened.metadata()
        assert [2, 3] == opened.get_slice("x.weight").get_shape()


OVERLONG = "n" * 513
INVALID = {
    "a header beyond the bound": (HEADER_MAX_BYTES + 1).to_bytes(8, "little") + b"{}",
    "a header of one byte": file_of(b"{"),
    "no JSON": file_of(b"{oops}"),
    "not UTF-8": file_of(b'{"\xff":1}'),
    "a list": file_of(b"[]"),
    "space before the brace": file_of(b" {}"),
    "a name twice": file_of(
        b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    ),
    "an unknown dtype": file_of({"a": entry(0, 2, dtype="F2", shape=[8])}, b"12"),
    "an overlap": file_of({"a": entry(0, 3), "b": entry(2, 4)}, b"1234"),
    "the same bytes twice": file_of({"a": entry(0, 2), "b": entry(0, 2)}, b"12"),
    "a hole in the middle": file_of({"a": entry(0, 1), "b": entry(2, 3)}, b"123"),
    "a hole at the start": file_of({"a": entry(1, 2)}, b"12"),
    "bytes after the end": file_of({"a": entry(0, 1)}, b"12"),
    "a size that is not the shape's": file_of({"a": entry(0, 3, shape=[2])}, b"123"),
    "an end before its begin": file_of({"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 0]}}, b"1"),
    "a negative dimension": file_of({"a": entry(0, 2, shape=[-1, -2])}, b"12"),
    "a fraction": file_of({"a": {"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]}}, b"1"),
    "a boolean": file_of({"a": {"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}}, b"1"),
    "an enormous dimension": file_of({"a": entry(0, 1, shape=[1 << 60])}, b"1"),
    "too many dimensions": file_of({"a": entry(0, 1, shape=[1] * 17)}, b"1"),
    "three offsets": file_of({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 1]}}, b"1"),
    "half a byte": file_of({"a": entry(0, 2, dtype="F4", shape=[3])}, b"12"),
    "a field too many": file_of({"a": {**entry(0, 1), "extra": 0}}, b"1"),
    "a field too few": file_of({"a": {"dtype": "U8", "shape": [1]}}, b"1"),
    "an entry that is a number": file_of({"a": 1}),
    "metadata that is no object": file_of({"__metadata__": []}),
    "metadata other than strings": file_of({"__metadata__": {"a": 1}}),
    "an empty name": file_of({"": entry(0, 1)}, b"1"),
    "an overlong name": file_of({OVERLONG: entry(0, 1)}, b"1"),
    "a name with NUL": file_of(b'{"a\\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
    "half a surrogate pair": file_of(b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
    "deep nesting": file_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
}


@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID.keys())
def test_what_can_never_be_read_is_refused_by_name(data: bytes):
    with pytest.raises(SourceInvalid, match=r"model\.safetensors"):
        read(data)


def test_a_tensor_without_a_name_is_told_as_such():
    with pytest.raises(SourceInvalid, match="a tensor has an empty name"):
        read(INVALID["an empty name"])


@pytest.mark.parametrize("left", [0, 7, 8, 30, -1])
def test_a_file_that_is_shorter_than_its_header_says_may_still_grow(left: int):
    whole = file_of({"a": entry(0, 40)}, bytes(40))
    with pytest.raises(SourceNotReady, match=r"model\.safetensors"):
        read(whole[:left])


@given(data=st.binary(max_size=300), framed=st.booleans())
def test_garbage_is_read_or_refused_and_nothing_else(data: bytes, framed: bool):
    try:
        header = read(file_of(b"{" + data) if framed else data)
    except (SourceInvalid, SourceNotReady):
        return
    assert all(t.offset + t.size <= header.file_bytes for t in header.tensors.values())


@given(flip=st.tuples(st.integers(0, 400), st.integers(1, 255)))
def test_a_flipped_byte_is_read_or_refused_and_never_leads_outside(flip: tuple[int, int]):
    data = bytearray(header_bytes([("a", "BF16", [3, 4]), ("b", "F4", [8]), ("c", "I64", [])]) + bytes(24 + 4 + 8))
    data[flip[0] % len(data)] ^= flip[1]
    try:
        header = read(bytes(data))
    except (SourceInvalid, SourceNotReady):
        return
    spans = sorted((t.offset, t.offset + t.size) for t in header.tensors.values())
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    assert header.file_bytes == spans[-1][1]


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(dtypes.DTYPES)), st.lists(st.integers(0, 4).map(lambda n: 4 * n), max_size=3))
    )
)
def test_what_is_written_is_read_back(kinds: list[tuple[str, list[int]]]):
    tensors = [
        (f"t{i}", kind, shape) for i, (kind, shape) in enumerate(kinds) if shape or dtypes.DTYPES[kind].bits >= 8
    ]
    size = sum(dtypes.size_bytes(kind, shape) for _, kind, shape in tensors)
    header = read(header_bytes(tensors) + bytes(size))
    assert {n: (kind, tuple(shape)) for n, kind, shape in tensors} == {
        n: (t.dtype, t.shape) for n, t in header.tensors.items()
    }


def test_a_header_that_no_reader_takes_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [(f"layer.{n}", "BF16", [1]) for n in range(100)]
    whole = len(header_bytes(tensors)) - 8
    monkeypatch.setattr("syncline.checkpoint.headers.HEADER_MAX_BYTES", whole)
    assert whole + 8 == len(header_bytes(tensors))
    monkeypatch.setattr("syncline.checkpoint.headers.HEADER_MAX_BYTES", whole - 1)
    with pytest.raises(LayoutRefused, match=f"100 tensors has {whole} bytes"):
        header_bytes(tensors)
