"""What every kernel means, in plain NumPy. Tests compare bit for bit; nothing else calls this module."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncline.wire.digest import Digest, term, total
from syncline.wire.tiling import Frame

Units = NDArray[np.unsignedinteger]
Positions = NDArray[np.uint32]
Counts = NDArray[np.int64]


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


def lane_clocks(units: Units, *, lanes: int, piece: int, contexts: NDArray[np.int64], widths: Positions) -> Counts:
    """[lane, row]: widths of a lane's units before each of its pieces, and of all of them."""
    ticks = widths.astype(np.int64)[contexts]
    rows = -(-units.size // (piece * lanes))
    padded = np.zeros(rows * lanes * piece, np.int64)
    padded[: units.size] = ticks
    sums = padded.reshape(rows, lanes, piece).sum(2).T
    return np.concatenate([np.zeros((lanes, 1), np.int64), sums.cumsum(1)], 1)


def clocks(
    units: Units, positions: Positions, *, lanes: int, piece: int, contexts: NDArray[np.int64], widths: Positions
) -> tuple[list[int], list[int]]:
    """The clock of its lane since the change before, at each change; and since the last one, of each lane."""
    changed = set(positions.tolist())
    found: list[int] = []
    running = [0] * lanes
    for at in range(units.size):
        lane = at // piece % lanes
        if at in changed:
            found.append(running[lane])
            running[lane] = 0
        else:
            running[lane] += int(widths[contexts[at]])
    return found, running
