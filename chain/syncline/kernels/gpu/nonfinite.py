"""Which frames in live memory hold NaN or Inf: a look at each unit, for all frames of a launch at once.

Says no more than that of a frame: as good as never is there one to be looked at again.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from syncline.kernels.gpu.batch import FrameBatch, Walk
from syncline.kernels.gpu.scatter import place_of

_SPAN = 1 << 17
"""Units of a frame that one program looks at."""
_BLOCK = 2048
_WORD_BYTES = 4


def holds_nonfinite(batch: FrameBatch, masks: Tensor, units: int) -> Tensor:
    """int32[frames]: 1 where a unit has all bits of the frame's mask (int64; of 0 nothing is told). No frame has more than so many units.
    Queued on the current stream."""
    found = torch.zeros(batch.count, dtype=torch.int32, device=batch.device)
    size = batch.anchor.element_size()
    if batch.count:
        whole = batch.walk != Walk.ANY and size < _WORD_BYTES
        _look[(batch.count, -(-units // _SPAN))](
            batch.anchor, batch.bases, batch.lengths, batch.strides, batch.units, masks, found,
            SHARE=_WORD_BYTES // size if whole else 1, FLAT=batch.walk == Walk.FLAT, BITS=8 * size, SPAN=_SPAN, BLOCK=_BLOCK,
            num_warps=4,
        )  # fmt: skip
    return found


@triton.jit
def _look(
    anchor, bases, lengths, strides, counts, masks, found,
    SHARE: tl.constexpr, FLAT: tl.constexpr, BITS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A span of a frame a program. With a SHARE rows are whole 16-byte pieces, and a word holds so many units; FLAT: the frame is one."""
    frame = tl.program_id(0)
    mask = tl.load(masks + frame)
    base = tl.load(bases + frame)
    length = tl.load(lengths + frame)
    stride = tl.load(strides + frame)
    units = tl.where(mask == 0, 0, tl.load(counts + frame))
    at = tl.program_id(1) * SPAN
    stop = tl.minimum(at + SPAN, units)
    some = tl.zeros((BLOCK,), tl.int32)
    step = tl.arange(0, BLOCK)
    if SHARE > 1:
        words = anchor.to(tl.pointer_type(tl.int32)) + tl.multiple_of(base // SHARE, 4)
        bits = mask.to(tl.int32)
        while at < stop:
            there = at + step * SHARE < stop
            place = at // SHARE + step
            if not FLAT:
                place = place_of(place, 0, length // SHARE, stride // SHARE)
            word = tl.load(words + place, mask=there, other=0)
            for part in tl.static_range(SHARE):
                some |= ((((word >> (BITS * part)) & bits) == bits) & there).to(tl.int32)
            at += BLOCK * SHARE
    else:
        bits = mask.to(anchor.dtype.element_ty)
        while at < stop:
            there = at + step < stop
            unit = tl.load(anchor + place_of(at + step, base, length, stride), mask=there, other=0)
            some |= (((unit & bits) == bits) & there).to(tl.int32)
            at += BLOCK
    tl.store(found + frame, 1, mask=tl.max(some, 0) > 0)
