"""Garbage either decodes or raises Corrupt: never anything else, and never a write outside the frame."""

from __future__ import annotations

import struct
import tracemalloc

import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from syncline.codecs.base import Codec, FrameChange
from syncline.codecs.registry import CODECS, codec_named
from syncline.errors import Corrupt, FrameCorrupt

Units = NDArray[np.unsignedinteger]

GUARD = 64
WIDTHS = (np.uint8, np.uint16, np.uint32, np.uint64)
CHANGED = 41
every_codec = pytest.mark.parametrize("each", list(CODECS.values()), ids=lambda c: c.name)


def two_frames(width: type[np.unsignedinteger] = np.uint16, size: int = 4099) -> tuple[Units, Units]:
    random = np.random.default_rng(0)
    old = np.frombuffer(random.bytes(size * np.dtype(width).itemsize), width).copy()
    new = old.copy()
    new[random.choice(size, CHANGED, replace=False)] ^= width(1)
    return old, new


def try_to_decode(each: Codec, payload: bytes, old: Units, changed: int = CHANGED) -> Units | None:
    """The decoded frame, or None when it was refused as corrupt. Whatever else is raised fails the test."""
    whole = np.full(old.size + 2 * GUARD, 0xA5, old.dtype)
    frame = whole[GUARD : GUARD + old.size]
    frame[:] = old
    try:
        each.decode(memoryview(payload), frame, changed=changed)
    except Corrupt:
        frame = None
    assert np.all(whole[:GUARD] == 0xA5)
    assert np.all(whole[-GUARD:] == 0xA5)
    if frame is not None:
        assert changed == np.count_nonzero(frame != old)
    return frame


@every_codec
@given(payload=st.binary(max_size=300), width=st.sampled_from(WIDTHS), changed=st.integers(1, 50))
def test_garbage_decodes_or_is_corrupt(
    each: Codec, payload: bytes, width: type[np.unsignedinteger], changed: int
) -> None:
    try_to_decode(each, payload, two_frames(width, 50)[0], changed)


