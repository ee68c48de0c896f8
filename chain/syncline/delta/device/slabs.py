"""Some frames at a time, copied side by side in device memory: as they are, and as they become. What differs is staged.

For whatever is no single step of the context coder: chains of deltas, frames that the host decodes, whole checkpoints. Memory is bounded
by the slab, whatever changes.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.delta.device.held import Kind, Rows
from syncline.kernels.gpu.batch import PIECE_BYTES, FrameBatch, Staged, Walk

SLAB_BYTES = 512 << 20
"""Of live weights, at most; twice as much is taken. Less leaves more of a GPU idle while it decodes."""
_SLAB_SHARE = 256
"""Of a device's memory: with its copy a slab takes less than one percent."""
_COMPARED_BYTES = 32 << 20
"""Compared at a time, because where every unit differs the indices take many times the units' own bytes."""


@dataclass(frozen=True, slots=True)
class Slab:
    """Frames of one kind, each at a place for whole pieces."""

    kind: Kind
    rows: Rows
    starts: NDArray[np.int64]
    """By frame, and behind them the end."""
    before: Tensor
    after: Tensor

    @classmethod
    def of(cls, kind: Kind, rows: Rows) -> Self:
        """Copy the live frames."""
        starts = _starts(kind, rows)
        before = torch.zeros(int(starts[-1]), dtype=kind.anchor.dtype, device=kind.device)
        for row, start in zip(rows.tolist(), starts.tolist(), strict=False):
            live = kind.view(row)
            before[start : start + live.numel()].view(live.shape).copy_(live)
        return cls(kind, rows, starts, before, before.clone())

    def frame(self, place: int, *, before: bool = False) -> Tensor:
        """What the frame becomes, to be written; or what it is."""
        start = int(self.starts[place])
        return (self.before if before else self.after)[start : start + int(self.kind.units[self.rows[place]])]

    def batch(self, places: NDArray[np.int64], *, before: bool = False) -> FrameBatch:
        """These of its frames, as they have become so far, or as they are."""
        units = self.kind.units[self.rows[places]]
        device = self.after.device
        lengths = torch.from_numpy(units).to(device)
        flat = bool((units % (PIECE_BYTES // self.after.element_size()) == 0).all())
        return FrameBatch(
            self.before if before else self.after,
            torch.from_numpy(self.starts[places]).to(device),
            lengths,
            lengths.to(torch.int64),
            lengths,
            Walk.FLAT if flat else Walk.ANY,
        )

    def changed(self) -> int:
        """Units that became something else. Waits for the device."""
        counts = [
            torch.count_nonzero(self.before[first:end] != self.after[first:end]) for first, end in self._compared()
        ]
        return int(torch.stack(counts).sum())

    def changed_of_frames(self) -> NDArray[np.int32]:
        """The same, by frame."""
        frames = [(self.frame(place, before=True), self.frame(place)) for place in range(self.rows.size)]
        return (
            torch.stack([torch.count_nonzero(before != after) for before, after in frames])
            .cpu()
            .numpy()
            .astype(np.int32)
        )

    def difference(self) -> Staged:
        """Where the frames became something else, in order."""
        most = _COMPARED_BYTES // self.after.element_size()
        parts = [self._differing(low, high) for low, high in pieces(self.starts, most)]
        changed, positions, old, new = (torch.cat(column) for column in zip(*parts, strict=True))
        ends = torch.cumsum(changed, 0)
        return Staged(ends - changed, changed.to(torch.int32), positions, old, new)

    def _compared(self) -> Iterator[tuple[int, int]]:
        most = _COMPARED_BYTES // self.after.element_size()
        for low in range(0, self.after.numel(), most):
            yield low, min(low + most, self.after.numel())

    def _differing(self, low: int, high: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first, end = int(self.starts[low]), int(self.starts[high])
        before, after = self.before[first:end], self.after[first:end]
        index = torch.nonzero(before != after).view(-1)
        bounds = torch.from_numpy(self.starts[low : high + 1] - first).to(index.device)
        changed = torch.searchsorted(index, bounds).diff()
        origins = torch.repeat_interleave(bounds[:-1], changed, output_size=index.numel())
        return changed, (index - origins).to(torch.int32), before[index], after[index]


def slab_bytes_of(device: torch.device) -> int:
    """What fits a device."""
    if device.type != "cuda":
        return SLAB_BYTES
    return min(SLAB_BYTES, torch.cuda.get_device_properties(device).total_memory // _SLAB_SHARE)


def slabs(kind: Kind, rows: Rows, slab_bytes: int) -> Iterator[Rows]:
    """Rows in slabs of at most so many bytes, or of one frame."""
    for low, high in pieces(_starts(kind, rows), slab_bytes // kind.anchor.element_size()):
        yield rows[low:high]


def _starts(kind: Kind, rows: Rows) -> NDArray[np.int64]:
    piece = PIECE_BYTES // kind.anchor.element_size()
    sizes = -(-kind.units[rows].astype(np.int64) // piece) * piece
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def pieces(starts: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Cut frames that lie behind one another into spans of at most `most` units, or of one frame."""
    low = 0
    while low < starts.size - 1:
        high = int(np.searchsorted(starts, starts[low] + most, side="right")) - 1
        high = max(high, low + 1)
        yield low, high
        low = high
