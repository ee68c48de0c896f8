"""What memory takes for the sectors that a commit touches: those of 32 bytes at given places, read, written, or both, and nothing else.

The floor under `scatter` where no trick saves a sector. Contents are not kept: for weights that nobody looks at any more.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64
_SECTOR_WORDS = tl.constexpr(8)


def distinct(positions: Tensor, unit_bytes: int, size: int) -> int:
    """How many aligned runs of `size` bytes ascending places touch: `positions` is int32[frames, slots], of whole aligned frames."""
    count = positions.shape[0]
    for part in positions.split(1024):
        run = part // (size // unit_bytes)
        count += int((run[:, 1:] != run[:, :-1]).sum())
    return count


def touch(live: Tensor, positions: Tensor, frame_units: int, *, read: bool, write: bool) -> None:
    """Every place's sector, in order. `live` holds 16-bit units, frame after frame."""
    frames, slots = positions.shape
    share = triton.cdiv(slots, _BLOCK)
    sink = torch.zeros(1, dtype=torch.int32, device=live.device)
    _touch[(frames * share,)](
        live.view(torch.int32), positions, slots, share, frame_units // 2, sink,
        READ=read, WRITE=write, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit
def _touch(
    words, positions, slots, share, frame_words, sink, READ: tl.constexpr, WRITE: tl.constexpr, BLOCK: tl.constexpr
):
    frame = (tl.program_id(0) // share).to(tl.int64)
    slot = tl.program_id(0) % share * BLOCK + tl.arange(0, BLOCK)
    there = slot < slots
    position = tl.load(positions + frame * slots + slot, mask=there, other=0)
    sector = position // (2 * _SECTOR_WORDS) * _SECTOR_WORDS
    place = words + frame * frame_words + sector[:, None] + tl.arange(0, _SECTOR_WORDS)[None, :]
    held = position[:, None] + tl.zeros((BLOCK, _SECTOR_WORDS), tl.int32)
    if READ:
        held = tl.load(place, mask=there[:, None], other=0)
    if WRITE:
        tl.store(place, held, mask=there[:, None])
    else:
        # Looked at, or the compiler would drop the loads.
        tl.store(sink, 1, mask=tl.sum(tl.sum((held == 0x5EC7_0425).to(tl.int32), 1), 0) == BLOCK * _SECTOR_WORDS)
