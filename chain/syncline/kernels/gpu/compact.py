"""From lanes' words to payloads: lengths as varints, then the words of all lanes, frame after frame in one buffer.

Runs on the current stream without waiting for it. Nothing is written beyond the buffer: the caller compares the last offset with its
size once it reads the offsets.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from syncline.kernels.gpu.encode import LaneWords

_BLOCK = 512


def payload_offsets(coded: LaneWords) -> Tensor:
    """int64[frames + 1]: where each frame's payload begins, and where the last one ends. A frame that was not coded has none, nor has one
    that did not change: what is to be stored lies back to back."""
    counts = coded.counts.view(-1, coded.lanes).to(torch.int64)
    named = counts[:, :-1]
    lengths = named.shape[1] + sum((named >= 1 << 7 * more).sum(1) for more in range(1, 4))
    sizes = torch.where((coded.status == 0) & (coded.changed > 0), lengths + 2 * counts.sum(1), 0)
    return torch.nn.functional.pad(torch.cumsum(sizes, 0), (1, 0))


def compact(coded: LaneWords, offsets: Tensor, into: Tensor) -> None:
    """Write the payloads to a uint8 buffer, at the offsets of `payload_offsets`; frames that do not fit, or have none, are left out."""
    if coded.status.numel():
        compact_kernel[(coded.status.numel(),)](
            coded.words, coded.capacity, coded.counts, coded.status, offsets, into, into.numel(),
            L=coded.lanes, BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip


@triton.jit(do_not_specialize=["capacity", "size"])
def compact_kernel(
    words_ptr, capacity, counts_ptr, status_ptr, offsets_ptr, into_ptr, size, L: tl.constexpr, BLOCK: tl.constexpr
):
    """A frame a program."""
    frame = tl.program_id(0).to(tl.int64)
    start = tl.load(offsets_ptr + frame)
    end = tl.load(offsets_ptr + frame + 1)
    if (tl.load(status_ptr + frame) == 0) & (start < end) & (end <= size):
        lane = tl.arange(0, L)
        counts = tl.load(counts_ptr + frame * L + lane)
        named = lane < L - 1
        length = (
            1 + (counts >= 1 << 7).to(tl.int32) + (counts >= 1 << 14).to(tl.int32) + (counts >= 1 << 21).to(tl.int32)
        )
        length = tl.where(named, length, 0)
        place = into_ptr + start + (tl.cumsum(length, 0) - length)
        for at in tl.static_range(4):
            more = tl.where(at + 1 < length, 0x80, 0)
            tl.store(place + at, (((counts >> (7 * at)) & 0x7F) | more).to(tl.uint8), mask=at < length)
        place = into_ptr + start + tl.sum(length, 0)
        step = tl.arange(0, BLOCK)
        for own in range(L):
            count = tl.load(counts_ptr + frame * L + own)
            source = words_ptr + (frame * L + own + 1) * capacity - count
            low = count * 0
            while low < count:
                inside = low + step < count
                word = tl.load(source + low + step, mask=inside, other=0)
                byte = place + 2 * (low + step)
                tl.store(byte, (word & 0xFF).to(tl.uint8), mask=inside)
                tl.store(byte + 1, ((word >> 8) & 0xFF).to(tl.uint8), mask=inside)
                low += BLOCK
            place += 2 * count.to(tl.int64)
