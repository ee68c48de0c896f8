"""Chunks: the stored objects that carry frames, shared codec tables and nothing else.

A chunk is a fixed header, a directory of varints (`wire.directory`), then table bytes and frame payloads back to back. The directory is
small because small models are nearly all framing: about nine bytes a frame. Parsing copies no payload; every count and length is checked
before it is used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Self

import numpy as np

from syncline.errors import FormatInvalid, FrameCorrupt
from syncline.wire.directory import (
    FRAME_INDEX_MAX,
    Column,
    Counts,
    Directory,
    Read,
    Sums,
    Write,
    read_directory,
    write_directory,
)
from syncline.wire.limits import CHUNK_FORMAT, CHUNK_MAGIC, CHUNK_MAX_BYTES

HEADER = struct.Struct("<4sHH16sIII")
"""magic, format, flags (0), nonce, sections, tables, directory bytes."""
NONCE_BYTES = 16
_CRC_PREFIX = struct.Struct("<IQBI")


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """One frame as encoded."""

    index: int
    """Which frame of the tensor's grid."""
    changed: int
    """Units that differ from the base; 1..frame units."""
    payload: memoryview | bytes


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Frames of one tensor as encoded, an entry a frame in each column; iterating makes an object of each."""

    indices: Column
    """Which frame of the tensor's grid."""
    changed: Column
    """Units that differ from the base; 1..frame units."""
    sizes: Column
    """Bytes of the payload."""
    payloads: memoryview
    """All, back to back."""

    @classmethod
    def of(cls, frames: Sequence[EncodedFrame]) -> Self:
        columns = np.array([(frame.index, frame.changed, len(frame.payload)) for frame in frames], np.int64)
        indices, changed, sizes = np.ascontiguousarray(columns.reshape(-1, 3).T)
        payloads = frames[0].payload if len(frames) == 1 else b"".join(frame.payload for frame in frames)
        return cls(indices, changed, sizes, memoryview(payloads).cast("B"))

    def __len__(self) -> int:
        return self.indices.size

    def __iter__(self) -> Iterator[EncodedFrame]:
        places = pairwise(accumulate(self.sizes.tolist(), initial=0))
        for index, changed, (begin, end) in zip(self.indices.tolist(), self.changed.tolist(), places, strict=True):
            yield EncodedFrame(index, changed, self.payloads[begin:end])

    def part(self, low: int, high: int) -> Self:
        """The frames at these places: views."""
        begin = int(self.sizes[:low].sum())
        return self.between(low, high, begin, begin + int(self.sizes[low:high].sum()))

    def between(self, low: int, high: int, begin: int, end: int) -> Self:
        """The same, where it is known which bytes are theirs."""
        columns = (self.indices[low:high], self.changed[low:high], self.sizes[low:high])
        return type(self)(*columns, self.payloads[begin:end])


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """Frames of one tensor under one codec."""

    tensor: int
    """Index in the tensor table."""
    codec: int
    frames: Frames
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


@dataclass(frozen=True, slots=True, eq=False)
class ReadChunk:
    """A chunk as it was read: what it says as columns, and its bytes."""

    nonce: bytes
    directory: Directory
    tables: Sequence[CodecTable]
    payloads: memoryview
    """Of all frames, back to back."""

    @property
    def sections(self) -> Sequence[Section]:
        """An object a section, each with its own frames: views."""
        said = self.directory
        ends = np.concatenate([[0], np.cumsum(said.frames)])
        places = np.concatenate([[0], np.cumsum(said.sizes)])[ends]
        cuts = zip(pairwise(ends.tolist()), pairwise(places.tolist()), strict=True)
        heads = zip(said.tensors.tolist(), said.codecs.tolist(), said.params, strict=True)
        every = Frames(said.indices, said.changed, said.sizes, self.payloads)
        return [
            Section(tensor, codec, every.between(low, high, begin, end), params)
            for (tensor, codec, params), ((low, high), (begin, end)) in zip(heads, cuts, strict=True)
        ]


def frame_checksum(tensor: int, codec: int, frame: EncodedFrame) -> int:
    """CRC-32 (IEEE) over tensor index u32, frame index u64, codec u8, changed u32 (little-endian), then the payload."""
    prefix = _CRC_PREFIX.pack(tensor, frame.index, codec, frame.changed)
    return zlib.crc32(frame.payload, zlib.crc32(prefix))


Checksums = Callable[[Sequence[memoryview], Directory], Sums]
"""`frame_checksum` of all frames of a directory; these buffers hold their payloads, one behind the other, each whole in one of them."""


