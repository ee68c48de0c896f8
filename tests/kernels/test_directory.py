"""The compiled directory is the plain one: the same columns and bytes, and refused where the plain one refuses it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.errors import FormatInvalid
from syncline.kernels import directory as compiled
from syncline.wire.directory import FRAME_INDEX_MAX, Counts, Directory, read_directory, write_directory
from syncline.wire.limits import CHUNK_MAX_BYTES, CODEC_TABLES_MAX, FRAME_MAX_UNITS, TENSORS_MAX

BOUNDS = np.array([0, 3, 200, FRAME_INDEX_MAX, 1, 40_000], np.int64)
byte = st.integers(0, 255)
sizes = st.one_of(st.integers(0, 300), st.integers(0, CHUNK_MAX_BYTES))
changes = st.one_of(st.integers(1, 300), st.integers(1, FRAME_MAX_UNITS))


def column(values: list[int], kind: type = np.int64) -> np.ndarray:
    return np.array(values, kind)


@st.composite
def directories(draw: st.DrawFn) -> Directory:
    """Any that is well."""
    tables = draw(st.lists(st.tuples(byte, st.integers(0, 1 << 15)), max_size=3))
    tensors = sorted(draw(st.sets(st.sampled_from([n for n, bound in enumerate(BOUNDS) if bound]))))
    own = [sorted(draw(st.sets(st.integers(0, int(BOUNDS[tensor]) - 1), min_size=1, max_size=4))) for tensor in tensors]
    indices = [index for of_tensor in own for index in of_tensor]
    many = len(indices)
    return Directory(
        [codec for codec, _ in tables],
        [size for _, size in tables],
        column(tensors),
        column(draw(st.lists(byte, min_size=len(own), max_size=len(own)))),
        draw(st.lists(st.binary(max_size=64), min_size=len(own), max_size=len(own))),
        column([len(of_tensor) for of_tensor in own]),
        column(indices),
        column(draw(st.lists(changes, min_size=many, max_size=many))),
        column(draw(st.lists(sizes, min_size=many, max_size=many))),
        column(draw(st.lists(st.integers(0, (1 << 32) - 1), min_size=many, max_size=many)), np.uint32),
    )


def plain(directory: Directory) -> list[object]:
    return [np.asarray(getattr(directory, field.name)).tolist() for field in fields(directory)]


def counts_of(directory: Directory) -> Counts:
    body = sum(directory.table_sizes) + int(directory.sizes.sum())
    return Counts(len(directory.table_codecs), directory.tensors.size, body)


def frames_of(tensor: int) -> int:
    if tensor >= BOUNDS.size:
        raise FormatInvalid("no such tensor")
    return int(BOUNDS[tensor])


def both_say(data: bytes, counts: Counts) -> None:
    found = compiled.reader(BOUNDS)(memoryview(data), counts)
    try:
        expected = read_directory(memoryview(data), counts, what="it", frames_of=frames_of)
    except FormatInvalid:
        assert found is None
    else:
        assert found is not None
        assert plain(expected) == plain(found)


@given(directories())
def test_what_is_written_is_what_the_plain_one_writes_and_reads(directory: Directory) -> None:
    data = write_directory(directory)
    assert data == compiled.write(directory)
    counts = counts_of(directory)
    both_say(data, counts)
    assert plain(directory) == plain(read_directory(memoryview(data), counts, what="it", frames_of=frames_of))


@settings(max_examples=300)
@given(directories(), st.data())
def test_what_is_damaged_is_read_as_the_plain_one_reads_it_or_refused(
    directory: Directory, data: st.DataObject
) -> None:
    written, counts = bytearray(write_directory(directory)), counts_of(directory)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(written)))
        match data.draw(st.sampled_from(["set", "insert", "cut", "tables", "sections", "body"])):
            case "set" if at < len(written):
                written[at] = data.draw(byte)
            case "insert":
                written.insert(at, data.draw(byte))
            case "cut":
                del written[at:]
            case "tables":
                counts = replace(counts, tables=data.draw(st.integers(0, CODEC_TABLES_MAX + 2)))
            case "sections":
                counts = replace(counts, sections=data.draw(st.integers(0, 8)))
            case _:
                counts = replace(counts, body_bytes=max(counts.body_bytes + data.draw(st.integers(-2, 2)), 0))
    both_say(bytes(written), counts)


SECTION = (0, 1, 0, 1)
"""Of the tensor before it, of codec 1, without parameters, one frame."""
FRAME = (0, 1, 0, 9, 9, 9, 9)
LONGEST = (0x80,) * 8 + (0x01,)

# (what is wrong or at its bound, the bytes, its counts)
HOSTILE = [
    ("nothing", (), Counts(0, 0, 0)),
    ("nothing, and a body", (), Counts(0, 0, 1)),
    ("a frame", (1, *SECTION[1:], *FRAME), Counts(0, 1, 0)),
    ("a frame of a tensor without any", (*SECTION, *FRAME), Counts(0, 1, 0)),
    ("a tensor behind the table", (BOUNDS.size, *SECTION[1:], *FRAME), Counts(0, 1, 0)),
    ("steps that sum to a tensor behind all", (3, *SECTION[1:], *FRAME, 0xFF, 0xFF, 0x3F, *SECTION[1:], *FRAME), Counts(0, 2, 0)),
    ("a tensor twice, its frame again", (3, *SECTION[1:], *FRAME, *SECTION, *FRAME), Counts(0, 2, 0)),
    ("a tensor twice, another frame", (3, *SECTION[1:], *FRAME, *SECTION, 1, *FRAME[1:]), Counts(0, 2, 0)),
    ("a section without frames", (1, 1, 0, 0), Counts(0, 1, 0)),
    ("more frames than there are bytes for", (3, 1, 0, *LONGEST), Counts(0, 1, 0)),
    ("more frames than the tensor has", (1, 1, 0, 4, *FRAME * 4), Counts(0, 1, 0)),
    ("more sections than there are bytes for", (1, *SECTION[1:], *FRAME), Counts(0, 0xFFFFFFFF, 0)),
    ("more tables than allowed", (1, 0) * (CODEC_TABLES_MAX + 1), Counts(CODEC_TABLES_MAX + 1, 0, 0)),
    ("a frame that changes nothing", (1, *SECTION[1:], 0, 0, *FRAME[2:]), Counts(0, 1, 0)),
    ("a varint that is not in its shortest form", (0x81, 0x00, *SECTION[1:], *FRAME), Counts(0, 1, 0)),
    ("a varint of ten bytes", (3, *SECTION[1:], *(0x80,) * 9, 1, *FRAME[1:]), Counts(0, 1, 0)),
    ("the largest index", (3, *SECTION[1:], 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x1F, *FRAME[1:]), Counts(0, 1, 0)),
    ("an index beyond the largest", (3, *SECTION[1:], 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, *FRAME[1:]), Counts(0, 1, 0)),
    ("a payload beyond the body", (1, *SECTION[1:], 0, 1, 3, 9, 9, 9, 9), Counts(0, 1, 2)),
    ("a table beyond the body", (1, 3), Counts(1, 0, 2)),
    ("parameters beyond the directory", (1, 1, 60, 1, *FRAME), Counts(0, 1, 0)),
    ("a byte behind the last", (1, *SECTION[1:], *FRAME, 0), Counts(0, 1, 0)),
    ("the largest tensor", (0xFF, 0xFF, 0x3F, *SECTION[1:], *FRAME), Counts(0, 1, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("what", "data", "counts"), HOSTILE, ids=[what for what, *_ in HOSTILE])
def test_both_say_the_same_of(what: str, data: tuple[int, ...], counts: Counts) -> None:
    both_say(bytes(data), counts)


def test_a_tensor_of_the_last_number_is_read() -> None:
    every = np.ones(TENSORS_MAX + 1, np.int64)
    last, beyond = (0xFF, 0xFF, 0x3F, *SECTION[1:], *FRAME), (0x80, 0x80, 0x40, *SECTION[1:], *FRAME)
    found = compiled.reader(every)(memoryview(bytes(last)), Counts(0, 1, 0))
    assert found is not None
    assert [TENSORS_MAX - 1] == found.tensors.tolist()
    assert compiled.reader(every)(memoryview(bytes(beyond)), Counts(0, 1, 0)) is None


WELL = Directory(
    [7], [2], column([1, 2]), column([1, 2]), [b"a", b""], column([2, 1]), column([0, 2, 5]), column([1, 1, 1]),
    column([0, 3, 4]), column([1, 2, 3], np.uint32),
)  # fmt: skip

# (what is wrong, the columns that are)
UNWRITABLE = [
    ("tensors out of order", {"tensors": column([2, 1])}),
    ("a frame twice", {"indices": column([2, 2, 5])}),
    ("frames out of order", {"indices": column([2, 0, 5])}),
    ("a size below none", {"sizes": column([0, -1, 4])}),
    ("a change below none", {"changed": column([1, 1, -1])}),
    ("a codec of no byte", {"codecs": column([1, 256])}),
    ("a table of no byte", {"table_codecs": [-1]}),
    ("frames below none", {"frames": column([3, -1])}),
    ("a section without its codec", {"codecs": column([1])}),
    ("a frame without its size", {"sizes": column([0, 3])}),
    ("a frame without its checksum", {"sums": column([], np.uint32)}),
]


@pytest.mark.parametrize(("what", "wrong"), UNWRITABLE, ids=[what for what, _ in UNWRITABLE])
def test_neither_writes(what: str, wrong: dict[str, np.ndarray]) -> None:
    assert compiled.write(WELL) == write_directory(WELL)
    spoiled = replace(WELL, **wrong)
    assert compiled.write(spoiled) is None
    with pytest.raises(ValueError, match=r"out of order|byte must be|zip\(\) argument"):
        write_directory(spoiled)
