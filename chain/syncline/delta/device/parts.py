"""Changes that stand ready in device memory: place by place, or whole frames where most of their units change.

Nothing is live before `write`. Absolute bits: writing twice is writing once, and the bits before are kept for an undo.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from syncline.delta.device.slabs import Slab
from syncline.kernels.gpu import scatter as commit
from syncline.kernels.gpu.batch import FrameBatch, Staged
from syncline.wire.digest import Digest


class DevicePart(Protocol):
    """Changes of some frames."""

    @property
    def tensors(self) -> Sequence[int]:
        """By frame: its tensor."""
        ...

    @property
    def frames(self) -> Sequence[int]:
        """By frame: its index in the tensor's grid."""
        ...

    @property
    def counts(self) -> Sequence[int]:
        """By frame: units that change."""
        ...

    @property
    def digests(self) -> Sequence[Digest]:
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

    tensors: Sequence[int]
    frames: Sequence[int]
    counts: Sequence[int]
    digests: Sequence[Digest]
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

    tensors: Sequence[int]
    frames: Sequence[int]
    counts: Sequence[int]
    digests: Sequence[Digest]
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