def checksums_one_by_one(payloads: Sequence[memoryview], directory: Directory) -> Sums:
    """By the definition."""
    heads = np.repeat(np.stack([directory.tensors, directory.codecs]), directory.frames, axis=1).T.tolist()
    frames = map(
        EncodedFrame, directory.indices.tolist(), directory.changed.tolist(), _spans(payloads, directory.sizes)
    )
    sums = [frame_checksum(tensor, codec, frame) for (tensor, codec), frame in zip(heads, frames, strict=True)]
    return np.array(sums, np.uint32)


def _spans(buffers: Sequence[memoryview], sizes: Column) -> Iterator[memoryview]:
    left, buffer = iter(buffers), memoryview(b"")
    for size in sizes.tolist():
        while size and not buffer:
            buffer = next(left)
        yield buffer[:size]
        buffer = buffer[size:]


def pack(chunk: Chunk, *, checksums: Checksums = checksums_one_by_one, write: Write = write_directory) -> bytes:
    """Bytes of a chunk. Sections must ascend by (tensor, first frame), frames inside one by index; ValueError where they do not.

    `checksums` and `write` do the same as what stands here for them, for those who have a quicker way.
    """
    for section in chunk.sections:
        if int(section.frames.sizes.sum()) != len(section.frames.payloads):
            raise ValueError(f"the frames of tensor {section.tensor} are not as long as their payloads")
    unsummed = _directory(chunk)
    sums = checksums([section.frames.payloads for section in chunk.sections], unsummed)
    plain = replace(unsummed, sums=sums)
    directory = write(plain)
    if directory is None:
        directory = write_directory(plain)
    header = HEADER.pack(
        CHUNK_MAGIC, CHUNK_FORMAT, 0, chunk.nonce, len(chunk.sections), len(chunk.tables), len(directory)
    )
    tables, payloads = (table.data for table in chunk.tables), (section.frames.payloads for section in chunk.sections)
    data = b"".join((header, directory, *tables, *payloads))
    if len(data) > CHUNK_MAX_BYTES:
        raise FormatInvalid(f"a chunk of {len(data)} bytes is beyond {CHUNK_MAX_BYTES}; close chunks earlier")
    return data


def parse(
    data: bytes | memoryview,
    *,
    what: str = "chunk",
    frames_of: Callable[[int], int] = lambda _: FRAME_INDEX_MAX,
) -> Chunk:
    """`read_chunk`, as objects."""
    found = read_chunk(data, what=what, frames_of=frames_of)
    return Chunk(found.nonce, found.sections, found.tables)


def read_chunk(
    data: bytes | memoryview,
    *,
    what: str = "chunk",
    frames_of: Callable[[int], int] = lambda _: FRAME_INDEX_MAX,
    checksums: Checksums = checksums_one_by_one,
    read: Read = lambda _directory, _counts: None,
) -> ReadChunk:
    """Read a chunk; payloads are views of `data`. Checks every bound and every frame checksum.

    `frames_of` says how many frames a tensor has, and raises for one that may not be here: no more is kept than that. `checksums` sums up
    what was read, whose payloads lie one behind the other; `read` is tried before the plain reader, and holds to the same bounds.
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
    written, body = view[HEADER.size : HEADER.size + directory_bytes], view[HEADER.size + directory_bytes :]
    counts = Counts(table_count, section_count, len(body))
    found = read(written, counts) or read_directory(written, counts, what=what, frames_of=frames_of)
    ends = list(accumulate(found.table_sizes, initial=0))
    payloads = body[ends[-1] :]
    sums = checksums([payloads], found)
    if not np.array_equal(sums, found.sums):
        at = int(np.argmax(sums != found.sums))
        tensor = int(np.repeat(found.tensors, found.frames)[at])
        raise FrameCorrupt(
            f"{what}: frame {found.indices[at]} of tensor {tensor} does not match its checksum; fetch the chunk again"
        )
    cuts = zip(found.table_codecs, pairwise(ends), strict=True)
    tables = [CodecTable(codec, body[begin:end]) for codec, (begin, end) in cuts]
    return ReadChunk(bytes(nonce), found, tables, payloads)


def _directory(chunk: Chunk) -> Directory:
    """Without checksums."""
    sections = chunk.sections
    columns = [(section.frames.indices, section.frames.changed, section.frames.sizes) for section in sections]
    none = np.empty(0, np.int64)
    indices, changed, sizes = (
        (np.concatenate(column) for column in zip(*columns, strict=True)) if columns else [none] * 3
    )
    return Directory(
        [table.codec for table in chunk.tables],
        [len(table.data) for table in chunk.tables],
        np.array([section.tensor for section in sections], np.int64),
        np.array([section.codec for section in sections], np.int64),
        [section.params for section in sections],
        np.array([len(section.frames) for section in sections], np.int64),
        indices,
        changed,
        sizes,
        np.empty(0, np.uint32),
    )
