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
from syncline.kernels.gpu.coding import put_change, put_misses

LANES = tl.constexpr(32)
"""Of a warp, and so of a program."""

WINDOW = 4
"""Pieces that a lane walks at once."""
STREAM = "evict_first"
KEEP = "evict_last"
DEPTH = 2
"""Windows that are loaded ahead."""
RUN = 2
"""Windows between two looks at the queues."""
QUEUE = 32
"""Pieces that a lane can have noted."""
READY = 22
"""Lanes with something queued from which on coding pays."""
PROGRAMS_A_PROCESSOR = 14

CODED, UNCODABLE, FULL = range(3)
"""How coding a frame ended: well; the table has no code for one of its changes (no width, or neither its symbol nor an escape); a
lane's words do not fit their region."""
_FULL = tl.constexpr(FULL)

_CARRY = tl.constexpr(1 << 30)
"""A clock this long is queued by itself, so that sums stay below 2^31 however long nothing changes."""


@triton.jit
def _note(queue, on, tail, clock, piece, QUEUE: tl.constexpr, KEEP: tl.constexpr):
    """Queue a piece, and the clock since the piece queued before it. Places in the ring count up and are cut here."""
    place = tail & (QUEUE * LANES - 1)
    tl.store(
        queue + place, (clock.to(tl.int64) << 32) | (piece.to(tl.int64) & 0xFFFFFFFF), mask=on, eviction_policy=KEEP
    )
    return tl.where(on, tail + LANES, tail)


