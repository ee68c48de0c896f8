"""What a table is made from: how often each context occurs in some frames, and which symbols its changed units are.

Sums into the caller's counters on the current stream, so that several launches, and tensors, can share a table. Meant for samples: it
reads unit by unit.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from syncline.kernels.clock import Alphabet
from syncline.kernels.gpu.batch import FrameBatch
from syncline.kernels.gpu.clock import context
from syncline.kernels.gpu.coding import symbol_of
from syncline.wire.limits import FRAME_MAX_UNITS

_BLOCK = 1024
_SPAN = 1 << 15
"""Units of a frame that one program counts: a sample is few frames, and they are to fill a device."""
_COPIES = 16
"""Of the symbol counters: a few contexts hold nearly all changes, and additions to one place wait for each other."""


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """Sums over the frames counted so far."""

    units: Tensor
    """int64[256]: units of each context."""
    copies: Tensor
    """int32[copies, 256, 256]: changed units by context and symbol, to be summed over the first axis."""

    @classmethod
    def none(cls, device: torch.device) -> Self:
        return cls(
            torch.zeros(256, dtype=torch.int64, device=device),
            torch.zeros(_COPIES, 256, 256, dtype=torch.int32, device=device),
        )

    @property
    def symbols(self) -> Tensor:
        """int64[256, 256]: changed units by context and symbol."""
        return self.copies.sum(0, dtype=torch.int64)


def count(
    old: FrameBatch, new: FrameBatch, alphabet: Alphabet, counts: DeviceCounts, units: int = FRAME_MAX_UNITS
) -> None:
    """Add the frames of two batches, the same frames before and after, to `counts`; none has more than so many units."""
    if old.count != new.count:
        raise ValueError(f"{old.count} old frames, {new.count} new ones")
    if old.count:
        count_kernel[(old.count, -(-units // _SPAN))](
            old.anchor, new.anchor, old.bases, new.bases, new.units, new.lengths, new.strides, counts.units, counts.copies,
            BITS=alphabet.bits, SHIFT=alphabet.shift, MASK=alphabet.mask, ORDER=alphabet.order,
            SPAN=_SPAN, BLOCK=_BLOCK, COPIES=_COPIES, num_warps=4,
        )  # fmt: skip


@triton.jit
def count_kernel(
    old_ptr, new_ptr, old_base_ptr, new_base_ptr, units_ptr, length_ptr, stride_ptr, contexts_ptr, symbols_ptr,
    BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr, ORDER: tl.constexpr,
    SPAN: tl.constexpr, BLOCK: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """A span of a frame a program."""
    frame = tl.program_id(0)
    old_base = old_ptr + tl.load(old_base_ptr + frame)
    new_base = new_ptr + tl.load(new_base_ptr + frame)
    units = tl.load(units_ptr + frame)
    length = tl.load(length_ptr + frame)
    stride = tl.load(stride_ptr + frame)
    low = tl.program_id(1) * SPAN
    stop = tl.minimum(low + SPAN, units)
    symbols = symbols_ptr + ((frame + tl.program_id(1)) % COPIES) * 65536
    found = tl.zeros((256,), tl.int32)
    while low < stop:
        position = low + tl.arange(0, BLOCK)
        inside = position < stop
        place = position // length * stride + position % length
        old = tl.load(old_base + place, mask=inside, other=0)
        new = tl.load(new_base + place, mask=inside, other=0)
        if BITS == 32:
            old = old.to(tl.int64) & 0xFFFFFFFF
            new = new.to(tl.int64) & 0xFFFFFFFF
        else:
            old = old.to(tl.int32) & ((1 << BITS) - 1)
            new = new.to(tl.int32) & ((1 << BITS) - 1)
        where = context(old, SHIFT, MASK).to(tl.int32)
        found += tl.histogram(where, 256, mask=inside)
        symbol, _, _ = symbol_of(old, new, BITS, ORDER)
        tl.atomic_add(symbols + where * 256 + symbol.to(tl.int32), 1, mask=inside & (old != new))
        low += BLOCK
    tl.atomic_add(contexts_ptr + tl.arange(0, 256), found.to(tl.int64))
