"""Checksums of many frames in one call are those of the format, one by one; and a delta is read by them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.delta import CodecChoice, Delta, DeltaEncoder
from syncline.errors import FrameCorrupt
from syncline.kernels.checksums import frame_checksums
from syncline.wire.chunk import EncodedFrame, frame_checksum
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

words = st.integers(0, (1 << 32) - 1)
frames = st.lists(
    st.tuples(words, st.integers(0, (1 << 40) - 1), st.integers(0, 255), words, st.binary(max_size=40)), max_size=8
)


@given(frames)
def test_they_are_those_of_the_format(frames: list[tuple[int, int, int, int, bytes]]) -> None:
    tensors, indices, codecs, changed, payloads = zip(*frames, strict=True) if frames else ((),) * 5
    found = frame_checksums(
        np.frombuffer(b"".join(payloads), np.uint8),
        np.array([len(payload) for payload in payloads], np.int64),
        tensors=np.array(tensors, np.uint32),
        frames=np.array(indices, np.uint64),
        codecs=np.array(codecs, np.uint8),
        changed=np.array(changed, np.uint32),
    )
    expected = [frame_checksum(t, c, EncodedFrame(i, n, p)) for t, i, c, n, p in frames]
    assert expected == found.tolist()


def test_payloads_that_end_beyond_the_memory_are_refused() -> None:
    one = np.ones(1, np.uint32)
    with pytest.raises(ValueError, match="frames of 9 bytes do not lie in 8"):
        frame_checksums(
            np.zeros(8, np.uint8),
            np.array([9], np.int64),
            tensors=one,
            frames=one.astype(np.uint64),
            codecs=one.astype(np.uint8),
            changed=one,
        )


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
