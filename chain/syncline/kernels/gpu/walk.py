"""An encoder's way over a frame's pieces: widths summed, and pieces that hold a change put into a queue of their lane.

The queues are small enough to stay in the second-level cache: weights that stream by are marked as the first to leave it, queues as
the last. Only the queues are written here, each lane's own.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

import triton
import triton.language as tl

from syncline.kernels.gpu.batch import LANES_MAX
from syncline.kernels.gpu.coding import KEPT

LANES = tl.constexpr(LANES_MAX)
"""Of a warp, and so of a program."""
HELD = tl.constexpr(8)
"""Words of a queued piece: four before, four after."""
STREAMED = tl.constexpr("evict_first")


@triton.jit
def columns(x):
    """The columns of a [32, 4] block."""
    even, odd = tl.split(tl.reshape(x, (LANES, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def note(entries, on, tail, clock, room, QUEUE: tl.constexpr):
    """Queue the clock since the entry before, and how many units the piece has that `hold` adds; none where the clock is all.

    Places in the ring count up, LANES at a time, and are cut here.
    """
    entry = (clock.to(tl.int64) << 32) | room.to(tl.int64)
    tl.store(entries + (tail & (QUEUE * LANES - 1)), entry, mask=on, eviction_policy=KEPT)
    return tl.where(on, tail + LANES, tail)


@triton.jit
def held_places(held, place, QUEUE: tl.constexpr):
    """Where a queued piece's words before lie; those after follow."""
    return held + ((place & (QUEUE * LANES - 1)) * HELD)[:, None] + tl.arange(0, 4)[None, :]


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
def first_words(pointer, base, own, BITS: tl.constexpr, FLAT: tl.constexpr):
    """Where the four words of a frame's first piece lie; of each lane's first one where the frame is one row."""
    first = (base >> _piece_shift(BITS)) * 4
    if FLAT:
        first += own * 4
    return pointer.to(tl.pointer_type(tl.int32)) + first[:, None] + tl.arange(0, 4)[None, :]


@triton.jit
def _row_start(position, length, inverse, stride):
    """Offset of a frame-relative position, below 2^20, from the frame's base, in units."""
    # Exact in float32 there: with an inverse that is rounded right the quotient's error stays far below half of 1 / length.
    row = ((position.to(tl.float32) + 0.5) * inverse).to(tl.int32)
    return row.to(tl.int64) * (stride - length) + position


@triton.jit
def _exists(piece, pieces):
    """0 <= piece < pieces, in one comparison."""
    return piece.to(tl.uint32, bitcast=True) < pieces.to(tl.uint32, bitcast=True)


