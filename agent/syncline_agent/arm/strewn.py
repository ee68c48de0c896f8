"""Frames that do not lie as rows in host memory: collected to be read, and changed place by place (placing.Strewn).

Everything here is bounded by a frame. Where a frame is held in part, the rest of it stands in a *shadow*: the whole
frame on the host, kept at the version that is live, so that deltas decode against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncline.delta import StagedFrame
from syncline.kernels.digest import change_digest, digest_frame
from syncline.wire.digest import Digest
from syncline.wire.tiling import Frame
from syncline_agent.arm.placing import Spot, Strewn, rows_in_tensor

Units = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Write:
    """Bits for places of one store."""

    store: int
    places: NDArray[np.int64]
    new: Units
    old: Units

    @property
    def nbytes(self) -> int:
        return self.places.nbytes + self.new.nbytes + self.old.nbytes


@dataclass(frozen=True, slots=True)
class StrewnChange:
    """Changes of one strewn frame."""

    shadow: StagedFrame | None
    """In the frame's shadow; None where it needs none."""
    writes: Sequence[Write]
    """In live memory."""
    digests: dict[int, Digest]
    """By part: what the writes add."""

    @property
    def changed(self) -> int:
        return sum(write.places.size for write in self.writes)

    @property
    def nbytes(self) -> int:
        return sum(write.nbytes for write in self.writes) + (self.shadow.nbytes if self.shadow is not None else 0)


def collect(frame: Strewn, stores: Sequence[Units], shadow: Units | None) -> Units:
    """The frame in its own order, in memory of its own: from live memory, and where it is not held from the shadow."""
    dtype = stores[frame.spots[0].store].dtype
    units = np.empty(frame.frame.units, dtype) if shadow is None else shadow.copy()
    for spot in frame.spots:
        _box(units, spot.first, spot.size, frame.strides)[...] = held(spot, stores)
    return units


def held(spot: Spot, stores: Sequence[Units]) -> Units:
    """The spot's live units, in the shape of its box: a view."""
    return _box(stores[spot.store], spot.base, spot.size, spot.strides)


def digest_spot(spot: Spot, shape: Sequence[int], stores: Sequence[Units], seed: tuple[int, int]) -> Digest:
    """What the spot's live units add to the digest of their tensor, which has `shape`."""
    units = np.ascontiguousarray(held(spot, stores)).reshape(-1)
    found, done = Digest(), 0
    for rows in rows_in_tensor(shape, spot):
        found += digest_frame(units, Frame(done, 1, rows.units, rows.units), rows, seed)
        done += rows.units
    return found


def change_strewn(
    frame: Strewn,
    shape: Sequence[int],
    stores: Sequence[Units],
    staged: StagedFrame,
    *,
    shadowed: bool,
    seed: tuple[int, int],
) -> StrewnChange:
    """What a change of the whole frame writes where it is held. Old bits are those of live memory itself."""
    runs, within = np.divmod(staged.positions.astype(np.int64), frame.frame.length)
    indices = np.unravel_index(frame.frame.base + runs * frame.frame.stride + within, shape)
    writes: list[Write] = []
    digests: dict[int, Digest] = {}
    for spot in frame.spots:
        inside = np.ones(staged.positions.size, np.bool_)
        places = np.full(staged.positions.size, spot.base, np.int64)
        for index, start, size, stride in zip(indices, spot.start, spot.size, spot.strides, strict=True):
            inside &= (index >= start) & (index < start + size)
            places += (index - start) * stride
        old = stores[spot.store][places[inside]]
        moved = np.flatnonzero(inside)[old != staged.new[inside]]
        if moved.size:
            write = Write(spot.store, places[moved], staged.new[moved], stores[spot.store][places[moved]])
            writes.append(write)
            change = change_digest(frame.frame, staged.positions[moved], write.old, write.new, seed)
            digests[spot.part] = digests.get(spot.part, Digest()) + change
    return StrewnChange(staged if shadowed else None, writes, digests)


def _box(flat: Units, base: int, size: Sequence[int], strides: Sequence[int]) -> Units:
    return np.lib.stride_tricks.as_strided(
        flat[base:], tuple(size), tuple(stride * flat.itemsize for stride in strides)
    )