@triton.jit
def _columns(x):
    """The columns of a [32, 4] block."""
    even, odd = tl.split(tl.reshape(x, (LANES, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _differ(old, new):
    """Whether any of four words differs from its twin. In 64 bits: the compiler takes four comparisons apart, at thrice the cost."""
    low = (old[0] ^ new[0]).to(tl.int64) | ((old[1] ^ new[1]).to(tl.int64) << 32)
    high = (old[2] ^ new[2]).to(tl.int64) | ((old[3] ^ new[3]).to(tl.int64) << 32)
    return (low | high) != 0


@triton.jit
def _exists(piece, pieces):
    """0 <= piece < pieces, in one comparison."""
    return piece.to(tl.uint32, bitcast=True) < pieces.to(tl.uint32, bitcast=True)


@triton.jit
def _piece_shift(BITS: tl.constexpr):
    """Binary logarithm of a piece's units."""
    if BITS == 8:
        return 4
    elif BITS == 16:
        return 3
    else:
        return 2


@triton.jit
def _first_words(pointer, base, own, BITS: tl.constexpr, FLAT: tl.constexpr):
    """Where the four words of a frame's first piece lie; of each lane's first one where the frame is one row."""
    first = (base >> _piece_shift(BITS)) * 4
    if FLAT:
        first += own * 4
    return pointer.to(tl.pointer_type(tl.int32)) + first[:, None] + tl.arange(0, 4)[None, :]


@triton.jit
def _load_piece(
    first,
    piece,
    active,
    own,
    length,
    inverse,
    stride,
    BITS: tl.constexpr,
    L: tl.constexpr,
    FLAT: tl.constexpr,
    STREAM: tl.constexpr,
):
    """The four words of each lane's piece; zeros where it is not `active`. One load: they lie on 16 bytes."""
    if FLAT:
        step = piece * (4 * L)
    else:
        start = _row_start((piece * L + own) << _piece_shift(BITS), length, inverse, stride)
        step = (start >> _piece_shift(BITS)) * 4
    return tl.load(first + step[:, None], mask=active[:, None], other=0, eviction_policy=STREAM)


@triton.jit
def _row_start(position, length, inverse, stride):
    """Offset of a frame-relative position below 2^21 from the frame's base, in units."""
    # Exact in float32 there: the quotient's error stays below half of 1 / length.
    row = ((position.to(tl.float32) + 0.5) * inverse).to(tl.int32)
    return row.to(tl.int64) * (stride - length) + position


@triton.jit
def _gather_piece(pointer, base, position, room, length, inverse, stride, BITS: tl.constexpr):
    """The four words of a piece wherever its units lie, the first at frame-relative `position`; zeros from unit `room` on."""
    words = ()
    for word in tl.static_range(4):
        joined = tl.zeros((LANES,), tl.int32)
        for slot in tl.static_range(32 // BITS):
            at = word * (32 // BITS) + slot
            start = _row_start(position + at, length, inverse, stride)
            unit = tl.load(pointer + base + start, mask=at < room, other=0).to(tl.int32)
            if BITS < 32:
                unit &= (1 << BITS) - 1
            joined |= unit << (slot * BITS)
        words += (joined,)
    return words


@triton.jit
def _load_window(
    old_first, new_first, window, pieces, own, length, inverse, stride,
    BITS: tl.constexpr, L: tl.constexpr, FLAT: tl.constexpr, K: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """K whole pieces a lane before and after, from its piece window * K on; zeros beyond its pieces, at both ends."""
    words = ()
    for k in tl.static_range(K):
        piece = tl.zeros((LANES,), tl.int32) + (window * K + k)
        active = _exists(piece, pieces)
        words += (_load_piece(old_first, piece, active, own, length, inverse, stride, BITS, L, FLAT, STREAM),)
        words += (_load_piece(new_first, piece, active, own, length, inverse, stride, BITS, L, FLAT, STREAM),)
    return words


@triton.jit
def _walk_window(
    words, window, pieces, since, tail, queue, widths_ptr,
    BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr, K: tl.constexpr, QUEUE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """The pieces of `_load_window`, last to first."""
    # All look-ups come before the first store: the compiler moves none across it.
    ticks = ()
    for k in tl.static_range(K):
        total = tl.zeros((LANES,), tl.int32)
        for slot in tl.static_range(32 // BITS):
            at = (words[2 * k] >> (slot * BITS + SHIFT)) & MASK
            total += tl.sum(tl.load(widths_ptr + at, eviction_policy=KEEP), 1)
        ticks += (total,)
    for k in tl.static_range(K - 1, -1, -1):
        piece = tl.zeros((LANES,), tl.int32) + (window * K + k)
        old = _columns(words[2 * k])
        new = _columns(words[2 * k + 1])
        differs = _differ(old, new)
        tail = _note(queue, differs, tail, since, piece, QUEUE, KEEP)
        # A lane that has no such piece got equal words, and keeps its clock.
        since = tl.where(differs, 0, since + tl.where(_exists(piece, pieces), ticks[k], 0))
    return since, tail


@triton.jit
def _walk_scattered(
    old_ptr, new_ptr, old_base, new_base, length, inverse, stride, piece, units, own, since, tail, queue, widths_ptr,
    BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr, L: tl.constexpr, QUEUE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """One piece a lane, whole or not, wherever its units lie; none for a negative piece."""
    PIECE: tl.constexpr = 128 // BITS
    position = (piece * L + own) * PIECE
    room = tl.where(position >= 0, units - position, 0)
    old = _gather_piece(old_ptr, old_base, position, room, length, inverse, stride, BITS)
    new = _gather_piece(new_ptr, new_base, position, room, length, inverse, stride, BITS)
    differs = _differ(old, new)
    tail = _note(queue, differs, tail, since, tl.zeros((LANES,), tl.int32) + piece, QUEUE, KEEP)
    for word in tl.static_range(4):
        for slot in tl.static_range(32 // BITS):
            at = (old[word] >> (slot * BITS + SHIFT)) & MASK
            since += tl.load(widths_ptr + at, mask=word * (32 // BITS) + slot < room, other=0)
    return tl.where(differs, 0, since), tail


@triton.jit
def _top_change(old, new, room, on, widths_ptr, BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr):
    """The last changed unit below `room` of each lane's piece, of four words before and after.

    Its place and bits, the widths from it up to `room`, those below it, and whether more has changed there.
    """
    SLOTS: tl.constexpr = 32 // BITS
    marks = tl.zeros((LANES,), tl.int32)
    for word in tl.static_range(4):
        differ = old[word] ^ new[word]
        for slot in tl.static_range(SLOTS):
            marks |= (_unit(differ, slot, BITS) != 0).to(tl.int32) << (word * SLOTS + slot)
    marks &= (1 << room) - 1
    top = (tl.maximum(marks, 1).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    over = tl.zeros((LANES,), tl.int32)
    under = tl.zeros((LANES,), tl.int32)
    old_word = old[0]
    new_word = new[0]
    for word in tl.static_range(4):
        if word > 0:
            old_word = tl.where(top >= word * SLOTS, old[word], old_word)
            new_word = tl.where(top >= word * SLOTS, new[word], new_word)
        for slot in tl.static_range(SLOTS):
            at = word * SLOTS + slot
            width = tl.load(widths_ptr + ((old[word] >> (slot * BITS + SHIFT)) & MASK), mask=on & (at < room), other=0)
            over += tl.where(at > top, width, 0)
            under += tl.where(at < top, width, 0)
    place = top % SLOTS * BITS
    if BITS == 32:
        old_unit = old_word.to(tl.int64) & 0xFFFFFFFF
        new_unit = new_word.to(tl.int64) & 0xFFFFFFFF
    else:
        old_unit = (old_word >> place) & ((1 << BITS) - 1)
        new_unit = (new_word >> place) & ((1 << BITS) - 1)
    return top, old_unit, new_unit, over, under, (marks & ((1 << top) - 1)) != 0


@triton.jit
def _unit(word, SLOT: tl.constexpr, BITS: tl.constexpr):
    """A unit's bits in a word, at its lower end."""
    if BITS == 32:
        return word
    else:
        return (word >> (SLOT * BITS)) & ((1 << BITS) - 1)


@triton.jit(do_not_specialize=["frames", "capacity"])
def encode_kernel(
    old_ptr, new_ptr, old_base_ptr, new_base_ptr, units_ptr, length_ptr, stride_ptr, frames, widths_ptr, lists_ptr, codes_ptr,
    turn_ptr, queue_ptr, words_ptr, capacity, counts_ptr, changed_ptr, status_ptr,
    BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr, ORDER: tl.constexpr, Z: tl.constexpr,
    L: tl.constexpr, WHOLE: tl.constexpr, FLAT: tl.constexpr, K: tl.constexpr, RUN: tl.constexpr,
    QUEUE: tl.constexpr, READY: tl.constexpr, DEPTH: tl.constexpr, STREAM: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Programs take groups of 32 / L frames from `turn_ptr` until none is left.

    WHOLE: bases, rows and strides are whole pieces, and both tensors lie on 16 bytes; FLAT: every frame is one row, too. K pieces a
    lane are walked at once; coding waits for READY lanes with something queued, or for one whose queue of QUEUE could overflow.
    """
    PIECE: tl.constexpr = 128 // BITS
    FRAMES: tl.constexpr = LANES // L
    lane = tl.arange(0, LANES)
    queue = queue_ptr + tl.program_id(0).to(tl.int64) * (QUEUE * LANES) + lane
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
        inverse = 1.0 / length.to(tl.float32)
        own = lane % L
        pieces = ((units + PIECE - 1) // PIECE + (L - 1 - own)) // L
        turn = tl.max(pieces, 0) - 1
        if WHOLE:
            turn = turn // K
            old_first = _first_words(old_ptr, old_base, own, BITS, FLAT)
            new_first = _first_words(new_ptr, new_base, own, BITS, FLAT)
            # Loaded DEPTH windows ahead: what memory takes passes while others are walked.
            ahead = ()
            for depth in tl.static_range(DEPTH):
                ahead += _load_window(
                    old_first, new_first, turn - depth, pieces, own, length, inverse, stride, BITS, L, FLAT, K, STREAM
                )
        words = words_ptr + (frame.to(tl.int64) * L + own) * capacity
        x = tl.zeros((LANES,), tl.int64)
        at = tl.zeros((LANES,), tl.int32) + capacity
        fault = tl.zeros((LANES,), tl.int32)
        found = tl.zeros((LANES,), tl.int32)
        head = tl.zeros((LANES,), tl.int32)
        tail = tl.zeros((LANES,), tl.int32)
        since = tl.zeros((LANES,), tl.int32)
        room = tl.zeros((LANES,), tl.int32)
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
                        if DEPTH == 0:
                            words_here = _load_window(
                                old_first,
                                new_first,
                                turn,
                                pieces,
                                own,
                                length,
                                inverse,
                                stride,
                                BITS,
                                L,
                                FLAT,
                                K,
                                STREAM,
                            )
                        else:
                            words_here = ahead[: 2 * K]
                        since, tail = _walk_window(
                            words_here, turn, pieces, since, tail, queue, widths_ptr, BITS, SHIFT, MASK, K, QUEUE, KEEP
                        )
                        if DEPTH > 0:
                            ahead = ahead[2 * K :] + _load_window(
                                old_first,
                                new_first,
                                turn - DEPTH,
                                pieces,
                                own,
                                length,
                                inverse,
                                stride,
                                BITS,
                                L,
                                FLAT,
                                K,
                                STREAM,
                            )
                    else:
                        since, tail = _walk_scattered(
                            old_ptr, new_ptr, old_base, new_base, length, inverse, stride, turn, units, own,
                            since, tail, queue, widths_ptr, BITS, SHIFT, MASK, L, QUEUE, KEEP,
                        )  # fmt: skip
                    turn -= 1
            # A long clock is queued by itself, marked by its sign; the last entry of all has a piece that is none.
            long = since >= _CARRY
            tail = _note(queue, long, tail, since | (-1 << 31), head, QUEUE, KEEP)
            since = tl.where(long, 0, since)
            tail = _note(queue, (lane >= 0) & last, tail, since, tl.full((LANES,), -1, tl.int32), QUEUE, KEEP)
            ready = tl.where(last, 1, READY)
            ROOM: tl.constexpr = (QUEUE - K * RUN - 2) * LANES
            queued = head < tail
            go = (tl.sum(queued.to(tl.int32), 0) >= ready) | (tl.max(tail - head, 0) > ROOM)
            while go:
                entry = tl.load(queue + (head & (QUEUE * LANES - 1)), mask=queued, other=0, eviction_policy=KEEP)
                piece = entry.to(tl.int32)
                passed = (entry >> 32).to(tl.int32)
                closes = queued & (passed >= 0)
                holds = closes & (piece >= 0)
                clock += tl.where(queued & (room == 0), passed & 0x7FFFFFFF, 0)
                if WHOLE:
                    old = _columns(
                        _load_piece(old_first, piece, holds, own, length, inverse, stride, BITS, L, FLAT, STREAM)
                    )
                    new = _columns(
                        _load_piece(new_first, piece, holds, own, length, inverse, stride, BITS, L, FLAT, STREAM)
                    )
                    room = tl.where(room == 0, PIECE, room)
                else:
                    position = (piece * L + own) * PIECE
                    inside = tl.where(holds, units - position, 0)
                    old = _gather_piece(old_ptr, old_base, position, inside, length, inverse, stride, BITS)
                    new = _gather_piece(new_ptr, new_base, position, inside, length, inverse, stride, BITS)
                    room = tl.where(room == 0, tl.minimum(inside, PIECE), room)
                top, old_unit, new_unit, over, under, more = _top_change(
                    old, new, room, holds, widths_ptr, BITS, SHIFT, MASK
                )
                clock += over
                misses += clock >> (Z + 2)
                clock &= (4 << Z) - 1
                # A lane's last clock ends with the lane: one more miss where it has run at all.
                misses += (closes & (pending == 0) & (clock > 0)).to(tl.int32)
                x, at, misses, fault = put_change(
                    x, at, words, closes & pending, pending_old, pending_new, clock, misses, fault,
                    widths_ptr, lists_ptr, codes_ptr, BITS, SHIFT, MASK, ORDER, Z, KEEP,
                )  # fmt: skip
                x, at = put_misses(x, at, words, tl.where(closes, misses, 0), Z, KEEP)
                misses = tl.where(closes, 0, misses)
                clock = tl.where(closes, tl.where(more, 0, under), clock)
                room = tl.where(holds & more, top, 0)
                found += holds.to(tl.int32)
                pending_old = tl.where(holds, old_unit, pending_old)
                pending_new = tl.where(holds, new_unit, pending_new)
                pending = pending | holds
                head = tl.where(queued & (room == 0), head + LANES, head)
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
    """What a launch works in, whatever the size of the weights: 32 lanes' queues a program, and whose turn it is."""

    queues: Tensor
    turn: Tensor

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """For as many programs as run at once on the device."""
        programs = 2
        if device.type == "cuda":
            programs = torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS_A_PROCESSOR
        return cls(
            torch.empty(programs * QUEUE * LANES_MAX, dtype=torch.int64, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
        )

    @property
    def programs(self) -> int:
        return self.queues.numel() // (QUEUE * LANES_MAX)


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

    All frames have as many lanes as `out` says. Frames that the table cannot code, or whose lanes outgrow their regions, get a
    status; the caller codes them elsewhere.
    """
    if old.count != new.count or old.count != out.status.numel():
        raise ValueError(f"{old.count} old frames, {new.count} new ones, room for {out.status.numel()}")
    walk = max(old.walk, new.walk)
    scratch.turn.zero_()
    encode_kernel[(min(scratch.programs, -(-old.count * out.lanes // LANES_MAX)),)](
        old.anchor, new.anchor, old.bases, new.bases, old.units, old.lengths, old.strides, old.count,
        table.widths, table.lists, table.codes, scratch.turn, scratch.queues,
        out.words, out.capacity, out.counts, out.changed, out.status,
        BITS=alphabet.bits, SHIFT=alphabet.shift, MASK=alphabet.mask, ORDER=alphabet.order, Z=table.zone_bits,
        L=out.lanes, WHOLE=walk != Walk.ANY, FLAT=walk == Walk.FLAT, K=WINDOW, RUN=RUN,
        QUEUE=QUEUE, READY=READY, DEPTH=DEPTH, STREAM=STREAM, KEEP=KEEP, num_warps=1,
    )  # fmt: skip
