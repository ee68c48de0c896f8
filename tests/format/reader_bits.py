"""Units, frames, digests and chunks of the wire format as FORMAT.md sections 3 to 7 have them.

Part of the independent reader; never imports Syncline. Slow and plain on purpose.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lz4.block
import zstandard
from blake3 import blake3
from reader_records import BITS, Refused, need

numpy: Any
try:
    import numpy
except ImportError:  # the digest is then summed word by word
    numpy = None


# --- sections 3, 4 and 6: units, frames, digest -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the table, with its shape in units cut into frames."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    width: int
    units: int
    outer: int
    axis: int
    inner: int
    bands: int
    pieces: int

    def frame(self, index: int) -> tuple[int, int, int]:
        """First unit, stride and length of the frame's `outer` runs."""
        band, piece = divmod(index, self.pieces)
        low, high = band * self.axis // self.bands, (band + 1) * self.axis // self.bands
        if self.pieces == 1:
            return low * self.inner, self.axis * self.inner, (high - low) * self.inner
        start, end = piece * self.inner // self.pieces, (piece + 1) * self.inner // self.pieces
        return low * self.inner + start, self.axis * self.inner, end - start


def product(numbers: tuple[int, ...]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


def cut(key: str, entry: dict[str, Any], tiling: dict[str, int]) -> Tensor:
    shape, axis, bits = tuple(entry["shape"]), entry["axis"], BITS[entry["dtype"]]
    need(axis < max(1, len(shape)), key, f"tensor {entry['name']} has no axis {axis}")
    need(product(shape) * bits % 8 == 0, key, f"tensor {entry['name']} does not fill whole bytes")
    units = shape or (1,)
    if bits < 8 and units[-1] * bits % 8 == 0:
        units = (*units[:-1], units[-1] * bits // 8)
    elif bits < 8:
        units, axis = (product(units) * bits // 8,), 0
    total, most = product(units), tiling["max_units"]
    need(total < 2**53, key, f"tensor {entry['name']} has too many units")
    if product(units[:axis]) > most:
        axis = 0
    outer, along, inner = product(units[:axis]), units[axis], product(units[axis + 1 :])
    bands, pieces, rows = 0, 1, outer * inner
    if total and rows > most:
        bands, pieces = along, -(-inner // (most // outer))
    elif total:
        ways = tiling["ways"]
        while ways > 1 and (ways > along or total // ways < tiling["min_units"]):
            ways //= 2
        bands = ways
        while bands < along and -(-along // bands) * rows > most:
            bands += ways
        bands = min(bands, along)
    return Tensor(entry["name"], entry["dtype"], shape, max(bits, 8) // 8, total, outer, along, inner, bands, pieces)


LANES = ((0x9E3779B1, 0xC2B2AE3D, 0x165667B1, 0x7FEB352D), (0x85EBCA77, 0x27D4EB2F, 0xD3A2646D, 0x846CA68B))
U32, U64 = 2**32 - 1, 2**64 - 1
BLOCK_WORDS = 1 << 20


def digest(
    name: str, data: bytes | bytearray, width: int, summed_by_word: bool = numpy is None, first: int = 0
) -> tuple[int, int]:
    """The two lanes of a tensor, or of a part of it that begins at word `first`.

    A unit of eight bytes is two words, low half first, so in memory every word stands at its own position.
    """
    seeds = struct.unpack("<2I", blake3(name.encode()).digest(8))
    one = two = 0
    width = min(width, 4)
    for start in range(0, len(data) // width, BLOCK_WORDS):
        part = memoryview(data)[start * width : (start + BLOCK_WORDS) * width]
        x1, x2 = (mixed_by_word if summed_by_word else mixed)(part, width, first + start, seeds)
        if summed_by_word:
            one += sum(x2) * 2**32 + sum(x1)
            two += sum(x * y for x, y in zip(x1, x2, strict=True))
        else:
            one += int(x2.sum()) * 2**32 + int(x1.sum())
            two += int((x1 * x2).sum())  # of 64 bits, which wrap as the lane does
    return one & U64, two & U64


def mixed_by_word(part: memoryview, width: int, start: int, seeds: tuple[int, ...]) -> list[Any]:
    """x_1 and x_2 of every word, as the page has them."""
    words = struct.unpack(f"<{len(part) // width}{ {1: 'B', 2: 'H', 4: 'I'}[width] }", part)
    lanes: list[list[int]] = []
    for (a, b, h, m), seed in zip(LANES, seeds, strict=True):
        lane: list[int] = []
        for q, word in enumerate(words, start):
            x = ((q & U32) * a + word * b + (q >> 32) * h + seed) & U32
            x = ((x ^ x >> 16) * m) & U32
            lane.append(x ^ x >> 15)
        lanes.append(lane)
    return lanes


def mixed(part: memoryview, width: int, start: int, seeds: tuple[int, ...]) -> list[Any]:
    """The same by arrays. Products of 64 bits wrap, which leaves the low 32 bits right."""
    words = numpy.frombuffer(part, f"<u{width}").astype(numpy.uint64)
    places = numpy.arange(start, start + len(words), dtype=numpy.uint64)
    low, high = places & numpy.uint64(U32), places >> numpy.uint64(32)
    lanes: list[Any] = []
    for constants, seed in zip(LANES, seeds, strict=True):
        a, b, h, m = map(numpy.uint64, constants)
        x = (low * a + words * b + high * h + numpy.uint64(seed)) & numpy.uint64(U32)
        x = ((x ^ x >> numpy.uint64(16)) * m) & numpy.uint64(U32)
        lanes.append(x ^ x >> numpy.uint64(15))
    return lanes


# --- section 5: chunks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    tensor: int
    index: int
    codec: int
    changed: int
    payload: bytes


class Cursor:
    """Takes bytes off one buffer and refuses to run past its end."""

    def __init__(self, key: str, data: bytes) -> None:
        self.key, self.data, self.at = key, data, 0

    def take(self, size: int) -> bytes:
        need(size <= len(self.data) - self.at, self.key, "ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, most: int, longest: int = 9) -> int:
        value = 0
        for place in range(longest):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * place
            if byte < 128:
                need(byte > 0 or place == 0, self.key, "a varint is not in its shortest form")
                need(value <= most, self.key, f"{value} is more than {most}")
                return value
        raise Refused(f"{self.key}: a varint is too long")

    def finish(self) -> None:
        need(self.at == len(self.data), self.key, "bytes left over")


CODECS = {1: "raw", 2: "sparse", 3: "xor-zstd", 4: "xor-lz4", 5: "context"}


def chunk(key: str, data: bytes) -> Iterator[Frame]:
    """Every frame of a chunk whose size and BLAKE3 were checked."""
    whole = Cursor(key, data)
    magic, form, flags, _, sections, tables, size = struct.unpack("<4sHH16sIII", whole.take(36))
    need((magic, form, flags) == (b"SLCH", 1, 0) and tables <= 256, key, "not a chunk of format 1")
    directory = Cursor(key, whole.take(size))
    known: list[tuple[int, int, int, int, int, int]] = []
    for _ in range(tables):
        codec, _ = directory.take(1)[0], directory.varint(65_536)
        raise Refused(f"{key}: a table for codec {CODECS.get(codec, codec)}")
    last = (0, -1)
    for _ in range(sections):
        place = last[0] + directory.varint(2**20)
        codec = directory.take(1)[0]
        need(codec in CODECS and codec != 5, key, f"codec {CODECS.get(codec, codec)} is not known")
        need(directory.varint(64) == 0, key, f"parameters for codec {CODECS[codec]}")
        index = -1
        for _ in range(directory.varint(U64)):
            index = index + 1 + directory.varint(2**40)
            need((place, index) > last, key, "frames do not ascend")
            changed, length = directory.varint(1 << 20), directory.varint(256 << 20)
            need(changed > 0, key, "a frame without changes")
            known.append((place, index, codec, changed, length, int.from_bytes(directory.take(4), "little")))
            last = (place, index)
        need(index >= 0, key, "a section without frames")
    directory.finish()
    frames: list[Frame] = []
    for place, index, codec, changed, length, checksum in known:
        payload = whole.take(length)
        head = struct.pack("<IQBI", place, index, codec, changed)
        need(zlib.crc32(head + payload) == checksum, key, f"checksum of tensor {place} frame {index}")
        frames.append(Frame(place, index, codec, changed, payload))
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


def decode(key: str, frame: Frame, old: bytes, width: int) -> bytes:
    """The frame's new units in position order."""
    units, payload = len(old) // width, frame.payload
    need(frame.changed <= units, key, "more changes than units")
    if frame.codec == 1:
        new = payload
        need(len(new) == len(old), key, "a raw frame of another size")
    elif frame.codec == 2:
        new = decode_sparse(key, frame, old, width)
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
