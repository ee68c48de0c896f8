"""`xor-zstd` and `xor-lz4`: the dense XOR mask of a frame, compressed. The field's common format, kept to compare and to import.

The mask (old XOR new) is laid out by byte planes: byte 0 of all n units, then byte 1, up to byte w - 1, n * w bytes. `xor-zstd` is one
zstd frame of it that states its content size; `xor-lz4` one lz4 block without a size prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from syncline.codecs.base import FrameChange, Placed, Units, UnitType, Unshared
from syncline.codecs.compressed import lz4_compress, lz4_expand, zstd_compress, zstd_expand
from syncline.errors import FrameCorrupt
from syncline.wire.limits import CODEC_XOR_LZ4, CODEC_XOR_ZSTD


@dataclass(frozen=True, slots=True)
class XorCodec(Unshared):
    """Payload: the compressed mask."""

    id: int
    name: str
    seconds_per_unit: float
    seconds_per_change: float
    compress: Callable[[memoryview], bytes]
    expand: Callable[[memoryview, int], bytes]

    def encode(self, change: FrameChange) -> bytes:
        flips = (change.before ^ change.after).view(np.uint8).reshape(change.positions.size, -1)
        planes = np.zeros((flips.shape[1], change.units), np.uint8)
        for plane, bits in zip(planes, flips.T, strict=True):
            plane[change.positions] = bits
        return self.compress(planes.data.cast("B"))

    def decode(self, payload: memoryview, frame: Units, *, changed: int) -> None:
        planes = np.frombuffer(self.expand(payload, frame.nbytes), np.uint8)
        if planes.size != frame.nbytes:
            raise FrameCorrupt(f"{self.name}: a mask of {planes.size} bytes for a frame of {frame.nbytes}")
        mask = np.empty(frame.size, frame.dtype)
        by_byte = mask.view(np.uint8).reshape(frame.size, frame.itemsize)
        for k, plane in enumerate(planes.reshape(frame.itemsize, frame.size)):
            by_byte[:, k] = plane
        found = int(np.count_nonzero(mask))
        if found != changed:
            raise FrameCorrupt(f"{self.name}: the mask changes {found} units, {changed} were promised")
        frame ^= mask

    def place(
        self, payload: memoryview, *, units: int, dtype: UnitType, changed: int, base: Callable[[], Units] | None = None
    ) -> Placed | None:
        return None


def xor_zstd() -> XorCodec:
    """Codec 3."""
    return XorCodec(
        CODEC_XOR_ZSTD, "xor-zstd", 1.6e-9, 40e-9, zstd_compress, lambda data, size: zstd_expand(data, at_most=size)
    )


def xor_lz4() -> XorCodec:
    """Codec 4."""
    return XorCodec(
        CODEC_XOR_LZ4, "xor-lz4", 1.3e-9, 23e-9, lz4_compress, lambda data, size: lz4_expand(data, size=size)
    )
