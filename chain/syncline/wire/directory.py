"""A chunk's directory as columns: an entry a table, a section, a frame. Read and written here one varint at a time, which is the
definition, and what says by name what is wrong; whoever has a quicker way hands it to `wire.chunk`.

Every count and length is checked before it is used, against the chunk's own size and, where the caller knows the tensors, against the
frames that they have: nine hostile bytes would else become columns of many times that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from syncline.errors import FormatInvalid
from syncline.wire.limits import (
    CHUNK_MAX_BYTES,
    CODEC_TABLE_MAX_BYTES,
    CODEC_TABLES_MAX,
    FRAME_MAX_UNITS,
    SECTION_PARAMS_MAX_BYTES,
    TENSORS_MAX,
)
from syncline.wire.varint import put_varint

FRAME_INDEX_MAX = 1 << 40
CHECKSUM_BYTES = 4
FRAME_BYTES_MIN = 3 + CHECKSUM_BYTES
"""Of a frame in the directory: three varints and a checksum."""

Column = NDArray[np.int64]
Sums = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Directory:
    """What a directory says of tables, sections and frames, each in their order."""

    table_codecs: Sequence[int]
    table_sizes: Sequence[int]
    tensors: Column
    """Of a section, as the next three."""
    codecs: Column
    params: Sequence[bytes]
    frames: Column
    """How many."""
    indices: Column
    """Of a frame, as the next three: which of its tensor's grid."""
    changed: Column
    sizes: Column
    """Bytes of its payload."""
    sums: Sums


@dataclass(frozen=True, slots=True)
class Counts:
    """What a chunk's header and size say of a directory."""

    tables: int
    sections: int
    body_bytes: int
    """Tables and payloads, back to back."""


Read = Callable[[memoryview, Counts], Directory | None]
"""A quicker way to read; None where anything is wrong, and then `read_directory` says what."""
Write = Callable[[Directory], bytes | None]
"""A quicker way to write, likewise."""


def read_directory(directory: memoryview, counts: Counts, *, what: str, frames_of: Callable[[int], int]) -> Directory:
    """One varint after the other. FormatInvalid by name."""
    reader = _Cursor(directory, what)
    left = counts.body_bytes

    def take(length: int) -> int:
        nonlocal left
        if length > left:
            raise FormatInvalid(f"{what} is truncated: a payload of {length} bytes ends beyond it")
        left -= length
        return length

    if counts.tables > CODEC_TABLES_MAX:
        raise FormatInvalid(f"{what} has {counts.tables} codec tables, more than {CODEC_TABLES_MAX}")
    tables = [(reader.byte(), take(reader.varint(CODEC_TABLE_MAX_BYTES))) for _ in range(counts.tables)]
    sections: list[tuple[int, int, int]] = []
    params: list[bytes] = []
    frames: list[tuple[int, int, int, int]] = []
    tensor = 0
    previous = (-1, -1)
    for _ in range(counts.sections):  # bounded, as the frames below: each turn takes bytes off the directory
        tensor += reader.varint(TENSORS_MAX)
        if tensor >= TENSORS_MAX:
            raise FormatInvalid(f"{what} names tensor {tensor}, beyond {TENSORS_MAX}")
        codec = reader.byte()
        params.append(reader.raw(reader.varint(SECTION_PARAMS_MAX_BYTES)))
        bound = frames_of(tensor)
        many = reader.varint(FRAME_INDEX_MAX)
        if many == 0:
            raise FormatInvalid(f"{what} has a section without frames")
        first, expected = True, 0
        for _ in range(many):
            index = expected + reader.varint(FRAME_INDEX_MAX)
            if index >= bound:
                raise FormatInvalid(f"{what}: frame {index} is outside the {bound} of tensor {tensor}")
            if first and (tensor, index) <= previous:
                raise FormatInvalid(f"{what} has sections out of order at tensor {tensor}")
            first, expected = False, index + 1
            changed = reader.varint(FRAME_MAX_UNITS)
            if changed == 0:
                raise FormatInvalid(f"{what} has a frame that changes nothing")
            length = reader.varint(CHUNK_MAX_BYTES)
            frames.append((index, changed, length, reader.checksum()))
            take(length)
        previous = (tensor, expected - 1)
        sections.append((tensor, codec, many))
    if not reader.at_end or left:
        raise FormatInvalid(f"{what} has bytes that belong to nothing")
    of_section, of_frame = _columns(sections, 3), _columns(frames, 4)
    return Directory(
        [codec for codec, _ in tables],
        [size for _, size in tables],
        of_section[0],
        of_section[1],
        params,
        of_section[2],
        of_frame[0],
        of_frame[1],
        of_frame[2],
        of_frame[3].astype(np.uint32),
    )


def _columns(rows: Sequence[tuple[int, ...]], many: int) -> NDArray[np.int64]:
    return np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, many).T)


def write_directory(directory: Directory) -> bytes:
    """One varint after the other. ValueError where tensors, or the frames of a section, do not ascend."""
    out = bytearray()
    for codec, size in zip(directory.table_codecs, directory.table_sizes, strict=True):
        out.append(codec)
        put_varint(out, size)
    sections = zip(directory.tensors.tolist(), directory.codecs.tolist(), directory.frames.tolist(), strict=True)
    columns = (directory.indices, directory.changed, directory.sizes, directory.sums)
    frames = zip(*(column.tolist() for column in columns), strict=True)
    previous = 0
    for (tensor, codec, many), params in zip(sections, directory.params, strict=True):
        put_varint(out, tensor - previous)
        previous = tensor
        out.append(codec)
        put_varint(out, len(params))
        out += params
        put_varint(out, many)
        expected = 0
        for index, changed, size, checksum in islice(frames, many):
            put_varint(out, index - expected)
            expected = index + 1
            put_varint(out, changed)
            put_varint(out, size)
            out += checksum.to_bytes(CHECKSUM_BYTES, "little")
    return bytes(out)


class _Cursor:
    """Every read checks what is left."""

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
        return int.from_bytes(self.raw(CHECKSUM_BYTES), "little")

    def varint(self, maximum: int) -> int:
        """Unsigned LEB128 in its shortest form, at most `maximum`."""
        value = 0
        for shift in range(0, 63, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise FormatInvalid(f"{self._what} has a varint that is not in its shortest form")
                if value > maximum:
                    raise FormatInvalid(f"{self._what} has {value} where at most {maximum} is allowed")
                return value
        raise FormatInvalid(f"{self._what} has a varint of more than nine bytes")
