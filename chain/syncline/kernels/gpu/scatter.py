"""The commit: staged changes written into live weights, taken back, and read back.

Only places inside a frame are written or read, whatever the staged positions are. Writing twice is writing once; `undo` writes what was
there. The order of writes does not matter, since no frame names a position twice and frames do not overlap; but memory is written
fastest where the writes under way lie close together.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from syncline.kernels.gpu.batch import FrameBatch, Staged, programs_a_frame

_BLOCK = 1024
_WARPS = 16
"""One program a multiprocessor, of 512 threads with two slots each: what is under way spans 27 MB of weights where 1 % changes. Memory
waits for the threads with a quarter of that, and opens its rows more often with twice as much."""
_READ_BLOCK = 512
_READ_WARPS = 8


def scatter(batch: FrameBatch, staged: Staged) -> None:
    """Write the new units. Queued on the current stream; four bytes of scratch."""
    _write(batch, staged, staged.new)


def undo(batch: FrameBatch, staged: Staged) -> None:
    """Write the old units."""
    _write(batch, staged, staged.old)


def count_missing(batch: FrameBatch, staged: Staged) -> Tensor:
    """int64[1]: slots whose place does not hold the new unit, those outside their frame among them."""
    return missing(batch, staged, staged.new).sum(dtype=torch.int64).view(1)


def missing(batch: FrameBatch, staged: Staged, units: Tensor) -> Tensor:
    """int32[frames]: slots of each frame whose place does not hold its unit of `units` (new or old), those outside the frame among them."""
    found = torch.zeros(batch.count, dtype=torch.int32, device=batch.device)
    if batch.count:
        share = programs_a_frame(staged.positions.numel(), batch.count, _READ_BLOCK)
        _missing[(batch.count * share,)](
            batch.anchor, batch.bases, batch.lengths, batch.strides, batch.units, share,
            staged.firsts, staged.changed, staged.positions, units, found,
            BLOCK=_READ_BLOCK, num_warps=_READ_WARPS,
        )  # fmt: skip
    return found


def _write(batch: FrameBatch, staged: Staged, units: Tensor) -> None:
    # No number of a launch is compiled in: a commit of another size than those before it must not wait for a compiler.
    if batch.count == 0:
        return
    share = programs_a_frame(staged.positions.numel(), batch.count, _BLOCK)
    blocks = batch.count * share
    device = batch.device
    _scatter[(min(blocks, _multiprocessors(device)),)](
        batch.anchor, batch.bases, batch.lengths, batch.strides, batch.units, share, blocks,
        torch.zeros(1, dtype=torch.int32, device=device),
        staged.firsts, staged.changed, staged.positions, units, BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@triton.jit
def place_of(position, base, length, stride):
    """Place of a frame-relative position."""
    row = position // length
    return base + row.to(tl.int64) * stride + (position - row * length)


@triton.jit
def _placed(slot, anchor, base, length, stride, units, first, changed, positions, values):
    """Where a slot's unit goes, the unit, and whether it is one of the frame."""
    there = slot < changed
    position = tl.load(positions + first + slot, mask=there, other=0)
    value = tl.load(values + first + slot, mask=there, other=0)
    return anchor + place_of(position, base, length, stride), value, there & (position >= 0) & (position < units)


@triton.jit(do_not_specialize=["share", "blocks"])
def _scatter(
    anchor, bases, lengths, strides, counts, share, blocks, tickets,
    firsts, changes, positions, values, BLOCK: tl.constexpr,
):  # fmt: skip
    # Blocks are handed out in the order of memory: programs that each went through a part of their own would drift apart.
    block = tl.atomic_add(tickets, 1, sem="relaxed")
    while block < blocks:
        frame = block // share
        first, changed, units = tl.load(firsts + frame), tl.load(changes + frame), tl.load(counts + frame)
        base, length, stride = tl.load(bases + frame), tl.load(lengths + frame), tl.load(strides + frame)
        at = (block - frame * share) * BLOCK
        slot = at + tl.arange(0, BLOCK)
        place, value, there = _placed(slot, anchor, base, length, stride, units, first, changed, positions, values)
        block = tl.atomic_add(tickets, 1, sem="relaxed")  # while the loads are under way
        tl.store(place, value, mask=there)
        at += share * BLOCK
        while at < changed:
            slot = at + tl.arange(0, BLOCK)
            place, value, there = _placed(slot, anchor, base, length, stride, units, first, changed, positions, values)
            tl.store(place, value, mask=there)
            at += share * BLOCK


@triton.jit(do_not_specialize=["share"])
def _missing(
    anchor, bases, lengths, strides, counts, share,
    firsts, changes, positions, values, missing, BLOCK: tl.constexpr,
):  # fmt: skip
    frame = tl.program_id(0) // share
    first, changed, units = tl.load(firsts + frame), tl.load(changes + frame), tl.load(counts + frame)
    base, length, stride = tl.load(bases + frame), tl.load(lengths + frame), tl.load(strides + frame)
    bad = tl.zeros((BLOCK,), tl.int32)
    at = (tl.program_id(0) - frame * share) * BLOCK
    while at < changed:
        slot = at + tl.arange(0, BLOCK)
        place, value, inside = _placed(slot, anchor, base, length, stride, units, first, changed, positions, values)
        found = tl.load(place, mask=inside, other=0)
        bad += ((slot < changed) & ((found != value) | (inside == 0))).to(tl.int32)
        at += share * BLOCK
    total = tl.sum(bad, 0)
    if total > 0:
        tl.atomic_add(missing + frame, total)