@every_codec
@pytest.mark.parametrize("width", WIDTHS, ids=lambda w: w.__name__)
def test_every_flipped_bit_decodes_to_as_many_changes_or_is_corrupt(
    each: Codec, width: type[np.unsignedinteger]
) -> None:
    old, new = two_frames(width, 300)
    payload = bytearray(each.encode(FrameChange.between(old, new)))
    step = max(1, len(payload) * 8 // 400)
    for bit in range(0, len(payload) * 8, step):
        payload[bit // 8] ^= 1 << bit % 8
        try_to_decode(each, bytes(payload), old)
        payload[bit // 8] ^= 1 << bit % 8


@every_codec
def test_every_truncation_is_corrupt(each: Codec) -> None:
    old, new = two_frames(size=300)
    payload = each.encode(FrameChange.between(old, new))
    assert [] == [n for n in range(len(payload)) if try_to_decode(each, payload[:n], old) is not None]


@every_codec
@pytest.mark.parametrize("tail", [b"\0", b"\xff" * 9])
def test_bytes_behind_the_payload_are_corrupt(each: Codec, tail: bytes) -> None:
    old, new = two_frames()
    assert try_to_decode(each, each.encode(FrameChange.between(old, new)) + tail, old) is None


def test_a_second_zstd_frame_behind_the_first_is_corrupt() -> None:
    old, new = two_frames()
    payload = codec_named("xor-zstd").encode(FrameChange.between(old, new))
    assert try_to_decode(codec_named("xor-zstd"), payload + zstandard.compress(b""), old) is None


def zstd_stating(size: int) -> bytes:
    """A frame whose header states `size` bytes of content and whose one block is empty."""
    return b"\x28\xb5\x2f\xfd" + bytes((0b1110_0000,)) + struct.pack("<Q", size) + b"\x01\x00\x00"


def zstd_without_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


@pytest.mark.parametrize("size", [0, 1, 8199, 1 << 33, (1 << 64) - 3])
def test_a_zstd_frame_that_states_another_size_is_corrupt_before_memory_is_taken(size: int) -> None:
    old, _ = two_frames()
    tracemalloc.start()
    try:
        assert try_to_decode(codec_named("xor-zstd"), zstd_stating(size), old) is None
        part = zstd_stating(size)
        assert try_to_decode(codec_named("sparse"), bytes((2 * len(part) + 1,)) + part, old) is None
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_zstd_frame_that_states_no_size_is_corrupt() -> None:
    old, new = two_frames()
    mask = (old ^ new).view(np.uint8).reshape(-1, 2).T.tobytes()
    assert try_to_decode(codec_named("xor-zstd"), zstandard.compress(mask), old) is not None
    assert try_to_decode(codec_named("xor-zstd"), zstd_without_size(mask), old) is None


@pytest.mark.parametrize("size", [0, 2 * 4099 - 1, 2 * 4099 + 1, 10 << 20])
@pytest.mark.parametrize("name", ["xor-zstd", "xor-lz4"])
def test_a_mask_of_another_size_is_corrupt(name: str, size: int) -> None:
    old, _ = two_frames()
    mask = b"\1" * size
    packed = zstandard.compress(mask) if name == "xor-zstd" else lz4.block.compress(mask, store_size=False)
    assert try_to_decode(codec_named(name), packed, old) is None


def part(data: bytes) -> bytes:
    """A stored part of a sparse payload, for parts below 64 bytes."""
    return bytes((2 * len(data),)) + data


def decode_sparse(*parts: bytes, changed: int, units: int = 16) -> Units:
    frame = np.zeros(units, np.uint16)
    codec_named("sparse").decode(memoryview(b"".join(parts)), frame, changed=changed)
    return frame


def test_a_sparse_payload_can_be_written_by_hand() -> None:
    frame = decode_sparse(part(b"\x01\x00"), part(b"\x05\x06"), part(b"\x00\x01"), changed=2)
    assert [0, 5, 0x106] == frame[:3].tolist()


@pytest.mark.parametrize(
    ("why", "parts", "changed"),
    [
        ("a position behind the frame", (part(b"\x10"), part(b"\1"), part(b"\0")), 1),
        ("more gaps than changes", (part(b"\0\0"), part(b"\1"), part(b"\0")), 1),
        ("fewer gaps than changes", (part(b"\0"), part(b"\1\1"), part(b"\0\0")), 2),
        ("a gap that never ends", (part(b"\xff"), part(b"\1"), part(b"\0")), 1),
        ("gaps of more bytes than a frame can need", (part(b"\0" * 4), part(b"\1"), part(b"\0")), 1),
        ("a plane that is too short", (part(b"\0"), part(b"\1"), part(b"")), 1),
        ("a plane that is too long", (part(b"\0"), part(b"\1"), part(b"\0\0")), 1),
        ("a missing plane", (part(b"\0"), part(b"\1")), 1),
        ("a plane too many", (part(b"\0"), part(b"\1"), part(b"\0"), part(b"")), 1),
        ("a unit that does not change", (part(b"\0"), part(b"\0"), part(b"\0")), 1),
        ("a length that is not in its shortest form", (b"\x82\x00\0", part(b"\1"), part(b"\0")), 1),
        ("a length of six bytes", (b"\x82\x80\x80\x80\x80\x01\0",), 1),
        ("a length beyond the payload", (b"\xfe\xff\xff\xff\x0f",), 1),
        ("more changes than units", (part(b"\0" * 17), part(b"\1" * 17), part(b"\0" * 17)), 17),
        ("no change at all", (part(b""), part(b""), part(b"")), 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sparse_payload_is_corrupt_for(why: str, parts: tuple[bytes, ...], changed: int) -> None:
    with pytest.raises(FrameCorrupt):
        decode_sparse(*parts, changed=changed)
