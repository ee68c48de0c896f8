"""The commit: staged changes written into live weights, taken back, and read back.

Only places inside a frame are written or read, whatever the staged positions are. Writing twice is writing once; `undo` writes what was
there. The order of writes does not matter, since no frame names a position twice and frames do not overlap.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from syncline.kernels.gpu.batch import FrameBatch, Staged

_BLOCK = 1024
_SLOTS_A_PROGRAM = 4096
_SPLIT_MAX = 64
ABREAST = 1 << 20
"""Frames whose places are written or read at the same time; programs then go on to further frames."""


def scatter(batch: FrameBatch, staged: Staged, *, abreast: int = ABREAST) -> None:
    """Write the new units. Queued on the current stream; no scratch."""
    _run(_scatter, batch, staged, staged.new, abreast=abreast)


def undo(batch: FrameBatch, staged: Staged) -> None:
    """Write the old units."""
    _run(_scatter, batch, staged, staged.old)


def count_missing(batch: FrameBatch, staged: Staged) -> Tensor:
    """int64[1]: slots whose place does not hold the new unit, those outside their frame among them."""
    missing = torch.zeros(1, dtype=torch.int64, device=batch.anchor.device)
    _run(_missing, batch, staged, staged.new, missing)
    return missing


def split(slots: int, frames: int) -> int:
    """Programs that share a frame: about one for every 4096 slots."""
    return min(max(slots // (_SLOTS_A_PROGRAM * max(frames, 1)), 1), _SPLIT_MAX)


def _run(
    kernel: triton.JITFunction, batch: FrameBatch, staged: Staged, units: Tensor, *more: Tensor, abreast: int = ABREAST
) -> None:
    if batch.count == 0:
        return
    kernel[(min(batch.count, abreast), split(staged.positions.numel(), batch.count))](
        batch.anchor, batch.bases, batch.lengths, batch.strides, batch.units, batch.count,
        staged.firsts, staged.changed, staged.positions, units, *more, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit
def place_of(position, base, length, stride):
    """Place of a frame-relative position."""
    row = position // length
    return base + row.to(tl.int64) * stride + (position - row * length)


@triton.jit
def _scatter(anchor, bases, lengths, strides, counts, frames, firsts, changes, positions, values, BLOCK: tl.constexpr):
    frame = tl.program_id(0)
    while frame < frames:
        first, changed, units = tl.load(firsts + frame), tl.load(changes + frame), tl.load(counts + frame)
        base, length, stride = tl.load(bases + frame), tl.load(lengths + frame), tl.load(strides + frame)
        at = tl.program_id(1) * BLOCK
        while at < changed:
            slot = at + tl.arange(0, BLOCK)
            there = slot < changed
            position = tl.load(positions + first + slot, mask=there, other=0)
            value = tl.load(values + first + slot, mask=there, other=0)
            there = there & (position >= 0) & (position < units)
            tl.store(anchor + place_of(position, base, length, stride), value, mask=there)
            at += tl.num_programs(1) * BLOCK
        frame += tl.num_programs(0)


@triton.jit
def _missing(
    anchor, bases, lengths, strides, counts, frames, firsts, changes, positions, values, missing, BLOCK: tl.constexpr
):  # fmt: skip
    frame = tl.program_id(0)
    bad = tl.zeros((BLOCK,), tl.int32)
    while frame < frames:
        first, changed, units = tl.load(firsts + frame), tl.load(changes + frame), tl.load(counts + frame)
        base, length, stride = tl.load(bases + frame), tl.load(lengths + frame), tl.load(strides + frame)
        at = tl.program_id(1) * BLOCK
        while at < changed:
            slot = at + tl.arange(0, BLOCK)
            there = slot < changed
            position = tl.load(positions + first + slot, mask=there, other=0)
            value = tl.load(values + first + slot, mask=there, other=0)
            inside = there & (position >= 0) & (position < units)
            found = tl.load(anchor + place_of(position, base, length, stride), mask=inside, other=0)
            bad += (there & ((found != value) | (inside == 0))).to(tl.int32)
            at += tl.num_programs(1) * BLOCK
        frame += tl.num_programs(0)
    total = tl.sum(bad, 0)
    if total > 0:
        tl.atomic_add(missing, total.to(tl.int64))
