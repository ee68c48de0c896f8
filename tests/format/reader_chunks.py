"""Chunks and the frames in them, as FORMAT.md section 5 has them.

Part of the independent reader; never imports Syncline. Slow and plain on purpose.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import lz4.block
import zstandard
from reader_context import Coding, Table, decode_context, read_coding, read_table
from reader_cursor import Cursor
from reader_records import BITS, Refused, need


@dataclass(frozen=True, slots=True)
class Frame:
    tensor: int
    index: int
    codec: int
    changed: int
    payload: bytes
    coding: Coding | None = None


U64 = 2**64 - 1
CODECS = {1: "raw", 2: "sparse", 3: "xor-zstd", 4: "xor-lz4", 5: "context"}
CONTEXT = 5
UNIT_LETTERS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def chunk(key: str, data: bytes) -> Iterator[Frame]:
    """Every frame of a chunk whose size and BLAKE3 were checked."""
    whole = Cursor(key, data)
    magic, form, flags, _, sections, tables, size = struct.unpack("<4sHH16sIII", whole.take(36))
    need((magic, form, flags) == (b"SLCH", 1, 0) and tables <= 64, key, "not a chunk of format 1")
    directory = Cursor(key, whole.take(size))
    lengths: list[int] = []
    for _ in range(tables):
        codec = directory.take(1)[0]
        need(codec == CONTEXT, key, f"a table for codec {CODECS.get(codec, codec)}")
        lengths.append(directory.varint(32_768))
    bodies = [whole.take(length) for length in lengths]

    @cache
    def table(number: int) -> Table:
        need(number < tables, key, f"no codec table {number}")
        return read_table(f"{key}: table {number}", bodies[number])

    known: list[tuple[Frame, int, int]] = []
    last = (0, -1)
    for _ in range(sections):
        place = last[0] + directory.varint(2**20)
        codec = directory.take(1)[0]
        need(codec in CODECS, key, f"codec {codec} is not known")
        params = directory.take(directory.varint(64))
        need(codec == CONTEXT or not params, key, f"parameters for codec {CODECS[codec]}")
        coding = read_coding(key, params, table) if codec == CONTEXT else None
        index = -1
        for _ in range(directory.varint(U64)):
            index = index + 1 + directory.varint(2**40)
            need((place, index) > last, key, "frames do not ascend")
            changed, length = directory.varint(1 << 20, least=1), directory.varint(256 << 20)
            checksum = int.from_bytes(directory.take(4), "little")
            known.append((Frame(place, index, codec, changed, b"", coding), length, checksum))
            last = (place, index)
        need(index >= 0, key, "a section without frames")
    directory.finish()
    frames: list[Frame] = []
    for frame, length, checksum in known:
        payload = whole.take(length)
        head = struct.pack("<IQBI", frame.tensor, frame.index, frame.codec, frame.changed)
        need(zlib.crc32(head + payload) == checksum, key, f"checksum of tensor {frame.tensor} frame {frame.index}")
        frames.append(replace(frame, payload=payload))
    whole.finish()
    return iter(frames)


def zstd(key: str, data: bytes, most: int) -> bytes:
    """Exactly one zstd frame that states its size."""
    try:
        stated = zstandard.get_frame_parameters(data).content_size
        need(stated <= most, key, "a zstd frame states no size, or too large a one")
        return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as problem:
        raise Refused(f"{key}: {problem}") from None


def changed_units(old: bytes, new: bytes, width: int) -> int:
    """How many units differ: the bytes of a unit are OR-ed, plane over plane."""
    mask = (int.from_bytes(old, "little") ^ int.from_bytes(new, "little")).to_bytes(len(old), "little")
    union = 0
    for plane in range(width):
        union |= int.from_bytes(mask[plane::width], "little")
    units = len(old) // width
    return units - union.to_bytes(units, "little").count(0)


def decode(key: str, frame: Frame, old: bytes, dtype: str) -> bytes:
    """The frame's new units in position order."""
    width, payload = max(BITS[dtype], 8) // 8, frame.payload
    units = len(old) // width
    need(frame.changed <= units, key, "more changes than units")
    if frame.codec == 1:
        new = payload
        need(len(new) == len(old), key, "a raw frame of another size")
    elif frame.codec == 2:
        new = decode_sparse(key, frame, old, width)
    elif frame.coding is not None:
        before = list(struct.unpack(f"<{units}{UNIT_LETTERS[width]}", old))
        for position, unit in decode_context(key, dtype, frame.coding, payload, before).items():
            before[position] = unit
        new = struct.pack(f"<{units}{UNIT_LETTERS[width]}", *before)
    else:
        if frame.codec == 3:
            planes = zstd(key, payload, len(old))
        else:
            try:
                planes = lz4.block.decompress(payload, uncompressed_size=len(old))
            except lz4.block.LZ4BlockError as problem:
                raise Refused(f"{key}: {problem}") from None
        need(len(planes) == len(old), key, "a mask of another size")
        mask = bytearray(len(old))
        for plane in range(width):
            mask[plane::width] = planes[plane * units : (plane + 1) * units]
        new = (int.from_bytes(old, "little") ^ int.from_bytes(mask, "little")).to_bytes(len(old), "little")
    need(changed_units(old, new, width) == frame.changed, key, "another number of units changed than the frame says")
    return new


def decode_sparse(key: str, frame: Frame, old: bytes, width: int) -> bytes:
    cursor, units, changed = Cursor(key, frame.payload), len(old) // width, frame.changed

    def part(most: int) -> bytes:
        size, packed = divmod(cursor.varint(2**35 - 1, longest=5), 2)
        data = cursor.take(size)
        data = zstd(key, data, most) if packed else data
        need(len(data) <= most, key, "a part is too long")
        return data

    gaps = part(changed + units // 255 + 1)
    planes = [part(changed) for _ in range(width)]
    cursor.finish()
    need(all(len(plane) == changed for plane in planes), key, "a plane of another size")
    new, position, found = bytearray(old), 0, 0
    for byte in gaps:
        position += byte
        if byte == 255:
            continue
        need(found < changed and position < units, key, "a gap leads out of the frame")
        here = slice(position * width, (position + 1) * width)
        new[here] = bytes(plane[found] for plane in planes)
        need(new[here] != old[here], key, "a unit already holds its new bits")
        position, found = position + 1, found + 1
    need(found == changed and gaps[-1] < 255, key, "another number of gaps than changes")
    return bytes(new)
