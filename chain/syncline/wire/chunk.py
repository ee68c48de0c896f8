"""Chunks: the stored objects that carry frames, shared codec tables and nothing else.

A chunk is a fixed header, a directory of varints, then table bytes and frame payloads back to back. The directory is small because
small models are nearly all framing: about nine bytes a frame. Parsing copies nothing; every count and length is checked before it is
used, against the chunk's own size and, where the caller knows the tensors, against the frames that they have: nine hostile bytes would
else become an object of several hundred.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from syncline.errors import FormatInvalid, FrameCorrupt
from syncline.wire.limits import (
    CHUNK_FORMAT,
    CHUNK_MAGIC,
    CHUNK_MAX_BYTES,
    CODEC_TABLE_MAX_BYTES,
    CODEC_TABLES_MAX,
    FRAME_MAX_UNITS,
    SECTION_PARAMS_MAX_BYTES,
    TENSORS_MAX,
)
from syncline.wire.varint import put_varint

HEADER = struct.Struct("<4sHH16sIII")
"""magic, format, flags (0), nonce, sections, tables, directory bytes."""
NONCE_BYTES = 16
FRAME_INDEX_MAX = 1 << 40
_CRC_PREFIX = struct.Struct("<IQBI")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """One frame as encoded."""

    index: int
    """Which frame of the tensor's grid."""
    changed: int
    """Units that differ from the base; 1..frame units."""
    payload: memoryview | bytes


@dataclass(frozen=True, slots=True)
class Section:
    """Frames of one tensor under one codec."""

    tensor: int
    """Index in the tensor table."""
    codec: int
    frames: Sequence[EncodedFrame]
    params: bytes = b""
    """For the codec: which shared table, and the like."""


