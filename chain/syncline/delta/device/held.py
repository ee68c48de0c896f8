"""The frames that a rank holds as rows in device memory, as arrays: any set of them becomes a launch without a look at each.

Made once for the stores that an engine computes with; knows no deltas. Geometry is checked here, because kernels trust it.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.kernels.gpu.batch import PIECE_BYTES, FrameBatch, Walk
from syncline.kernels.gpu.digest import TensorPlaces
from syncline.kernels.gpu.host import check_reached
from syncline.wire.digest import seeds
from syncline.wire.limits import FRAME_MAX_UNITS
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Frame, FrameGrid, Tiling

Rows = NDArray[np.int64]
_NONE = -1


@dataclass(frozen=True, slots=True)
class HeldFrame:
    """A frame of a tensor, and where its rows lie."""

    tensor: int
    index: int
    """In the tensor's grid."""
    frame: Frame
    """In the tensor."""
    store: int
    there: Frame
    """In the store. Its rows may be others than the tensor's: positions count them in their order."""


@dataclass(frozen=True, slots=True)
class Kind:
    """All held frames of one unit width. A row names one of them."""

    anchor: Tensor
    """The first store of this width; places count from its first unit."""
    device: torch.device
    """Where kernels run on them."""
    tensors: NDArray[np.int32]
    indices: NDArray[np.int64]
    wide: NDArray[np.int64]
    """In live memory base and stride, in the tensor base and stride, its two seeds: a column a frame."""
    narrow: NDArray[np.int32]
    """In live memory length and units, in the tensor length: a column a frame."""
    walks: NDArray[np.int8]
    runs: NDArray[np.bool_]
    """Whether the frame is one run of its tensor."""
    stores: Sequence[tuple[Tensor, int]]
    """The stores that hold them, each with its place from the anchor."""
    store_of: NDArray[np.int32]

    @property
    def count(self) -> int:
        return self.tensors.size

    @property
    def units(self) -> NDArray[np.int32]:
        """Of each frame."""
        return self.narrow[1]

    def launch(self, rows: Rows) -> tuple[FrameBatch, TensorPlaces]:
        """These frames where they lie, and where they stand in their tensors."""
        wide, narrow = self._uploaded(self.wide[:, rows]), self._uploaded(self.narrow[:, rows])
        walk = Walk(int(self.walks[rows].max(initial=0)))
        flat = bool(self.runs[rows].all())
        batch = FrameBatch(self.anchor, wide[0], narrow[0], wide[1], narrow[1], walk)
        return batch, TensorPlaces(wide[4:].T.contiguous(), wide[2], narrow[2], wide[3], flat)

    def view(self, row: int) -> Tensor:
        """The frame's live units, row by row: no copy."""
        store, origin = self.stores[self.store_of[row]]
        base, stride = int(self.wide[0, row]) - origin, int(self.wide[1, row])
        length, units = int(self.narrow[0, row]), int(self.narrow[1, row])
        return store.as_strided((units // length, length), (stride, 1), store.storage_offset() + base)

    def _uploaded(self, columns: NDArray[Any]) -> Tensor:
        """Each row of the columns where the first row's alignment holds, too: kernels are compiled anew for pointers that are aligned
        otherwise, and a commit of another number of frames would wait for that."""
        rows, count = columns.shape
        a_piece = PIECE_BYTES // columns.dtype.itemsize
        padded = np.zeros((rows, -(-count // a_piece) * a_piece), columns.dtype)
        padded[:, :count] = columns
        return torch.from_numpy(padded).to(self.device)[:, :count]


@dataclass(frozen=True, slots=True)
class HeldFrames:
    """By unit width, and how to find the frames of a tensor."""

    kinds: Sequence[Kind]
    _rows: dict[int, tuple[int, Rows]]
    """By tensor: number of the kind, and of each frame of the grid its row there or none."""
    _kind_of: NDArray[np.int64]
    """The same as arrays: of each tensor the number of its kind or none,"""
    _firsts: NDArray[np.int64]
    """its first frame's place in the next,"""
    _flat: Rows
    """and the rows of all, behind them none."""

    @classmethod
    def of(
        cls,
        table: TensorTable,
        tiling: Tiling,
        stores: Sequence[Tensor],
        frames: Iterable[HeldFrame],
        *,
        device: torch.device | None = None,
    ) -> Self:
        """`stores` are flat integer tensors on one device, or in pinned host memory that kernels of `device` reach into. ValueError where
        a frame does not fit its store, or a store cannot be reached."""
        by_size: dict[int, list[HeldFrame]] = {}
        for held in frames:
            by_size.setdefault(stores[held.store].element_size(), []).append(held)
        rows: dict[int, tuple[int, Rows]] = {}
        kinds: list[Kind] = []
        for members in by_size.values():
            for row, held in enumerate(members):
                if held.tensor not in rows:
                    count = table.tensors[held.tensor].grid(tiling).count
                    rows[held.tensor] = len(kinds), np.full(count, _NONE, np.int64)
                rows[held.tensor][1][held.index] = row
            kinds.append(_kind(table, stores, _Columns.of(members), device))
        return cls._made(kinds, rows)

    @classmethod
    def whole(
        cls,
        table: TensorTable,
        tiling: Tiling,
        tensors: Sequence[tuple[int, Tensor]],
        *,
        device: torch.device | None = None,
    ) -> Self:
        """Tensors by their index, each whole in a store of its own; else as `of`. Rows of a kind are in the order of the tensors, and of
        the frames in each: two sets of the same tensors have the same rows."""
        by_size: dict[int, list[tuple[int, int, FrameGrid]]] = {}
        for store, (tensor, units) in enumerate(tensors):
            grid = table.tensors[tensor].grid(tiling)
            if grid.count:
                by_size.setdefault(units.element_size(), []).append((tensor, store, grid))
        stores = [units for _, units in tensors]
        rows: dict[int, tuple[int, Rows]] = {}
        kinds: list[Kind] = []
        for members in by_size.values():
            first = 0
            for tensor, _, grid in members:
                rows[tensor] = len(kinds), np.arange(first, first + grid.count)
                first += grid.count
            kinds.append(_kind(table, stores, _Columns.whole(members), device))
        return cls._made(kinds, rows)

    @classmethod
    def _made(cls, kinds: Sequence[Kind], rows: dict[int, tuple[int, Rows]]) -> Self:
        counts = np.zeros(max(rows, default=-1) + 2, np.int64)  # the last: of all that are behind
        of_tensor = np.full(counts.size, _NONE, np.int64)
        for tensor, (kind, own) in rows.items():
            counts[tensor], of_tensor[tensor] = own.size, kind
        flat = [rows[tensor][1] for tensor in sorted(rows)]
        return cls(kinds, rows, of_tensor, np.cumsum(counts) - counts, np.concatenate([*flat, [_NONE]]))

    def find(self, tensors: NDArray[np.int64], indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], Rows]:
        """Of frames by tensor and index: number of the kind, and row there, both negative where a frame is not held as a row."""
        known = np.minimum(tensors, self._kind_of.size - 1)
        kinds = self._kind_of[known]
        rows = self._flat[np.where(kinds < 0, _NONE, self._firsts[known] + indices)]
        return np.where(rows < 0, _NONE, kinds), rows

    def of_tensor(self, tensor: int) -> tuple[int, Rows] | None:
        """Number of the tensor's kind, and by frame index its row there, negative for one that is not held as rows."""
        return self._rows.get(tensor)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Frames of one unit width, a column a frame."""

    tensors: NDArray[np.int64]
    indices: NDArray[np.int64]
    stores: NDArray[np.int64]
    there: NDArray[np.int64]
    """In the store: base, runs, length, stride."""
    within: NDArray[np.int64]
    """The same in the tensor."""

    @classmethod
    def of(cls, frames: Sequence[HeldFrame]) -> Self:
        named = np.array([(h.tensor, h.index, h.store) for h in frames], np.int64).T
        there = np.array([(h.there.base, h.there.runs, h.there.length, h.there.stride) for h in frames], np.int64).T
        within = np.array([(h.frame.base, h.frame.runs, h.frame.length, h.frame.stride) for h in frames], np.int64).T
        return cls(named[0], named[1], named[2], there, within)

    @classmethod
    def whole(cls, members: Sequence[tuple[int, int, FrameGrid]]) -> Self:
        """All frames of tensors, each with the number of its store."""
        counts = [grid.count for _, _, grid in members]
        each = [grid.columns() for _, _, grid in members]
        within = np.stack(
            [np.concatenate([getattr(own, name) for own in each]) for name in ("bases", "runs", "lengths", "strides")]
        )
        return cls(
            np.repeat(np.array([tensor for tensor, _, _ in members], np.int64), counts),
            np.concatenate([np.arange(count) for count in counts]),
            np.repeat(np.array([store for _, store, _ in members], np.int64), counts),
            within,
            within,
        )


def _kind(table: TensorTable, stores: Sequence[Tensor], frames: _Columns, device: torch.device | None) -> Kind:
    used = np.unique(frames.stores).tolist()
    if device is not None:
        for store in used:
            check_reached(stores[store], device)
    anchor = next((stores[n] for n in used if stores[n].data_ptr() % PIECE_BYTES == 0), stores[used[0]])
    origins = [_distance(stores[store], anchor) for store in used]
    place = np.searchsorted(used, frames.stores)
    _check(frames, np.array([stores[store].numel() for store in used], np.int64)[place])
    base, runs, length, stride = frames.there
    base = base + np.array(origins, np.int64)[place]
    named, which = np.unique(frames.tensors, return_inverse=True)
    own = np.array([seeds(table.tensors[tensor].name) for tensor in named.tolist()], np.int64)[which].T
    within = frames.within
    return Kind(
        anchor,
        device or anchor.device,
        frames.tensors.astype(np.int32),
        frames.indices,
        np.stack([base, stride, within[0], within[3], own[0], own[1]]),
        np.stack([length, runs * length, within[2]]).astype(np.int32),
        _walks(anchor, base, runs, length, stride),
        within[1] == 1,
        [(stores[store], origin) for store, origin in zip(used, origins, strict=True)],
        place.astype(np.int32),
    )


def _check(frames: _Columns, ends: NDArray[np.int64]) -> None:
    base, runs, length, stride = frames.there
    units = runs * length
    last = base + np.maximum(runs - 1, 0) * stride + length
    wrong = (units < 1) | (units > FRAME_MAX_UNITS) | (base < 0) | (stride < 0) | (last > ends)
    wrong |= units != frames.within[1] * frames.within[2]
    if wrong.any():
        at = int(wrong.argmax())
        there, within = Frame(*frames.there[:, at].tolist()), Frame(*frames.within[:, at].tolist())
        raise ValueError(f"{there} in store {frames.stores[at]} of {ends[at]} units does not hold {within}")


def _walks(
    anchor: Tensor,
    base: NDArray[np.int64],
    runs: NDArray[np.int64],
    length: NDArray[np.int64],
    stride: NDArray[np.int64],
) -> NDArray[np.int8]:
    piece = PIECE_BYTES // anchor.element_size()
    whole = (base % piece == 0) & (length % piece == 0) & (anchor.data_ptr() % PIECE_BYTES == 0)
    evenly = np.where(stride % piece == 0, Walk.ROWS, Walk.ANY)
    return np.where(whole, np.where(runs == 1, Walk.FLAT, evenly), Walk.ANY).astype(np.int8)


def _distance(store: Tensor, anchor: Tensor) -> int:
    if store.dtype != anchor.dtype or store.device != anchor.device or store.dim() != 1 or not store.is_contiguous():
        raise ValueError(
            f"a store of {store.dtype} on {store.device} is no flat row beside {anchor.dtype} on {anchor.device}"
        )
    distance, rest = divmod(store.data_ptr() - anchor.data_ptr(), anchor.element_size())
    if rest:
        raise ValueError("a store does not begin at a whole unit's distance from the first")
    return distance
