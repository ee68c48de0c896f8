"""Checksums of many frames in one call are those of the format, one by one; and a delta is read by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.delta import CodecChoice, Delta, DeltaEncoder
from syncline.errors import FrameCorrupt
from syncline.kernels.checksums import frame_checksums
from syncline.wire.chunk import EncodedFrame, Frames, checksums_one_by_one, frame_checksum
from syncline.wire.directory import Directory
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

words = st.integers(0, (1 << 32) - 1)
frames = st.lists(
    st.tuples(st.integers(0, (1 << 40) - 1), words, st.binary(max_size=40)).map(lambda own: EncodedFrame(*own)),
    min_size=1,
    max_size=4,
)
sections = st.lists(st.tuples(words, st.integers(0, 255), frames), max_size=4)


def directory(sections: list[tuple[int, int, list[EncodedFrame]]]) -> Directory:
    own = Frames.of([frame for _, _, frames in sections for frame in frames])
    tensors, codecs, many = (
        np.array(column, np.int64)
        for column in ([s[0] for s in sections], [s[1] for s in sections], [len(s[2]) for s in sections])
    )
    return Directory([], [], tensors, codecs, [], many, own.indices, own.changed, own.sizes, np.empty(0, np.uint32))


@given(sections)
def test_they_are_those_of_the_format(sections: list[tuple[int, int, list[EncodedFrame]]]) -> None:
    expected = [frame_checksum(tensor, codec, frame) for tensor, codec, frames in sections for frame in frames]
    read = directory(sections)
    apart = [Frames.of(frames).payloads for _, _, frames in sections]
    for buffers in (apart, [memoryview(b"".join(apart))]):
        assert expected == frame_checksums(buffers, read).tolist()
        assert expected == checksums_one_by_one(buffers, read).tolist()


@pytest.mark.parametrize("buffers", [[8], [4, 5], [9, 4], [10], []])
def test_payloads_that_lie_in_no_buffer_are_refused(buffers: list[int]) -> None:
    read = directory([(0, 1, [EncodedFrame(0, 1, bytes(9)), EncodedFrame(1, 1, bytes(5))])])
    with pytest.raises(ValueError, match="does not lie in a buffer"):
        frame_checksums([memoryview(bytes(size)) for size in buffers], read)


@pytest.mark.parametrize("sizes", [[1 << 62] * 4, [5, -5, 3, -3]])
def test_sizes_whose_sum_comes_round_to_that_of_the_buffers_are_refused(sizes: list[int]) -> None:
    read = directory([(0, 1, [EncodedFrame(index, 1, b"") for index in range(4)])])
    with pytest.raises(ValueError, match="does not lie in a buffer"):
        frame_checksums([memoryview(b"")], replace(read, sizes=np.array(sizes, np.int64)))


def test_a_bit_flipped_in_any_payload_names_its_frame() -> None:
    table = TensorTable(tensors=[TensorSpec(name=name, dtype="BF16", shape=[64, 64], axis=0) for name in "ab"])
    tiling = Tiling(min_units=512, max_units=1024, ways=4)
    chunks: list[bytes] = []
    encoder = DeltaEncoder(
        table,
        tiling,
        nonce=lambda: bytes(16),
        sink=lambda _, data: chunks.append(data),
        choice=CodecChoice(forced="sparse"),
    )
    old = np.arange(64 * 64, dtype=np.uint16)
    for tensor in range(2):
        encoder.add(tensor, old, old ^ (np.arange(old.size) % 7 == 0).astype(np.uint16))
    encoder.finish()
    (whole,) = chunks
    delta = Delta.parse(table, tiling, [("whole", whole)])
    sizes = [
        (tensor, index, len(coded.frame.payload))
        for tensor in delta.tensors
        for index, coded in delta.frames(tensor).items()
    ]
    at = len(whole) - sum(size for _, _, size in sizes)
    for tensor, index, size in sizes:
        broken = bytearray(whole)
        broken[at + size // 2] ^= 4
        with pytest.raises(FrameCorrupt, match=f"frame {index} of tensor {tensor} does not match its checksum"):
            Delta.parse(table, tiling, [("broken", bytes(broken))])
        at += size