@dataclass(frozen=True, slots=True)
class CodecTable:
    """A table that several sections share."""

    codec: int
    data: memoryview | bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a chunk holds."""

    nonce: bytes
    """Random per publish attempt: no two attempts share a chunk, so collecting one attempt's chunks cannot harm another's."""
    sections: Sequence[Section]
    tables: Sequence[CodecTable] = field(default=())


def frame_checksum(tensor: int, codec: int, frame: EncodedFrame) -> int:
    """CRC-32 (IEEE) over tensor index u32, frame index u64, codec u8, changed u32 (little-endian), then the payload."""
    prefix = _CRC_PREFIX.pack(tensor, frame.index, codec, frame.changed)
    return zlib.crc32(frame.payload, zlib.crc32(prefix))


Checksums = Callable[[memoryview, Sequence[Section]], Sequence[int]]
"""`frame_checksum` of all frames of some sections, whose payloads lie one behind the other in this memory."""


def checksums_one_by_one(payloads: memoryview, sections: Sequence[Section]) -> Sequence[int]:
    """By the definition."""
    del payloads
    return [frame_checksum(section.tensor, section.codec, frame) for section in sections for frame in section.frames]


def pack(chunk: Chunk) -> bytes:
    """Bytes of a chunk. Sections must ascend by (tensor, first frame), frames inside one by index."""
    directory = bytearray()
    bodies: list[memoryview | bytes] = []
    for table in chunk.tables:
        directory.append(table.codec)
        put_varint(directory, len(table.data))
        bodies.append(table.data)
    previous_tensor = 0
    for section in chunk.sections:
        put_varint(directory, section.tensor - previous_tensor)
        previous_tensor = section.tensor
        directory.append(section.codec)
        put_varint(directory, len(section.params))
        directory += section.params
        put_varint(directory, len(section.frames))
        expected = 0
        for frame in section.frames:
            put_varint(directory, frame.index - expected)
            expected = frame.index + 1
            put_varint(directory, frame.changed)
            put_varint(directory, len(frame.payload))
            directory += _CRC.pack(frame_checksum(section.tensor, section.codec, frame))
            bodies.append(frame.payload)
    header = HEADER.pack(
        CHUNK_MAGIC, CHUNK_FORMAT, 0, chunk.nonce, len(chunk.sections), len(chunk.tables), len(directory)
    )
    data = b"".join((header, bytes(directory), *bodies))
    if len(data) > CHUNK_MAX_BYTES:
        raise FormatInvalid(f"a chunk of {len(data)} bytes is beyond {CHUNK_MAX_BYTES}; close chunks earlier")
    return data


def parse(
    data: bytes | memoryview,
    *,
    what: str = "chunk",
    frames_of: Callable[[int], int] = lambda _: FRAME_INDEX_MAX,
    checksums: Checksums = checksums_one_by_one,
) -> Chunk:
    """Read a chunk; payloads are views of `data`. Checks every bound and every frame checksum.

    `frames_of` says how many frames a tensor has, and raises for one that may not be here: no more is kept than that. `checksums` sums up
    what was read.
    FormatInvalid when the structure is wrong, FrameCorrupt when a payload does not match its checksum.
    """
    view = memoryview(data).cast("B")
    if len(view) > CHUNK_MAX_BYTES:
        raise FormatInvalid(f"{what} has {len(view)} bytes, more than {CHUNK_MAX_BYTES}")
    if len(view) < HEADER.size:
        raise FormatInvalid(f"{what} is truncated: {len(view)} bytes are less than a header")
    magic, version, flags, nonce, section_count, table_count, directory_bytes = HEADER.unpack_from(view)
    if magic != CHUNK_MAGIC:
        raise FormatInvalid(f"{what} does not start with {CHUNK_MAGIC!r}")
    if version != CHUNK_FORMAT or flags != 0:
        raise FormatInvalid(
            f"{what} has format {version}, flags {flags:#x}; this reader knows format {CHUNK_FORMAT}, flags 0"
        )
    if directory_bytes > len(view) - HEADER.size:
        raise FormatInvalid(f"{what} is truncated: its directory of {directory_bytes} bytes ends beyond it")
    reader = _Directory(view[HEADER.size : HEADER.size + directory_bytes], what)
    body = view[HEADER.size + directory_bytes :]
    cursor = 0

    def take(length: int) -> memoryview:
        nonlocal cursor
        if length > len(body) - cursor:
            raise FormatInvalid(f"{what} is truncated: a payload of {length} bytes ends beyond it")
        cursor += length
        return body[cursor - length : cursor]

    if table_count > CODEC_TABLES_MAX:
        raise FormatInvalid(f"{what} has {table_count} codec tables, more than {CODEC_TABLES_MAX}")
    tables = [CodecTable(reader.byte(), take(reader.varint(CODEC_TABLE_MAX_BYTES))) for _ in range(table_count)]
    payloads = cursor
    sections: list[Section] = []
    promised: list[int] = []
    tensor = 0
    previous = (-1, -1)
    for _ in range(section_count):
        tensor += reader.varint(TENSORS_MAX)
        if tensor >= TENSORS_MAX:
            raise FormatInvalid(f"{what} names tensor {tensor}, beyond {TENSORS_MAX}")
        codec = reader.byte()
        params = reader.raw(reader.varint(SECTION_PARAMS_MAX_BYTES))
        bound = frames_of(tensor)
        frame_count = reader.varint(FRAME_INDEX_MAX)
        if frame_count == 0:
            raise FormatInvalid(f"{what} has a section without frames")
        frames: list[EncodedFrame] = []
        expected = 0
        for _ in range(frame_count):  # bounded: each turn takes bytes off the directory
            index = expected + reader.varint(FRAME_INDEX_MAX)
            if index >= bound:
                raise FormatInvalid(f"{what}: frame {index} is outside the {bound} of tensor {tensor}")
            if not frames and (tensor, index) <= previous:
                raise FormatInvalid(f"{what} has sections out of order at tensor {tensor}")
            expected = index + 1
            changed = reader.varint(FRAME_MAX_UNITS)
            if changed == 0:
                raise FormatInvalid(f"{what} has a frame that changes nothing")
            length = reader.varint(CHUNK_MAX_BYTES)
            promised.append(reader.checksum())
            frames.append(EncodedFrame(index, changed, take(length)))
        previous = (tensor, frames[-1].index)
        sections.append(Section(tensor, codec, frames, params))
    if not reader.at_end or cursor != len(body):
        raise FormatInvalid(f"{what} has bytes that belong to nothing")
    found = checksums(body[payloads:], sections)
    if list(found) != promised:
        each = ((section.tensor, frame.index) for section in sections for frame in section.frames)
        tensor, index = next(where for where, a, b in zip(each, found, promised, strict=True) if a != b)
        raise FrameCorrupt(
            f"{what}: frame {index} of tensor {tensor} does not match its checksum; fetch the chunk again"
        )
    return Chunk(bytes(nonce), sections, tables)


class _Directory:
    """A cursor over the directory; every read checks what is left."""

    def __init__(self, view: memoryview, what: str) -> None:
        self._bytes = bytes(view)  # small, and its bytes are read one by one: an index costs less than a view of one
        self._at = 0
        self._what = what

    @property
    def at_end(self) -> bool:
        return self._at == len(self._bytes)

    def raw(self, length: int) -> bytes:
        if length > len(self._bytes) - self._at:
            raise FormatInvalid(f"{self._what} has a directory that ends early")
        self._at += length
        return self._bytes[self._at - length : self._at]

    def byte(self) -> int:
        if self._at == len(self._bytes):
            raise FormatInvalid(f"{self._what} has a directory that ends early")
        self._at += 1
        return self._bytes[self._at - 1]

    def checksum(self) -> int:
        return int.from_bytes(self.raw(4), "little")

    def varint(self, maximum: int) -> int:
        """Unsigned LEB128 in its shortest form, at most `maximum`."""
        data, at, value = self._bytes, self._at, 0  # local: three a frame are read, while an engine computes beside
        for shift in range(0, 63, 7):
            if at == len(data):
                raise FormatInvalid(f"{self._what} has a directory that ends early")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise FormatInvalid(f"{self._what} has a varint that is not in its shortest form")
                if value > maximum:
                    raise FormatInvalid(f"{self._what} has {value} where at most {maximum} is allowed")
                self._at = at
                return value
        raise FormatInvalid(f"{self._what} has a varint of more than nine bytes")
