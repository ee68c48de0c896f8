"""What a codec is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Units = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class FrameChange:
    """One frame before and after: contiguous unit arrays of equal length and width, and where they differ."""

    old: Units
    new: Units
    positions: NDArray[np.uint32]
    """Ascending, at least one."""


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
        """Rough cost of encode plus decode on one core, for the choice between codecs; bench/codecs.py measures it."""
        ...

    def encode(self, change: FrameChange) -> bytes:
        """Payload of a frame."""
        ...

    def decode(self, payload: memoryview, frame: Units, *, changed: int) -> None:
        """Turn a scratch frame from base bits into new bits, in place.

        FrameCorrupt when the payload is not exactly the change of `changed` units; the frame's content is then undefined, and nothing
        outside it was written.
        """
        ...
