"""Units, frames and digests of the wire format as FORMAT.md sections 3, 4 and 7 have them.

Part of the independent reader; never imports Syncline. Slow and plain on purpose.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from blake3 import blake3
from reader_records import BITS, need

numpy: Any
try:
    import numpy
except ImportError:  # the digest is then summed word by word
    numpy = None


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
