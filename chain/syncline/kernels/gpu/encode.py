"""Encoding on a GPU: one kernel reads the old and the new weights once, finds what changed, and codes it into lanes of words.

A warp holds 32 lanes: 32 / L frames. It walks their pieces backwards, because rANS is last in, first out. A unit costs a look-up and
an add; a piece that holds a change is only noted, with the clock since the piece noted before, in a small queue of its lane. When most
lanes have something queued, each of them codes one change: so no lane waits for another's changes, and the walk for none of them.
Nothing is written outside the queue, the lanes' words and the counts.
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
from syncline.kernels.gpu.batch import LANES_MAX, DeviceTable, FrameBatch, Walk
from syncline.kernels.gpu.coding import KEPT, put_change, put_misses
from syncline.kernels.gpu.walk import (
    HELD,
    LANES,
    columns,
    first_words,
    held_places,
    load_window,
    note,
    top_change,
    walk_scattered,
    walk_window,
)

WINDOW = 2
"""Pieces that a lane walks at once."""
AHEAD = 2
"""Windows that are loaded before they are walked."""
RUN = 2
"""Windows between two looks at the queues; even."""
QUEUE = 8
"""Pieces that a lane's queue holds; a power of two."""
READY = 20
"""Lanes with something queued from which on coding pays."""
PROGRAMS_A_PROCESSOR = 20
"""More would hide more of the memory's latency, but their queues and half-written words no longer stay in the cache."""

CODED, UNCODABLE, FULL = range(3)
"""How coding a frame ended: well; the table has no code for one of its changes (no width, or neither its symbol nor an escape); a
lane's words do not fit their region."""
_FULL = tl.constexpr(FULL)

CARRY = 1 << 30
"""A clock this long is queued by itself, so that sums stay below 2^31 however long nothing changes."""


