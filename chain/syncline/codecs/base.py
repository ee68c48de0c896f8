"""What a codec is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from syncline.errors import FrameCorrupt

Units = NDArray[Any]
"""A flat contiguous row of uint8, uint16, uint32 or uint64."""
UnitType = np.dtype[Any]
Positions = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Placed:
    """Units at ascending positions of a frame."""

    positions: Positions
    units: Units
    base: Units | None = None
    """What stands there, from a codec that had to look at it: it then saw, too, that every unit differs from its base."""


@dataclass(frozen=True, slots=True)
class FrameChange:
    """One frame before and after: where it differs, and what stands there."""

    units: int
    """Of the whole frame."""
    positions: Positions
    """Ascending, at least one."""
    before: Units
    """Old bits at the positions."""
    after: Units
    """New bits at the positions."""
    whole: Callable[[], Units]
    """All new bits of the frame. A call, because they must be copied where the frame's rows lie apart and few codecs want them."""
    base: Callable[[], Units]
    """All old bits of the frame, likewise."""

    @classmethod
    def between(cls, old: Units, new: Units) -> Self:
        """From two contiguous frames of equal length that differ somewhere."""
        positions = np.flatnonzero(old != new).astype(np.uint32)
        return cls(new.size, positions, old[positions], new[positions], lambda: new, lambda: old)

    def head(self, units: int) -> Self:
        """The change of the frame's first units alone."""
        if units >= self.units:
            return self
        kept = int(np.searchsorted(self.positions, units))
        parts = (self.positions[:kept], self.before[:kept], self.after[:kept])
        return type(self)(units, *parts, lambda: self.whole()[:units], lambda: self.base()[:units])


class Uncodable(Exception):
    """A codec has no code for a change; the frame goes to another. Never leaves the encoder."""


class Codec(Protocol):
    """Bytes of one frame's change. Stateless and thread-safe."""

    @property
    def id(self) -> int:
        """Codec id in the directory of a chunk."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def seconds_per_unit(self) -> float:
        """Cost of encode and decode on one core, a unit of the frame (changed or not)."""
        ...

    @property
    def seconds_per_change(self) -> float:
        """Cost of encode and decode on one core, a changed unit. `python -m bench times` measures both."""
        ...

    @property
    def shared(self) -> bytes | None:
        """The codec table that its sections refer to; None for a codec that has none."""
        ...

    def params(self, table: int) -> bytes:
        """Parameters of its sections, where the chunk holds the shared table at place `table`."""
        ...

    def encode(self, change: FrameChange) -> bytes:
        """Payload of a frame. Uncodable when only another codec can hold the change."""
        ...

    def decode(self, payload: memoryview, frame: Units, *, changed: int) -> None:
        """Turn a scratch frame from base bits into new bits, in place.

        FrameCorrupt when the payload is not exactly the change of `changed` units; the frame's content is then undefined, and nothing
        outside it was written.
        """
        ...

    def place(
        self, payload: memoryview, *, units: int, dtype: UnitType, changed: int, base: Callable[[], Units]
    ) -> Placed | None:
        """The new bits and where they go in a frame of `units`, for a codec that tells without writing; None for one that does not.

        `base` gives the frame's base bits, contiguous and only to be read; it is called where they are needed. FrameCorrupt as in `decode`,
        except that the caller must check that every unit differs from the base (`check_moved`) where the codec does not tell it.
        """
        ...


class Unshared:
    """A codec that needs nothing but the frame."""

    __slots__ = ()

    @property
    def shared(self) -> bytes | None:
        return None

    def params(self, table: int) -> bytes:
        del table
        return b""


def check_moved(base: Units, new: Units) -> None:
    """FrameCorrupt unless every new unit differs from what the base holds at its place."""
    if np.any(base == new):
        raise FrameCorrupt("a unit already holds its new bits: wrong base or wrong frame")