@triton.jit
def load_window(
    old_first, new_first, window, pieces, own, length, inverse, stride,
    BITS: tl.constexpr, L: tl.constexpr, FLAT: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """K whole pieces a lane before and after, from its piece window * K on; zeros beyond its pieces, at both ends."""
    words = ()
    for k in tl.static_range(K):
        piece = tl.zeros((LANES,), tl.int32) + (window * K + k)
        if FLAT:
            step = piece * (4 * L)
        else:
            start = _row_start((piece * L + own) << _piece_shift(BITS), length, inverse, stride)
            step = (start >> _piece_shift(BITS)) * 4
        there = _exists(piece, pieces)[:, None]
        words += (tl.load(old_first + step[:, None], mask=there, other=0, eviction_policy=STREAMED),)
        words += (tl.load(new_first + step[:, None], mask=there, other=0, eviction_policy=STREAMED),)
    return words


@triton.jit
def walk_window(
    words, window, pieces, since, tail, entries, held, widths_ptr,
    BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr, K: tl.constexpr, QUEUE: tl.constexpr,
):  # fmt: skip
    """The pieces of `load_window`, last to first."""
    # All look-ups come before the first store: the compiler moves none across it.
    ticks = ()
    for k in tl.static_range(K):
        total = tl.zeros((LANES,), tl.int32)
        for slot in tl.static_range(32 // BITS):
            at = (words[2 * k] >> (slot * BITS + SHIFT)) & MASK
            total += tl.sum(tl.load(widths_ptr + at, eviction_policy=KEPT), 1)
        ticks += (total,)
    for k in tl.static_range(K - 1, -1, -1):
        piece = tl.zeros((LANES,), tl.int32) + (window * K + k)
        differs = _differ(columns(words[2 * k]), columns(words[2 * k + 1]))
        place = held_places(held, tail, QUEUE)
        tl.store(place, words[2 * k], mask=differs[:, None], eviction_policy=KEPT)
        tl.store(place + 4, words[2 * k + 1], mask=differs[:, None], eviction_policy=KEPT)
        tail = note(entries, differs, tail, since, tl.full((LANES,), 128 // BITS, tl.int32), QUEUE)
        # A lane that has no such piece got equal words, and keeps its clock.
        since = tl.where(differs, 0, since + tl.where(_exists(piece, pieces), ticks[k], 0))
    return since, tail


@triton.jit
def walk_scattered(
    old_ptr, new_ptr, old_base, new_base, length, inverse, stride, piece, units, own, since, tail, entries, held, widths_ptr,
    BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr, L: tl.constexpr, QUEUE: tl.constexpr,
):  # fmt: skip
    """One piece a lane, whole or not, wherever its units lie; none for a negative piece."""
    PIECE: tl.constexpr = 128 // BITS
    position = (piece * L + own) * PIECE
    room = tl.where(position >= 0, tl.minimum(units - position, PIECE), 0)
    old = _gather_piece(old_ptr + old_base, position, room, length, inverse, stride, BITS)
    new = _gather_piece(new_ptr + new_base, position, room, length, inverse, stride, BITS)
    differs = _differ(old, new)
    place = held + (tail & (QUEUE * LANES - 1)) * HELD
    for word in tl.static_range(4):
        tl.store(place + word, old[word], mask=differs)
        tl.store(place + (4 + word), new[word], mask=differs)
    tail = note(entries, differs, tail, since, room, QUEUE)
    for word in tl.static_range(4):
        for slot in tl.static_range(32 // BITS):
            at = (old[word] >> (slot * BITS + SHIFT)) & MASK
            since += tl.load(widths_ptr + at, mask=word * (32 // BITS) + slot < room, other=0)
    return tl.where(differs, 0, since), tail


@triton.jit
def _gather_piece(first, position, room, length, inverse, stride, BITS: tl.constexpr):
    """The four words of a piece wherever its units lie, the first at frame-relative `position`; zeros from unit `room` on."""
    words = ()
    for word in tl.static_range(4):
        joined = tl.zeros((LANES,), tl.int32)
        for slot in tl.static_range(32 // BITS):
            at = word * (32 // BITS) + slot
            start = _row_start(position + at, length, inverse, stride)
            unit = tl.load(first + start, mask=at < room, other=0).to(tl.int32)
            if BITS < 32:
                unit &= (1 << BITS) - 1
            joined |= unit << (slot * BITS)
        words += (joined,)
    return words


@triton.jit
def _differ(old, new):
    """Whether any of four words differs from its twin. In 64 bits: the compiler takes four comparisons apart, at thrice the cost."""
    low = (old[0] ^ new[0]).to(tl.int64) | ((old[1] ^ new[1]).to(tl.int64) << 32)
    high = (old[2] ^ new[2]).to(tl.int64) | ((old[3] ^ new[3]).to(tl.int64) << 32)
    return (low | high) != 0


@triton.jit
def _unit(word, SLOT: tl.constexpr, BITS: tl.constexpr):
    """A unit's bits in a word, at its lower end."""
    if BITS == 32:
        return word
    else:
        return (word >> (SLOT * BITS)) & ((1 << BITS) - 1)


@triton.jit
def top_change(old, new, room, on, widths_ptr, BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr):
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
    # The exponent of a float holds the integer part of the logarithm.
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
            where = (old[word] >> (slot * BITS + SHIFT)) & MASK
            width = tl.load(widths_ptr + where, mask=on & (at < room), other=0, eviction_policy=KEPT)
            over += tl.where(at > top, width, 0)
            under += tl.where(at < top, width, 0)
    if BITS == 32:
        old_unit = old_word.to(tl.int64) & 0xFFFFFFFF
        new_unit = new_word.to(tl.int64) & 0xFFFFFFFF
    else:
        place = top % SLOTS * BITS
        old_unit = (old_word >> place) & ((1 << BITS) - 1)
        new_unit = (new_word >> place) & ((1 << BITS) - 1)
    return top, old_unit, new_unit, over, under, (marks & ((1 << top) - 1)) != 0
