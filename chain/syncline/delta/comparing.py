"""What one tensor's frames changed: positions and bits, held until a codec is chosen, and the sums that need no codec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.base import FrameChange
from syncline.delta.sums import count_nonfinite
from syncline.kernels import frames as kernels
from syncline.kernels.digest import change_digest
from syncline.wire.digest import Digest, seeds
from syncline.wire.tensors import TensorSpec
from syncline.wire.tiling import FrameGrid

Units = NDArray[np.unsignedinteger]

BATCH_FRAMES = 64
"""Frames that are compared at a time, at most. Scratch is held a thread, not a frame."""
BUSY_FRAMES = 16
"""Frames that are compared at a time whatever they hold, so that many threads have work."""
PILOT_FRAMES = 3
FRAME_BYTES = 4096
"""What a held frame takes beside its arrays' content, about: of a hundred thousand small tensors it is most."""


@dataclass(frozen=True, slots=True)
class ComparedFrame:
    """A frame that differs."""

    index: int
    change: FrameChange
    digest_change: Digest
    nonfinite: int

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        return FRAME_BYTES + self.change.positions.nbytes + self.change.before.nbytes + self.change.after.nbytes


def _whole(base: Callable[[], Units], found: kernels.Difference) -> Units:
    """All new bits of a frame, from what is held of it: the new weights are gone by now, or others stand in their buffer."""
    whole = np.array(base(), copy=True)
    whole[found.positions] = found.new
    return whole


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """Compares frames of one tensor; an executor's threads may share it."""

    spec: TensorSpec
    grid: FrameGrid
    old: Units
    new: Units

    def compare(self, index: int) -> ComparedFrame | None:
        """None for a frame that is the same."""
        frame = self.grid.frame(index)
        found = kernels.difference(self.old, self.new, frame)
        if found.positions.size == 0:
            return None
        base = partial(kernels.view, self.old, frame)
        return ComparedFrame(
            index,
            FrameChange(frame.units, *found.parts, partial(_whole, base, found), base),
            change_digest(frame, *found.parts, seeds(self.spec.name)),
            count_nonfinite(self.spec, found.new),
        )

    def first(self) -> range:
        """Indices of the first frames: few, because nothing is known of how much changed."""
        return range(min(PILOT_FRAMES, self.grid.count))

    def following(self, batch: range, held: int, most: int) -> range:
        """Indices of the frames to compare after `batch`, which took `held` bytes; they take about `most` if they are alike."""
        alike = most * len(batch) // held if held else BATCH_FRAMES
        return range(batch.stop, min(batch.stop + min(max(alike, BUSY_FRAMES), BATCH_FRAMES), self.grid.count))
