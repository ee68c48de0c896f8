"""`sparse`: where and what, as gaps and absolute bits. Needs no base to decode.

Payload: w + 1 parts, in order gaps, then byte plane 0 (lowest byte of each new unit) to plane w - 1. A part is a varint
(2 * stored length + 1 if the part is one zstd frame that states its content size, else 2 * stored length) and the stored bytes.
A plane expands to c bytes, one a changed unit in position order. Gaps: the first position, then each position minus the one before
minus 1; a gap g is g // 255 bytes of 255 and one byte g % 255. Splitting planes is what lets zstd see that signs and exponents repeat.
"""

# pyright: basic
# compiled functions have no annotations: numba infers their types at the call

from __future__ import annotations

from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from syncline.codecs.base import FrameChange, Units
from syncline.codecs.compressed import zstd_compress, zstd_expand
from syncline.errors import FrameCorrupt
from syncline.wire.limits import CODEC_SPARSE


@nb.njit(nogil=True, cache=True)
def _write_gaps(positions, out):
    at = 0
    expected = np.int64(0)
    for i in range(positions.size):
        gap = np.int64(positions[i]) - expected
        expected = np.int64(positions[i]) + 1
        while gap >= 255:
            out[at] = 255
            at += 1
            gap -= 255
        out[at] = gap
        at += 1
    return at


@nb.njit(nogil=True, cache=True)
def _read_gaps(gaps, units, out):
    """Number of positions, or -1 when they do not fit."""
    found = 0
    position = np.int64(0)
    for i in range(gaps.size):
        position += gaps[i]
        if gaps[i] < 255:
            if position >= units or found >= out.size:
                return -1
            out[found] = position
            found += 1
            position += 1
        elif position > units:
            return -1
    if gaps.size > 0 and gaps[gaps.size - 1] == 255:
        return -1
    return found


@dataclass(frozen=True, slots=True)
class SparseCodec:
    """Payload: see the module."""

    id: int = CODEC_SPARSE
    name: str = "sparse"
    seconds_per_unit: float = 1e-9

    def encode(self, change: FrameChange) -> bytes:
        positions = change.positions
        gaps = np.empty(positions.size + change.new.size // 255 + 1, np.uint8)
        gaps = gaps[: _write_gaps(positions, gaps)]
        values = np.ascontiguousarray(change.new[positions])
        planes = values.view(np.uint8).reshape(-1, values.itemsize)
        out = bytearray()
        for part in (gaps, *(np.ascontiguousarray(planes[:, k]) for k in range(values.itemsize))):
            _put_part(out, part)
        return bytes(out)

    def decode(self, payload: memoryview, frame: Units, *, changed: int) -> None:
        width = frame.itemsize
        gaps, at = _take_part(payload, 0, at_most=changed + frame.size // 255 + 1)
        planes = np.empty((changed, width), np.uint8)
        for k in range(width):
            plane, at = _take_part(payload, at, at_most=changed)
            if plane.size != changed:
                raise FrameCorrupt(f"sparse: a plane of {plane.size} bytes for {changed} changes")
            planes[:, k] = plane
        if at != len(payload):
            raise FrameCorrupt("sparse: bytes behind the last plane")
        positions = np.empty(changed, np.uint32)
        if _read_gaps(gaps, frame.size, positions) != changed:
            raise FrameCorrupt(f"sparse: gaps do not name {changed} positions inside a frame of {frame.size}")
        new = planes.reshape(-1).view(frame.dtype)
        if np.any(frame[positions] == new):
            raise FrameCorrupt("sparse: a unit already holds its new bits: wrong base or wrong frame")
        frame[positions] = new


def _put_part(out: bytearray, part: NDArray[np.uint8]) -> None:
    data = part.tobytes()
    packed = zstd_compress(data)
    small = len(packed) < len(data)
    value = 2 * len(packed if small else data) + small
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    out += packed if small else data


def _take_part(payload: memoryview, at: int, *, at_most: int) -> tuple[NDArray[np.uint8], int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(payload):
            raise FrameCorrupt("sparse: the payload ends inside a length")
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise FrameCorrupt("sparse: a length that is not in its shortest form")
            break
    else:
        raise FrameCorrupt("sparse: a length of more than five bytes")
    length = value >> 1
    if length > len(payload) - at:
        raise FrameCorrupt("sparse: a part ends beyond the payload")
    stored = payload[at : at + length]
    if value & 1:
        return np.frombuffer(zstd_expand(stored, at_most=at_most), np.uint8), at + length
    if length > at_most:
        raise FrameCorrupt(f"sparse: a part of {length} bytes where at most {at_most} fit")
    return np.frombuffer(stored, np.uint8), at + length
