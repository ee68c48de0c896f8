"""A delta's frames as columns are those of its chunks, in whatever order these come, and each is there once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.codecs.registry import CODECS
from syncline.delta import Delta
from syncline.delta.parsed import CodedFrame
from syncline.errors import FormatInvalid
from syncline.wire.chunk import Chunk, EncodedFrame, Frames, Section, pack
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

TILING = Tiling(min_units=16, max_units=64, ways=4)
TABLE = TensorTable(tensors=[TensorSpec(name=name, dtype="BF16", shape=[32, 16], axis=0) for name in "abc"])
FRAMES = TABLE.tensors[0].grid(TILING).count
Plain = Mapping[tuple[int, int], tuple[int, int, bytes]]
"""By tensor and frame: codec, changes, payload."""

frames = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, FRAMES - 1)),
    st.tuples(st.sampled_from([1, 2, 3, 4]), st.integers(1, 16), st.binary(max_size=30)),
    max_size=12,
)


def chunk(frames: Plain) -> bytes:
    """A section a frame."""
    sections = [
        Section(tensor, codec, Frames.of([EncodedFrame(index, changed, payload)]))
        for (tensor, index), (codec, changed, payload) in sorted(frames.items())
    ]
    return pack(Chunk(bytes(16), sections))


def plain(delta: Delta) -> Plain:
    return {
        (tensor, index): (coded.codec.id, coded.frame.changed, bytes(coded.frame.payload))
        for tensor in range(len(TABLE.tensors))
        for index, coded in delta.frames(tensor).items()
    }


@given(frames, st.data())
def test_they_are_those_of_the_chunks(frames: Plain, data: st.DataObject) -> None:
    number = {key: data.draw(st.integers(0, 3)) for key in frames}
    chunks = [chunk({key: own for key, own in frames.items() if number[key] == n}) for n in range(4)]
    named = [(f"c{n}", own) for n, own in enumerate(chunks)]
    delta = Delta.parse(TABLE, TILING, named)
    assert frames == plain(delta)
    with ThreadPoolExecutor(3) as threads:
        assert frames == plain(Delta.parse(TABLE, TILING, named, executor=threads))
    keys = list(zip(delta.columns.tensors.tolist(), delta.columns.indices.tolist(), strict=True))
    assert sorted(frames) == keys
    assert sorted({tensor for tensor, _ in frames}) == list(delta.tensors)
    by_tensor: dict[int, dict[int, CodedFrame]] = {}
    for (tensor, index), (codec, changed, payload) in frames.items():
        by_tensor.setdefault(tensor, {})[index] = CodedFrame(CODECS[codec], EncodedFrame(index, changed, payload))
    assert frames == plain(Delta.of(by_tensor))


@given(frames, st.integers(0, 2), st.integers(0, FRAMES), st.integers(0, FRAMES))
def test_a_part_has_the_frames_between_two(frames: Plain, tensor: int, first: int, last: int) -> None:
    delta = Delta.parse(TABLE, TILING, [("c", chunk(frames))])
    expected = {key: own for key, own in frames.items() if key[0] == tensor and first <= key[1] <= last}
    assert expected == plain(delta.part(tensor, first, last))


@pytest.mark.parametrize("order", [[(0, 3), (0, 1), (0, 3)], [(2, 0), (0, 1), (0, 1)], [(1, 1), (0, 0), (1, 1)]])
def test_a_frame_that_is_there_twice_is_named_with_the_later_chunk(order: list[tuple[int, int]]) -> None:
    chunks = [(f"c{n}", chunk({key: (1, 1, b"x")})) for n, key in enumerate(order)]
    tensor, index = order[-1]
    with pytest.raises(
        FormatInvalid, match=f"chunk c2 has frame {index} of {TABLE.tensors[tensor].name} a second time"
    ):
        Delta.parse(TABLE, TILING, chunks)


def test_no_more_chunks_are_read_than_there_are_frames_for() -> None:
    read: list[str] = []

    def endless() -> Iterator[tuple[str, bytes]]:
        while True:
            read.append(f"c{len(read)}")
            yield read[-1], chunk({(0, 1): (1, 1, b"x"), (2, 0): (1, 1, b"x")})

    with pytest.raises(FormatInvalid, match="a second time"):
        Delta.parse(TABLE, TILING, endless())
    assert len(read) <= 3 * FRAMES // 2 + 1
