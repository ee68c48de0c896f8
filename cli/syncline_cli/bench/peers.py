"""Bytes of a step in the field's formats, each written here in a few lines: whole views end to end, without headers, sums or framing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import lz4.block
import numpy as np
import zstandard
from numpy.typing import NDArray

from syncline_cli.bench.views import Flat

_FAR = 0xFFFF


def index_and_value(step: Flat) -> int:
    """Four bytes of position, then the new unit."""
    return step.positions.size * (4 + step.new.itemsize)


def gaps_and_values(step: Flat) -> int:
    """Gaps of 16 bits, new units; zstd 1."""
    return _zstd(gaps16(step.positions).tobytes() + step.after.tobytes())


def gaps_and_flips(step: Flat) -> int:
    """Gaps of 16 bits, old XOR new; zstd 1."""
    return _zstd(gaps16(step.positions).tobytes() + (step.before ^ step.after).tobytes())


def mask_zstd(step: Flat) -> int:
    """Old XOR new of every unit; zstd 1."""
    return _zstd(_mask(step))


def mask_lz4(step: Flat) -> int:
    """Old XOR new of every unit; one LZ4 block."""
    return len(lz4.block.compress(_mask(step), store_size=False))


PEERS: Mapping[str, Callable[[Flat], int]] = {
    "int32 index + value (TRL)": index_and_value,
    "XOR mask, LZ4": mask_lz4,
    "gap16 + value, zstd-1 (grail, PULSE)": gaps_and_values,
    "XOR mask, zstd-1 (Stitch, miles, slime)": mask_zstd,
    "gap16 + XOR, zstd-1 (in use nowhere)": gaps_and_flips,
}


def gaps16(positions: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Distance of each position from the one that would follow the last; 65,535 stands for so many units passed without a change."""
    gaps = np.diff(positions, prepend=-1) - 1
    passed = gaps // _FAR
    out = np.full(positions.size + int(passed.sum()), _FAR, np.uint16)
    out[np.cumsum(passed + 1) - 1] = gaps % _FAR
    return out


def _mask(step: Flat) -> bytes:
    return np.bitwise_xor(step.old, step.new).tobytes()


def _zstd(data: bytes) -> int:
    return len(zstandard.ZstdCompressor(level=1).compress(data))
