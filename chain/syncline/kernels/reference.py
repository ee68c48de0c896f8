"""What every kernel means, in plain NumPy. Tests compare bit for bit; nothing else calls this module."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncline.wire.digest import Digest, term, total
from syncline.wire.tiling import Frame

Units = NDArray[np.unsignedinteger]


def offsets(frame: Frame, positions: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Tensor offsets of frame-relative positions."""
    wide = positions.astype(np.int64)
    return frame.base + wide // frame.length * frame.stride + wide % frame.length


def gather(flat: Units, frame: Frame) -> Units:
    """The frame's units, contiguous."""
    return flat[offsets(frame, np.arange(frame.units, dtype=np.uint32))]


def changed_positions(old: Units, new: Units) -> NDArray[np.uint32]:
    """Ascending positions where two frames differ."""
    return np.flatnonzero(old != new).astype(np.uint32)


def digest_units(flat: Units, seed: tuple[int, int], *, start: int = 0) -> Digest:
    """Sum of every unit's term."""
    return total(term(seed, start + i, int(bits), flat.itemsize) for i, bits in enumerate(flat))


def change_digest(frame: Frame, positions: NDArray[np.uint32], old: Units, new: Units, seed: tuple[int, int]) -> Digest:
    """Sum of new terms minus old ones."""
    places = offsets(frame, positions)
    size = new.itemsize
    after = total(term(seed, int(p), int(b), size) for p, b in zip(places, new, strict=True))
    return after - total(term(seed, int(p), int(b), size) for p, b in zip(places, old, strict=True))
