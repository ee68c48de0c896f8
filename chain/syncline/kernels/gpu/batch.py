"""What the kernels work on: a table on the device, and frames of many tensors by their places.

A launch takes frames of one dtype, wherever they lie: a place is counted in units from one tensor's first (the anchor), so frames of
other tensors are reached from it too. Everything is checked here, on the host, where it is cheap; kernels trust the geometry and nothing
else. The caller keeps the tensors alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.kernels.clock import VALUE_BITS, Alphabet
from syncline.wire.limits import FRAME_MAX_UNITS
from syncline.wire.tiling import Frame

PIECE_BYTES = 16
LANES_MAX = 32
UNIT_TYPES = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
"""Integer view of units by their bits. Signs mean nothing."""
_UNITS = frozenset(UNIT_TYPES.values())
_SYMBOLS = 256
_COARSE = 4
"""A value list is looked up by the slot's upper bits first: the entry that holds the first of 16 slots."""


class Walk(IntEnum):
    """How a kernel reaches the pieces of a batch's frames: the cheapest way that fits all of them."""

    FLAT = 0
    """Each frame is one run of whole pieces at 16-byte boundaries."""
    ROWS = 1
    """Rows of whole pieces at 16-byte boundaries."""
    ANY = 2
    """Unit by unit."""


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """A codec table as kernels read it."""

    zone_bits: int
    widths: Tensor
    """int32[256]: ticks of each context."""
    sums: Tensor
    """What the scan looks up. Of 16-bit units int32, the widths of two contexts together at low | high << 8; of others `widths`, as
    narrow as they fit."""
    lists: Tensor
    """int32[256]: of each context, first entry of its value list << 8 | number of the list."""
    coarse: Tensor
    """uint8: at list * 256 + (slot >> 4), the entry of the list that holds the first of those 16 slots."""
    entries: Tensor
    """int32: start << 20 | frequency - 1 << 8 | symbol, list after list."""
    codes: Tensor
    """int32: start << 16 | frequency at list * 256 + symbol; 0 where the list does not hold the symbol."""

    @classmethod
    def of(
        cls,
        alphabet: Alphabet,
        zone_bits: int,
        widths: Sequence[int],
        lists: Sequence[Sequence[tuple[int, int]]],
        of_context: Sequence[int],
        device: torch.device,
    ) -> Self:
        """Copy a table to a device: (symbol, frequency) lists that sum to 4096, as the reader of tables has checked."""
        slots = 1 << VALUE_BITS
        firsts: list[int] = []
        coarse: list[int] = []
        entries: list[int] = []
        codes = [0] * (len(lists) * _SYMBOLS)
        for number, values in enumerate(lists):
            firsts.append(len(entries))
            start = 0
            for at, (symbol, frequency) in enumerate(values):
                coarse += [at] * (-(-(start + frequency) // (1 << _COARSE)) - -(-start // (1 << _COARSE)))
                entries.append(start << 20 | (frequency - 1) << 8 | symbol)
                codes[number * _SYMBOLS + symbol] = start << 16 | frequency
                start += frequency
            if start != slots:
                raise ValueError(f"value list {number} sums to {start}, not {slots}")
        placed = [firsts[number] << 8 | number for number in of_context]
        if len(widths) != 256 or len(placed) != 256:
            raise ValueError(f"{len(widths)} widths and {len(placed)} lists for 256 contexts")
        ticks = _ints(widths, device)
        return cls(
            zone_bits,
            ticks,
            _sums(alphabet, ticks, max(widths)),
            _ints(placed, device),
            torch.tensor(coarse, dtype=torch.uint8, device=device),
            _ints([e - (1 << 32) if e >> 31 else e for e in entries], device),
            _ints(codes, device),
        )


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Frames of one dtype in live memory."""

    anchor: Tensor
    """Flat view of units; places count from its first."""
    bases: Tensor
    """int64: place of each frame's first unit."""
    lengths: Tensor
    """int32: units of a row."""
    strides: Tensor
    """int64: units from a row to the next."""
    units: Tensor
    """int32: units of the frame, row by row; at most 2^20."""
    walk: Walk

    @property
    def count(self) -> int:
        return self.bases.numel()

    @property
    def device(self) -> torch.device:
        """Where kernels run on it: that of the live memory, or one that reaches into pinned host memory."""
        return self.bases.device

    @classmethod
    def of(cls, tensors: Sequence[Tensor], frames: Sequence[tuple[int, Frame]]) -> Self:
        """Place frames, each with the number of its tensor. Tensors are contiguous, of one unit width, on one device."""
        anchor = unit_view(tensors[0])
        size = anchor.element_size()
        origins = [_origin(tensor, anchor) for tensor in tensors]
        ends = np.array([tensor.numel() * tensor.element_size() // size for tensor in tensors], np.int64)
        rows = [(number, frame.base, frame.runs, frame.length, frame.stride) for number, frame in frames]
        number, base, runs, length, stride = np.array(rows, np.int64).reshape(-1, 5).T
        units = runs * length
        wrong = (units < 1) | (units > FRAME_MAX_UNITS) | (base < 0) | (runs < 1) | (stride < 0)
        beyond = base + (runs - 1) * stride + length > ends[number]
        if (wrong | beyond).any():
            at = int((wrong | beyond).argmax())
            tensor, frame = frames[at]
            if wrong[at]:
                raise ValueError(f"{frame} is none that the kernels take")
            raise ValueError(f"{frame} does not fit tensor {tensor} of {tuple(tensors[tensor].shape)}")
        place = np.array(origins, np.int64)[number] + base
        walks = _walks(anchor.data_ptr() + place * size, runs, length, stride, size)
        walk = Walk.ANY if anchor.data_ptr() % PIECE_BYTES else Walk(int(walks.max(initial=Walk.FLAT)))
        device = anchor.device
        return cls(
            anchor,
            torch.tensor(place, device=device),
            torch.tensor(length, dtype=torch.int32, device=device),
            torch.tensor(stride, device=device),
            torch.tensor(units, dtype=torch.int32, device=device),
            walk,
        )


@dataclass(frozen=True, slots=True)
class CodedFrames:
    """What a chunk says about the frames of a batch that are coded under one table with the same number of lanes."""

    alphabet: Alphabet
    table: DeviceTable
    lanes: int
    """1, 2, 4, 8, 16 or 32 a frame."""
    changed: Tensor
    """int32: changes of each frame."""
    payload: Tensor
    """uint8: chunks' bytes; a lane's words may begin at an odd one."""
    starts: Tensor
    """int64, lanes of the first frame first: where each lane's words begin in `payload`."""
    words: Tensor
    """int32: the number of them."""

    def check(self, batch: FrameBatch) -> None:
        """Raise ValueError where sizes do not fit each other. Reads the device: for the edge, not for the commit path."""
        if self.lanes not in (1, 2, 4, 8, 16, 32) or self.starts.numel() != batch.count * self.lanes:
            raise ValueError(f"{self.starts.numel()} lanes for {batch.count} frames of {self.lanes}")
        ends = self.starts + 2 * self.words
        if batch.count and (int(self.starts.min()) < 0 or int(self.words.min()) < 0):
            raise ValueError("a lane begins before the payload")
        if batch.count and int(ends.max()) > self.payload.numel():
            raise ValueError(f"a lane ends at byte {int(ends.max())} of {self.payload.numel()}")


@dataclass(frozen=True, slots=True)
class Staged:
    """Changes of a batch's frames, ready to be written: each frame owns the slots from its first on, as many as it changes."""

    firsts: Tensor
    """int64: first slot of each frame."""
    changed: Tensor
    """int32: slots of each frame."""
    positions: Tensor
    """int32: frame-relative positions, in any order."""
    old: Tensor
    """Units before, in the batch's unit type."""
    new: Tensor
    """Units after."""

    @classmethod
    def empty(cls, changed: Tensor, slots: int, unit: torch.dtype) -> Self:
        """Room for the changes of all frames, `slots` in all."""
        ends = torch.cumsum(changed.to(torch.int64), 0)
        device = changed.device
        return cls(
            ends - changed,
            changed,
            torch.empty(slots, dtype=torch.int32, device=device),
            torch.empty(slots, dtype=unit, device=device),
            torch.empty(slots, dtype=unit, device=device),
        )


def programs_a_frame(slots: int, frames: int, block: int) -> int:
    """Programs that take a frame's slots, a block each: an eighth more than the mean frame needs. One with more takes further rounds."""
    return max(-(-(slots + slots // 8) // (block * max(frames, 1))), 1)


def walk_of(tensor: Tensor, frame: Frame) -> Walk:
    """The way through a frame of a contiguous tensor. A launch goes the slowest way of its frames: keep unlike ones apart."""
    flat = unit_view(tensor)
    if flat.data_ptr() % PIECE_BYTES:
        return Walk.ANY
    return _walk(frame, flat.data_ptr() + frame.base * flat.element_size(), flat.element_size())


def unit_view(tensor: Tensor) -> Tensor:
    """Flat integer view of a contiguous tensor's units, without a copy."""
    if tensor.dim() == 1 and tensor.dtype in _UNITS and tensor.is_contiguous():
        return tensor  # as nearly always, and asked for once a frame
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of {tuple(tensor.shape)} with strides {tensor.stride()} is not contiguous")
    return tensor.view(-1).view(UNIT_TYPES[8 * tensor.element_size()])


def _ints(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def _sums(alphabet: Alphabet, widths: Tensor, widest: int) -> Tensor:
    if alphabet.bits == 16:
        return (widths[:, None] + widths[None, :]).flatten()
    for narrow in (torch.uint8, torch.int16):
        if widest <= torch.iinfo(narrow).max:
            return widths.to(narrow)
    return widths


def _origin(tensor: Tensor, anchor: Tensor) -> int:
    """Units from the anchor's first to the tensor's."""
    view = unit_view(tensor)
    if view.dtype != anchor.dtype or view.device != anchor.device:
        raise ValueError(
            f"units of {view.dtype} on {view.device} cannot be reached from {anchor.dtype} on {anchor.device}"
        )
    distance, rest = divmod(view.data_ptr() - anchor.data_ptr(), anchor.element_size())
    if rest:
        raise ValueError("a tensor does not begin at a whole unit's distance from the first")
    return distance


def _walks(
    address: NDArray[np.int64], runs: NDArray[np.int64], length: NDArray[np.int64], stride: NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    piece = PIECE_BYTES // size
    whole = (address % PIECE_BYTES == 0) & (length % piece == 0)
    return np.where(whole, np.where(runs == 1, Walk.FLAT, np.where(stride % piece == 0, Walk.ROWS, Walk.ANY)), Walk.ANY)


def _walk(frame: Frame, address: int, size: int) -> Walk:
    piece = PIECE_BYTES // size
    if address % PIECE_BYTES or frame.length % piece:
        return Walk.ANY
    if frame.runs == 1:
        return Walk.FLAT
    return Walk.ROWS if frame.stride % piece == 0 else Walk.ANY
