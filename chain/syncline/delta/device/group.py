"""Tensors that are encoded together: where their frames lie before and after, and what can be told of all of them at once.

The new weights lie on the device, the old ones there too or in pinned host memory. Both have the same rows, by unit width; nothing here
is done frame by frame on the host.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.delta.device.held import HeldFrames, Kind, Rows
from syncline.delta.device.memory import current, to_host
from syncline.kernels.gpu.digest import sweep
from syncline.kernels.gpu.nonfinite import holds_nonfinite
from syncline.wire import dtypes
from syncline.wire.digest import Digest
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """Flat integer views of a tensor."""

    tensor: int
    spec: TensorSpec
    old: Tensor
    new: Tensor


@dataclass(frozen=True)
class Group:
    """Both sides of some tensors, in ascending order. A row of a kind is the same frame on both."""

    tensors: Sequence[HeldTensor]
    before: HeldFrames
    after: HeldFrames
    device: torch.device

    @classmethod
    def of(cls, table: TensorTable, tiling: Tiling, tensors: Sequence[HeldTensor], device: torch.device) -> Self:
        return cls(
            tensors,
            HeldFrames.whole(table, tiling, [(held.tensor, held.old) for held in tensors], device=device),
            HeldFrames.whole(table, tiling, [(held.tensor, held.new) for held in tensors]),
            device,
        )

    def digests(self, *, before: bool = False) -> list[Digest]:
        """Of each tensor's new weights, or its old ones. Waits for the device."""
        found = digests(self.before if before else self.after, self.device)
        return [found.get(held.tensor, Digest()) for held in self.tensors]

    @cached_property
    def nonfinite(self) -> list[int]:
        """How many of each tensor's changed values are NaN or Inf. Waits for the device where it was not asked before."""
        found = dict.fromkeys((held.tensor for held in self.tensors), 0)
        with current(self.device):
            queued = [self._may_be_nonfinite(kind) for kind in self.after.kinds]
            for number, parts in enumerate(queued):
                for rows, flags in parts:
                    if (held := rows[np.flatnonzero(to_host(flags))]).size:
                        for tensor, count in self._changed_to_nonfinite(number, held):
                            found[tensor] += count
        return list(found.values())

    def _may_be_nonfinite(self, kind: Kind) -> list[tuple[Rows, Tensor]]:
        masks = self._masks(kind)
        most = int(kind.units.max())
        return [
            (rows, holds_nonfinite(kind.launch(rows)[0], torch.from_numpy(masks[rows]).to(self.device), most))
            for rows in _launches(kind)
            if masks[rows].any()
        ]

    def _changed_to_nonfinite(self, number: int, rows: Rows) -> list[tuple[int, int]]:
        """Tensor and number of such changes, of frames of a kind: the old ones may be far, and are looked at only here."""
        before, after = self.before.kinds[number], self.after.kinds[number]
        counts: list[Tensor] = []
        for row, mask in zip(rows.tolist(), self._masks(after)[rows].tolist(), strict=True):
            old, new = before.view(row).to(self.device), after.view(row)
            counts.append((((new & mask) == mask) & (new != old)).sum())
        return list(zip(after.tensors[rows].tolist(), torch.stack(counts).tolist(), strict=True))

    def _masks(self, kind: Kind) -> NDArray[np.int64]:
        """Of each frame the bits that are all set in NaN and Inf."""
        tensors, which = np.unique(kind.tensors, return_inverse=True)
        dtype_of = {held.tensor: held.spec.dtype for held in self.tensors}
        own = [dtypes.dtype(dtype_of[tensor]).exponent_mask for tensor in tensors.tolist()]
        return np.array(own, np.int64)[which]


def digests(held: HeldFrames, device: torch.device) -> dict[int, Digest]:
    """By tensor, of what their frames hold; an empty one is left out. Waits for the device."""
    found: dict[int, Digest] = {}
    with current(device):
        queued = [[(rows, sweep(*kind.launch(rows))) for rows in _launches(kind)] for kind in held.kinds]
        for kind, parts in zip(held.kinds, queued, strict=True):
            sums = np.empty((kind.count, 2), np.uint64)
            for rows, own in parts:
                sums[rows] = to_host(own)
            found |= _by_tensor(kind.tensors, sums)
    return found


def _launches(kind: Kind) -> list[Rows]:
    """All rows, those apart that kernels reach in another way: a launch goes the slowest way of its frames."""
    ways = 2 * kind.walks + kind.runs
    return [np.flatnonzero(ways == way) for way in np.unique(ways)]


def _by_tensor(tensors: NDArray[np.int32], sums: NDArray[np.uint64]) -> dict[int, Digest]:
    """From the sums of frames, which are in the order of their tensors."""
    firsts = np.flatnonzero(np.diff(tensors, prepend=-1))
    of_tensor = np.add.reduceat(sums, firsts, axis=0)
    return {
        tensor: Digest(lane1, lane2)
        for tensor, (lane1, lane2) in zip(tensors[firsts].tolist(), of_tensor.tolist(), strict=True)
    }
