"""`sparse`: where and what, as gaps and absolute bits. Needs no base to decode.

Payload: w + 1 parts, in order gaps, then byte plane 0 (lowest byte of each new unit) to plane w - 1. A part is a varint
(2 * stored length + 1 if the part is one zstd frame that states its content size, else 2 * stored length) and the stored bytes.
A plane expands to c bytes, one a changed unit in position order. Gaps: the first position, then each position minus the one before
minus 1; a gap g is g // 255 bytes of 255 and one byte g % 255. Splitting planes is what lets zstd see that signs and exponents repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.base import FrameChange, Placed, Units, UnitType, Unshared, check_moved
from syncline.codecs.compressed import zstd_compress, zstd_expand
from syncline.errors import FrameCorrupt
from syncline.kernels.gaps import max_bytes, read_gaps, write_gaps
from syncline.wire.limits import CODEC_SPARSE
from syncline.wire.varint import put_varint

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SparseCodec(Unshared):
    """Payload: see the module."""

    id: int = CODEC_SPARSE
    name: str = "sparse"
    seconds_per_unit: float = 0.05e-9
    seconds_per_change: float = 8e-9

    def encode(self, change: FrameChange) -> bytes:
        by_byte = change.after.view(np.uint8).reshape(change.positions.size, -1)
        out = bytearray()
        for part in (write_gaps(change.positions), *by_byte.T):
            _put_part(out, part.tobytes())
        return bytes(out)

    def decode(self, payload: memoryview, frame: Units, *, changed: int) -> None:
        placed = self.place(payload, units=frame.size, dtype=frame.dtype, changed=changed)
        check_moved(frame[placed.positions], placed.units)
        frame[placed.positions] = placed.units

    def place(
        self, payload: memoryview, *, units: int, dtype: UnitType, changed: int, base: Callable[[], Units] | None = None
    ) -> Placed:
        if not 1 <= changed <= units:
            raise FrameCorrupt(f"sparse: {changed} changes in a frame of {units} units")
        gaps, at = _take_part(payload, 0, at_most=max_bytes(changed, units))
        new = np.empty(changed, dtype)
        by_byte = new.view(np.uint8).reshape(changed, dtype.itemsize)
        for k in range(dtype.itemsize):
            plane, at = _take_part(payload, at, at_most=changed)
            if plane.size != changed:
                raise FrameCorrupt(f"sparse: a plane of {plane.size} bytes for {changed} changes")
            by_byte[:, k] = plane
        if at != len(payload):
            raise FrameCorrupt("sparse: bytes behind the last plane")
        positions = read_gaps(gaps, changed=changed, units=units)
        if positions is None:
            raise FrameCorrupt(f"sparse: gaps do not name {changed} positions inside a frame of {units}")
        return Placed(positions, new)


def _put_part(out: bytearray, data: bytes) -> None:
    packed = zstd_compress(data)
    small = len(packed) < len(data)
    put_varint(out, 2 * len(packed if small else data) + small)
    out += packed if small else data


def _take_part(payload: memoryview, at: int, *, at_most: int) -> tuple[Bytes, int]:
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
