"""Frames that do not lie as rows in a rank's memory: collected to be read, and changed place by place (placing.Strewn).

Everything here is bounded by a frame. Where a frame is held in part, the rest of it stands in a *shadow*: the whole
frame on the host, kept at the version that is live, so that deltas decode against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from syncline.delta import StagedFrame
from syncline.kernels.digest import change_digest, digest_frame
from syncline.wire.digest import Digest
from syncline.wire.tiling import Frame
from syncline_agent.arm.placing import Spot, Strewn, rows_in_tensor

Units = NDArray[Any]


class Stores(Protocol):
    """Live storages, as the host reads them."""

    def box(self, spot: Spot) -> Units:
        """The spot's live units in the shape of its box, not to be written to: a view, or a copy made now."""
        ...

    def take(self, store: int, places: NDArray[np.int64]) -> Units:
        """A copy of the live units at these places of a store."""
        ...


@dataclass(frozen=True, slots=True)
class HostStores:
    """Stores of numpy arrays."""

    arrays: Sequence[Units]

    def box(self, spot: Spot) -> Units:
        return _box(self.arrays[spot.store], spot.base, spot.size, spot.strides)

    def take(self, store: int, places: NDArray[np.int64]) -> Units:
        return self.arrays[store][places]


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


def collect(frame: Strewn, stores: Stores, shadow: Units | None) -> Units:
    """The frame in its own order, in memory of its own: from live memory, and where it is not held from the shadow."""
    boxes = [stores.box(spot) for spot in frame.spots]
    units = np.empty(frame.frame.units, boxes[0].dtype) if shadow is None else shadow.copy()
    for spot, box in zip(frame.spots, boxes, strict=True):
        _box(units, spot.first, spot.size, frame.strides)[...] = box
    return units


def digest_spot(spot: Spot, shape: Sequence[int], stores: Stores, seed: tuple[int, int]) -> Digest:
    """What the spot's live units add to the digest of their tensor, which has `shape`."""
    units = np.ascontiguousarray(stores.box(spot)).reshape(-1)
    found, done = Digest(), 0
    for rows in rows_in_tensor(shape, spot):
        found += digest_frame(units, Frame(done, 1, rows.units, rows.units), rows, seed)
        done += rows.units
    return found


def change_strewn(
    frame: Strewn,
    shape: Sequence[int],
    stores: Stores,
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
        old = stores.take(spot.store, places[inside])
        differs = old != staged.new[inside]
        moved = np.flatnonzero(inside)[differs]
        if moved.size:
            write = Write(spot.store, places[moved], staged.new[moved], old[differs])
            writes.append(write)
            change = change_digest(frame.frame, staged.positions[moved], write.old, write.new, seed)
            digests[spot.part] = digests.get(spot.part, Digest()) + change
    return StrewnChange(staged if shadowed else None, writes, digests)


def _box(flat: Units, base: int, size: Sequence[int], strides: Sequence[int]) -> Units:
    return np.lib.stride_tricks.as_strided(
        flat[base:], tuple(size), tuple(stride * flat.itemsize for stride in strides)
    )