@triton.jit(do_not_specialize=["frames", "capacity"])
def encode_kernel(
    old_ptr, new_ptr, old_base_ptr, new_base_ptr, units_ptr, length_ptr, stride_ptr, frames, widths_ptr, lists_ptr, codes_ptr,
    turn_ptr, entries_ptr, held_ptr, words_ptr, capacity, counts_ptr, changed_ptr, status_ptr,
    BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr, ORDER: tl.constexpr, Z: tl.constexpr,
    L: tl.constexpr, WHOLE: tl.constexpr, FLAT: tl.constexpr, K: tl.constexpr, RUN: tl.constexpr, AHEAD: tl.constexpr,
    QUEUE: tl.constexpr, READY: tl.constexpr, CARRY: tl.constexpr,
):  # fmt: skip
    """Programs take groups of 32 / L frames from `turn_ptr` until none is left.

    WHOLE: bases, rows and strides are whole pieces, and both tensors lie on 16 bytes; FLAT: every frame is one row, too.
    """
    PIECE: tl.constexpr = 128 // BITS
    FRAMES: tl.constexpr = LANES // L
    ROOM: tl.constexpr = (QUEUE - K * RUN - 2) * LANES
    lane = tl.arange(0, LANES)
    entries = entries_ptr + tl.program_id(0).to(tl.int64) * (QUEUE * LANES)
    held = held_ptr + tl.program_id(0).to(tl.int64) * (QUEUE * LANES * HELD)
    groups = (frames + FRAMES - 1) // FRAMES
    group = tl.atomic_add(turn_ptr, 1)
    while group < groups:
        frame = group * FRAMES + lane // L
        here = frame < frames
        old_base = tl.load(old_base_ptr + frame, mask=here, other=0)
        new_base = tl.load(new_base_ptr + frame, mask=here, other=0)
        length = tl.load(length_ptr + frame, mask=here, other=1)
        stride = tl.load(stride_ptr + frame, mask=here, other=0)
        units = tl.load(units_ptr + frame, mask=here, other=0)
        inverse = tl.div_rn(1.0, length.to(tl.float32))
        own = lane % L
        pieces = ((units + PIECE - 1) // PIECE + (L - 1 - own)) // L
        turn = tl.max(pieces, 0) - 1
        if WHOLE:
            turn = turn // K
            old_first = first_words(old_ptr, old_base, own, BITS, FLAT)
            new_first = first_words(new_ptr, new_base, own, BITS, FLAT)
            ahead = ()
            for early in tl.static_range(AHEAD):
                ahead += load_window(
                    old_first, new_first, turn - early, pieces, own, length, inverse, stride, BITS, L, FLAT, K
                )
        words = words_ptr + (frame.to(tl.int64) * L + own) * capacity
        x = tl.zeros((LANES,), tl.int64)
        at = tl.zeros((LANES,), tl.int32) + capacity
        fault = tl.zeros((LANES,), tl.int32)
        found = tl.zeros((LANES,), tl.int32)
        head = lane
        tail = lane
        since = tl.zeros((LANES,), tl.int32)
        left = tl.zeros((LANES,), tl.int32)
        clock = tl.zeros((LANES,), tl.int32)
        misses = tl.zeros((LANES,), tl.int32)
        pending = lane < 0
        if BITS == 32:
            pending_old = tl.zeros((LANES,), tl.int64)
        else:
            pending_old = tl.zeros((LANES,), tl.int32)
        pending_new = pending_old
        # Once no turn is left, a round more closes what is pending: the change that stands first in its lane.
        last = False
        while not last:
            last = turn < 0
            for _ in range(RUN // 2):
                for _ in tl.static_range(2):
                    if WHOLE:
                        since, tail = walk_window(
                            ahead[: 2 * K], turn, pieces, since, tail, entries, held, widths_ptr,
                            BITS, SHIFT, MASK, K, QUEUE,
                        )  # fmt: skip
                        # After the stores, where the compiler leaves it: earlier, its look-ups would wait for these loads.
                        ahead = ahead[2 * K :] + load_window(
                            old_first, new_first, turn - AHEAD, pieces, own, length, inverse, stride, BITS, L, FLAT, K
                        )
                    else:
                        since, tail = walk_scattered(
                            old_ptr, new_ptr, old_base, new_base, length, inverse, stride, turn, units, own,
                            since, tail, entries, held, widths_ptr, BITS, SHIFT, MASK, L, QUEUE,
                        )  # fmt: skip
                    turn -= 1
            # A long clock is queued by itself, marked by its sign. The last entry of all has no piece either.
            long = since >= CARRY
            tail = note(entries, long, tail, since | (-1 << 31), left * 0, QUEUE)
            since = tl.where(long, 0, since)
            tail = note(entries, (lane >= 0) & last, tail, since, left * 0, QUEUE)
            ready = tl.where(last, 1, READY)
            queued = head < tail
            go = (tl.sum(queued.to(tl.int32), 0) >= ready) | (tl.max(tail - head, 0) > ROOM)
            while go:
                entry = tl.load(entries + (head & (QUEUE * LANES - 1)), mask=queued, other=0, eviction_policy=KEPT)
                room = entry.to(tl.int32)
                passed = (entry >> 32).to(tl.int32)
                closes = queued & (passed >= 0)
                holds = room > 0
                place = held_places(held, head, QUEUE)
                old = columns(tl.load(place, mask=holds[:, None], other=0, eviction_policy=KEPT))
                new = columns(tl.load(place + 4, mask=holds[:, None], other=0, eviction_policy=KEPT))
                clock += tl.where(left == 0, passed & 0x7FFFFFFF, 0)
                top, old_unit, new_unit, over, under, more = top_change(
                    old, new, tl.where(left == 0, room, left), holds, widths_ptr, BITS, SHIFT, MASK
                )
                clock += over
                misses += clock >> (Z + 2)
                clock &= (4 << Z) - 1
                # A lane's last clock ends with the lane: one more miss where it has run at all.
                misses += (closes & (pending == 0) & (clock > 0)).to(tl.int32)
                x, at, misses, fault = put_change(
                    x, at, words, closes & pending, pending_old, pending_new, clock, misses, fault,
                    widths_ptr, lists_ptr, codes_ptr, BITS, SHIFT, MASK, ORDER, Z,
                )  # fmt: skip
                x, at = put_misses(x, at, words, tl.where(closes, misses, 0), Z)
                misses = tl.where(closes, 0, misses)
                clock = tl.where(closes, tl.where(more, 0, under), clock)
                left = tl.where(holds & more, top, 0)
                found += holds.to(tl.int32)
                pending_old = tl.where(holds, old_unit, pending_old)
                pending_new = tl.where(holds, new_unit, pending_new)
                pending = pending | holds
                head = tl.where(queued & (left == 0), head + LANES, head)
                queued = head < tail
                go = (tl.sum(queued.to(tl.int32), 0) >= ready) | (tl.max(tail - head, 0) > ROOM)
        for _ in tl.static_range(3):
            spill = x > 0
            at -= spill.to(tl.int32)
            tl.store(words + at, x.to(tl.int16), mask=spill & (at >= 0))
            x = x >> 16
        fault = tl.where((fault == 0) & (at < 0), _FULL, fault)
        tl.store(counts_ptr + frame * L + own, tl.where(fault == 0, capacity - at, 0), mask=here)
        first = group * FRAMES + tl.arange(0, FRAMES)
        changed = tl.sum(tl.reshape(found, (FRAMES, L)), 1)
        status = tl.max(tl.reshape(fault, (FRAMES, L)), 1)
        tl.store(changed_ptr + first, changed, mask=first < frames)
        tl.store(status_ptr + first, status, mask=first < frames)
        group = tl.atomic_add(turn_ptr, 1)


@dataclass(frozen=True, slots=True)
class EncodeScratch:
    """What a launch works in, whatever the size of the weights: 32 lanes' queues a program, and whose turn it is.

    For one launch after the other on a stream; launches on two streams need two.
    """

    entries: Tensor
    held: Tensor
    turn: Tensor

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """For as many programs as run at once on the device."""
        programs = 2
        if device.type == "cuda":
            programs = torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS_A_PROCESSOR
        return cls(
            torch.empty(programs * QUEUE * LANES_MAX, dtype=torch.int64, device=device),
            torch.empty(programs * QUEUE * LANES_MAX * 8, dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
        )

    @property
    def programs(self) -> int:
        return self.entries.numel() // (QUEUE * LANES_MAX)


@dataclass(frozen=True, slots=True)
class LaneWords:
    """Coded frames, each lane's words at the end of a region of `capacity` words; a decoder reads them in ascending order."""

    lanes: int
    capacity: int
    words: Tensor
    """int16, lanes of the first frame first."""
    counts: Tensor
    """int32: words of each lane; 0 for the lanes of a frame that was not coded."""
    changed: Tensor
    """int32: changes of each frame, also of those not coded."""
    status: Tensor
    """int32: CODED, UNCODABLE or FULL."""

    @classmethod
    def empty(cls, frames: int, lanes: int, capacity: int, device: torch.device) -> Self:
        def room(count: int, kind: torch.dtype) -> Tensor:
            return torch.empty(count, dtype=kind, device=device)

        return cls(
            lanes,
            capacity,
            room(frames * lanes * capacity, torch.int16),
            room(frames * lanes, torch.int32),
            room(frames, torch.int32),
            room(frames, torch.int32),
        )


def encode(
    old: FrameBatch, new: FrameBatch, alphabet: Alphabet, table: DeviceTable, out: LaneWords, scratch: EncodeScratch
) -> None:
    """Code what changes from `old` to `new`, the same frames in two places, on the current stream.

    The old ones may lie in pinned host memory (`host.reached_from`). All frames have as many lanes as `out` says. Those that the
    table cannot code, or whose lanes outgrow their regions, get a status; the caller codes them elsewhere.
    """
    if old.count != new.count or old.count != out.status.numel():
        raise ValueError(f"{old.count} old frames, {new.count} new ones, room for {out.status.numel()}")
    if old.count == 0:
        return
    walk = max(old.walk, new.walk)
    scratch.turn.zero_()
    encode_kernel[(min(scratch.programs, -(-old.count * out.lanes // LANES_MAX)),)](
        old.anchor, new.anchor, old.bases, new.bases, new.units, new.lengths, new.strides, new.count,
        table.widths, table.lists, table.codes, scratch.turn, scratch.entries, scratch.held,
        out.words, out.capacity, out.counts, out.changed, out.status,
        BITS=alphabet.bits, SHIFT=alphabet.shift, MASK=alphabet.mask, ORDER=alphabet.order, Z=table.zone_bits,
        L=out.lanes, WHOLE=walk != Walk.ANY, FLAT=walk == Walk.FLAT, K=WINDOW, RUN=RUN, AHEAD=AHEAD,
        QUEUE=QUEUE, READY=READY, CARRY=CARRY, num_warps=1,
    )  # fmt: skip
