"""Staged changes in the order of memory, so that the commit's writes to one row of memory come close together.

Part of staging: nothing live is read or written. A frame's slots change places within runs of 256 only; the decoder leaves them near
their places already, so that is enough.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

import triton
import triton.language as tl

from syncline.kernels.gpu.batch import Staged, programs_a_frame
from syncline.wire.limits import FRAME_MAX_UNITS

RUN = 256
"""Slots that are sorted together: eight a thread of one warp, with no exchange between warps."""
_BEHIND = tl.constexpr(FRAME_MAX_UNITS)
"""Behind every position of a frame."""


def arrange(staged: Staged) -> None:
    """Sort each run of a frame's slots by position, in place. Queued on the current stream; no scratch.

    For frames that were decoded without a fault: what a faulty one's slots hold afterwards means as little as before.
    """
    frames = staged.firsts.numel()
    if frames == 0:
        return
    share = programs_a_frame(staged.positions.numel(), frames, RUN)
    _arrange[(frames * share,)](
        staged.firsts, staged.changed, share, staged.positions, staged.old, staged.new, RUN=RUN, num_warps=1
    )


@triton.jit(do_not_specialize=["share"])
def _arrange(firsts, changes, share, positions, olds, news, RUN: tl.constexpr):
    frame = tl.program_id(0) // share
    first, changed = tl.load(firsts + frame), tl.load(changes + frame)
    at = (tl.program_id(0) - frame * share) * RUN
    while at < changed:
        within = tl.arange(0, RUN)
        there = at + within < changed
        slot = first + at + within
        # A position takes 20 bits, and where it came from the eight below: one 32-bit key carries both.
        key = tl.sort(tl.load(positions + slot, mask=there, other=_BEHIND) * RUN + within)
        origin = first + at + (key & (RUN - 1))
        old = tl.load(olds + origin, mask=there, other=0)
        new = tl.load(news + origin, mask=there, other=0)
        tl.debug_barrier()  # all are read before one is written
        tl.store(positions + slot, key // RUN, mask=there)
        tl.store(olds + slot, old, mask=there)
        tl.store(news + slot, new, mask=there)
        at += share * RUN
