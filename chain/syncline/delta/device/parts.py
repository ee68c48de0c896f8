"""Changes that stand ready in device memory: place by place, or whole frames where most of their units change.

Nothing is live before `write`. Absolute bits: writing twice is writing once, and the bits before are kept for an undo.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.delta.device.slabs import Slab
from syncline.kernels.gpu import scatter as commit
from syncline.kernels.gpu.batch import FrameBatch, Staged
from syncline.wire.digest import Digest

Sums = NDArray[np.uint64]
"""[frames, 2]: the lanes of digests (wire.digest)."""


def sums_of(sums: Tensor) -> Sums:
    """As the kernels sum up, on the host. Waits for the device."""
    return sums.cpu().numpy().view(np.uint64)


def summed(keys: NDArray[np.integer], sums: Sums) -> dict[int, Digest]:
    """The digests of each key together."""
    order = np.argsort(keys, kind="stable")
    named, firsts = np.unique(keys[order], return_index=True)
    if not named.size:
        return {}
    lanes = np.add.reduceat(sums[order], firsts, axis=0)
    return {key: Digest(*own) for key, own in zip(named.tolist(), lanes.tolist(), strict=True)}


class DevicePart(Protocol):
    """Changes of some frames."""

    @property
    def tensors(self) -> NDArray[np.int32]:
        """By frame: its tensor."""
        ...

    @property
    def frames(self) -> NDArray[np.int64]:
        """By frame: its index in the tensor's grid."""
        ...

    @property
    def counts(self) -> NDArray[np.int32]:
        """By frame: units that change."""
        ...

    @property
    def sums(self) -> Sums:
        """By frame: what writing adds to its tensor's digest."""
        ...

    @property
    def nbytes(self) -> int:
        """Device memory."""
        ...

    def write(self, *, undo: bool) -> None:
        """Make the new bits live, or the old ones again. Queued on the current stream."""
        ...

    def missing(self, *, undo: bool) -> Tensor:
        """By frame: places that do not hold the new bits, or the old ones. Queued on the current stream."""
        ...


@dataclass(frozen=True, slots=True)
class SparsePart:
    """Places with old and new bits, as the kernels stage them."""

    tensors: NDArray[np.int32]
    frames: NDArray[np.int64]
    counts: NDArray[np.int32]
    sums: Sums
    batch: FrameBatch
    staged: Staged

    @property
    def nbytes(self) -> int:
        arrays = (self.batch.bases, self.batch.lengths, self.batch.strides, self.batch.units)
        staged = self.staged
        arrays += (staged.firsts, staged.changed, staged.positions, staged.old, staged.new)
        return sum(array.nbytes for array in arrays)

    def write(self, *, undo: bool) -> None:
        (commit.undo if undo else commit.scatter)(self.batch, self.staged)

    def missing(self, *, undo: bool) -> Tensor:
        return commit.missing(self.batch, self.staged, self.staged.old if undo else self.staged.new)


@dataclass(frozen=True, slots=True)
class DensePart:
    """Frames before and after, whole: a list of places would take more."""

    tensors: NDArray[np.int32]
    frames: NDArray[np.int64]
    counts: NDArray[np.int32]
    sums: Sums
    slab: Slab

    @property
    def nbytes(self) -> int:
        return self.slab.before.nbytes + self.slab.after.nbytes

    def write(self, *, undo: bool) -> None:
        for live, bits in self._pairs(undo=undo):
            live.copy_(bits)

    def missing(self, *, undo: bool) -> Tensor:
        return torch.stack([torch.count_nonzero(live != bits) for live, bits in self._pairs(undo=undo)])

    def _pairs(self, *, undo: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Each frame where it lies, and what belongs there."""
        for place, row in enumerate(self.slab.rows.tolist()):
            live = self.slab.kind.view(row)
            yield live, self.slab.frame(place, before=undo).view(live.shape)
