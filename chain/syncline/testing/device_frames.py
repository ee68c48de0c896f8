"""Frames for the GPU kernels' tests: drawn, changed, encoded by the CPU's codec, and laid out as a batch with canaries between."""

# pyright: basic
# torch does not say what a tensor's list holds

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from syncline.codecs.base import FrameChange
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, lanes_of, split_lanes
from syncline.codecs.context.counts import Counts, count_symbols, count_units
from syncline.codecs.context.fitting import fit
from syncline.codecs.context.table import ContextTable
from syncline.kernels.gpu.batch import UNIT_TYPES, CodedFrames, DeviceTable, FrameBatch, Staged
from syncline.kernels.reference import offsets
from syncline.wire.tiling import Frame

CANARY = 0x5A
GAP = 3
"""Slots that no frame owns, after each frame's."""
_STEPS = (1, -1, 2, -40, 3000, 1 << 14)
_OFTEN = (0.4, 0.4, 0.1, 0.05, 0.03, 0.02)
_ODD = (0, 0x80, 0x8000, 0x7FC1, 0xFFFF, 0x8000_0000, 0x7F80_0001)
"""Zeros of either sign, infinities and NaN payloads, in one width or another."""

Units = NDArray[Any]


@dataclass(frozen=True, slots=True)
class DeviceCase:
    """Frames of one live tensor, their delta, and what they become."""

    batch: FrameBatch
    coded: CodedFrames
    staged: Staged
    old: Units
    new: Units
    """The whole tensor after."""

    @property
    def live(self) -> Units:
        """The tensor as it is now, as unsigned units."""
        return self.batch.anchor.cpu().numpy().view(self.old.dtype)

    def changes(self, frame: int) -> list[tuple[int, int, int]]:
        """The frame's staged (position, old, new), sorted."""
        first, count = int(self.staged.firsts[frame]), int(self.staged.changed[frame])
        parts = (self.staged.positions, self.staged.old, self.staged.new)
        columns = [part[first : first + count].cpu().numpy() for part in parts]
        units = [column.view(self.old.dtype).tolist() for column in columns[1:]]
        return sorted(zip(columns[0].tolist(), *units, strict=True))

    def gaps_untouched(self) -> bool:
        """Whether every slot that no frame owns still holds the canary."""
        owned = torch.zeros(self.staged.positions.numel(), dtype=torch.bool)
        for first, count in zip(self.staged.firsts.tolist(), self.staged.changed.tolist(), strict=True):
            owned[first : first + count] = True
        parts = (self.staged.positions, self.staged.old, self.staged.new)
        return all(bool((part.cpu()[~owned] == CANARY).all()) for part in parts)


def device_case(
    dtype: str, frames: Sequence[Frame], *, share: float, lane_shift: int, seed: int, device: str = "cpu"
) -> DeviceCase:
    """Frames (of one size) of a tensor that just holds them, of whose units `share` change, at least one a frame.

    `lane_shift` may be less than the format's least, so that tiny frames have many lanes.
    """
    generator = np.random.default_rng(seed)
    size = max(frame.offset(frame.units - 1) for frame in frames) + 1
    old = _drawn(generator, size, ALPHABETS[dtype].bits)
    new = old.copy()
    for frame in frames:
        places = offsets(frame, np.arange(frame.units, dtype=np.uint32))
        moved = generator.random(frame.units) < share
        moved[generator.integers(frame.units)] = True
        step = generator.choice(_STEPS, int(moved.sum()), p=_OFTEN)
        new[places[moved]] = (old[places[moved]].astype(np.int64) + step).astype(old.dtype)
        new[places[moved]] ^= (new[places[moved]] == old[places[moved]]).astype(old.dtype)
    return case_of(dtype, frames, old, new, lane_shift=lane_shift, seed=seed, device=device)


def case_of(
    dtype: str,
    frames: Sequence[Frame],
    old: Units,
    new: Units,
    *,
    lane_shift: int,
    seed: int = 0,
    table: ContextTable | None = None,
    device: str = "cpu",
) -> DeviceCase:
    """The same for a tensor before and after, every frame of which changes; under a table that fits it, or `table`."""
    alphabet = ALPHABETS[dtype]
    generator = np.random.default_rng(seed)
    changes: list[FrameChange] = []
    symbols = np.zeros((256, 256), np.int64)
    for frame in frames:
        places = offsets(frame, np.arange(frame.units, dtype=np.uint32))
        changes.append(FrameChange.between(old[places], new[places]))
        count_symbols(alphabet, changes[-1].before, changes[-1].after, symbols)
    table = table or fit(Counts(count_units(alphabet, old), symbols), alphabet, exact=bool(seed % 2))
    codec = ContextCodec(table, alphabet, lane_shift)
    lanes = lanes_of(frames[0].units, lane_shift)
    payload = bytearray()
    starts: list[int] = []
    words: list[int] = []
    for change in changes:
        payload += bytes([CANARY] * int(generator.integers(2)))  # odd and even places
        coded = codec.encode(change)
        _, ends = split_lanes(memoryview(coded), lanes)
        head = len(coded) - 2 * int(ends[-1])
        starts += [len(payload) + head + 2 * int(end) for end in ends[:-1]]
        words += [int(count) for count in np.diff(ends)]
        payload += coded
    live = torch.from_numpy(old.copy().view(f"i{old.itemsize}" if old.itemsize > 1 else "u1")).to(device)
    ints: dict[str, Any] = {"dtype": torch.int32, "device": device}
    changed = torch.tensor([change.positions.size for change in changes], **ints)
    firsts = torch.cumsum(changed + GAP, 0) - changed
    slots = int((changed + GAP).sum()) + GAP
    return DeviceCase(
        FrameBatch.of([live], [(0, frame) for frame in frames]),
        CodedFrames(
            alphabet,
            DeviceTable.of(
                alphabet, table.zone_bits, table.widths, table.lists, table.of_context, torch.device(device)
            ),
            lanes,
            changed,
            torch.tensor(list(payload), dtype=torch.uint8, device=device),
            torch.tensor(starts, dtype=torch.int64, device=device),
            torch.tensor(words, **ints),
        ),
        Staged(
            firsts.to(torch.int64),
            changed,
            torch.full((slots,), CANARY, **ints),
            *(torch.full((slots,), CANARY, dtype=UNIT_TYPES[alphabet.bits], device=device) for _ in range(2)),
        ),
        old,
        new,
    )


def _drawn(generator: np.random.Generator, size: int, bits: int) -> Units:
    unit = np.dtype(f"u{bits // 8}")
    weights = (generator.standard_normal(size) * 0.02).astype(np.float32).view(np.uint32)
    units = (weights >> (32 - bits)).astype(unit)
    odd = generator.random(size) < 0.02
    units[odd] = generator.choice(np.array(_ODD, np.uint32), int(odd.sum())).astype(unit)
    return units
