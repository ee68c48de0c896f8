"""Ascending positions as bytes and back: each position's distance from the one expected next, 255 at a time.

A gap g is g // 255 bytes of 255 and one byte g % 255, so a byte below 255 ends a gap.
"""

# pyright: basic
# compiled functions have no annotations: numba infers their types at the call

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncline.kernels.compiling import INT, U32, Signature, array, compiled

Bytes = NDArray[np.uint8]
Positions = NDArray[np.uint32]

_BYTE = np.dtype(np.uint8)


def max_bytes(changed: int, units: int) -> int:
    """Most bytes that the gaps of so many positions below `units` can take."""
    return changed + units // 255 + 1


def write_gaps(positions: Positions) -> Bytes:
    """Gap bytes of ascending positions (at least one)."""
    out = np.empty(max_bytes(positions.size, int(positions[-1]) + 1), np.uint8)
    return out[: _write(_BYTE)(positions, out)]


def read_gaps(gaps: Bytes, *, changed: int, units: int) -> Positions | None:
    """The positions; None when the bytes do not name exactly `changed` positions below `units` (at most 2^31)."""
    positions = np.empty(changed, np.uint32)
    return positions if _read(_BYTE)(gaps, units, positions) == changed else None


def _write_kernel(positions, out):
    at = 0
    expected = np.int64(0)
    for i in range(positions.size):
        gap = np.int64(positions[i]) - expected
        expected += gap + 1
        while gap >= 255:
            out[at] = 255
            at += 1
            gap -= 255
        out[at] = gap
        at += 1
    return at


def _read_kernel(gaps, units, out):
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


def _of_write(byte) -> Signature:
    return (array(U32), array(byte, writable=True))


def _of_read(byte) -> Signature:
    return (array(byte), INT, array(U32, writable=True))


_write = compiled(_write_kernel, _of_write)
_read = compiled(_read_kernel, _of_read)
