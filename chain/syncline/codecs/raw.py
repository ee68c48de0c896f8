"""`raw`: all new units of the frame, little-endian. For dense changes; needs no base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from syncline.codecs.base import FrameChange, Placed, Units, UnitType, Unshared
from syncline.errors import FrameCorrupt
from syncline.wire.limits import CODEC_RAW


@dataclass(frozen=True, slots=True)
class RawCodec(Unshared):
    """Payload: n units of w bytes."""

    id: int = CODEC_RAW
    name: str = "raw"
    seconds_per_unit: float = 0.3e-9
    seconds_per_change: float = 0.0

    def encode(self, change: FrameChange) -> bytes:
        return change.whole().tobytes()

    def decode(self, payload: memoryview, frame: Units, *, changed: int) -> None:
        if len(payload) != frame.nbytes:
            raise FrameCorrupt(f"raw: {len(payload)} bytes for a frame of {frame.nbytes}")
        new = np.frombuffer(payload, frame.dtype)
        found = int(np.count_nonzero(new != frame))
        if found != changed:
            raise FrameCorrupt(
                f"raw: {found} units differ from the base, {changed} were promised: wrong base or wrong frame"
            )
        frame[:] = new

    def place(
        self, payload: memoryview, *, units: int, dtype: UnitType, changed: int, base: Callable[[], Units] | None = None
    ) -> Placed | None:
        return None
