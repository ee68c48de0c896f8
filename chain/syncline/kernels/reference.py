"""What every kernel means, in plain NumPy. Tests compare bit for bit; nothing else calls this module."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncline.wire.digest import Digest, term, total
from syncline.wire.tiling import Frame

Units = NDArray[np.unsignedinteger]
Positions = NDArray[np.uint32]


def offsets(frame: Frame, positions: Positions) -> NDArray[np.int64]:
    """Tensor offsets of frame-relative positions."""
    wide = positions.astype(np.int64)
    return frame.base + wide // frame.length * frame.stride + wide % frame.length


def view(flat: Units, frame: Frame) -> Units:
    """The frame's units, contiguous."""
    return flat[offsets(frame, np.arange(frame.units, dtype=np.uint32))]


def difference(old: Units, new: Units, frame: Frame) -> tuple[Positions, Units, Units]:
    """Ascending positions where two tensors differ inside a frame, and the units there before and after."""
    before, after = view(old, frame), view(new, frame)
    positions = np.flatnonzero(before != after).astype(np.uint32)
    return positions, before[positions], after[positions]


def take(flat: Units, frame: Frame, positions: Positions) -> Units:
    """The units at the positions."""
    return flat[offsets(frame, positions)]


def scatter(flat: Units, frame: Frame, positions: Positions, values: Units) -> None:
    """Write the units at the positions."""
    flat[offsets(frame, positions)] = values


def matches(flat: Units, frame: Frame, positions: Positions, values: Units) -> bool:
    """Whether the units at the positions are these."""
    return bool(np.array_equal(take(flat, frame, positions), values))


def digest_units(flat: Units, seed: tuple[int, int], *, start: int = 0) -> Digest:
    """Sum of every unit's term."""
    return total(term(seed, start + i, int(bits), flat.itemsize) for i, bits in enumerate(flat))


def change_digest(frame: Frame, positions: Positions, old: Units, new: Units, seed: tuple[int, int]) -> Digest:
    """Sum of new terms minus old ones."""
    places = offsets(frame, positions)
    size = new.itemsize
    after = total(term(seed, int(p), int(b), size) for p, b in zip(places, new, strict=True))
    return after - total(term(seed, int(p), int(b), size) for p, b in zip(places, old, strict=True))


def write_gaps(positions: Positions) -> NDArray[np.uint8]:
    """Gap bytes of ascending positions."""
    out: list[int] = []
    expected = 0
    for position in positions.tolist():
        full, rest = divmod(position - expected, 255)
        out += [255] * full + [rest]
        expected = position + 1
    return np.array(out, np.uint8)
