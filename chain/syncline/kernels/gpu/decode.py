"""Decoding `context` frames against live weights into the staged form: positions, old bits and new bits. Nothing live is written.

A lane of a frame is a thread. 32 lanes walk their pieces side by side and keep the sums of the widths of a window of them. Only where a
lane's clock passes its target within the window is the unit looked for, and then all lanes with an event there handle one each. The
window moves on as soon as no lane has an event in its oldest part, so a lane with many waits little for one with few.
Whatever the words are, nothing outside the frame, the lane's words, the table and the frame's own slots is read or written, and every
lane ends: a change uses up a unit, and a unit is passed after at most two misses.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from syncline.kernels import clock as host
from syncline.kernels.gpu.batch import LANES_MAX, CodedFrames, FrameBatch, Staged
from syncline.kernels.gpu.clock import (
    ESCAPE,
    LAST_STEP,
    NIBBLES,
    PLAIN,
    RANGED,
    context,
    flipped,
    popcount,
    share,
    stepped,
    target,
)
from syncline.kernels.gpu.pieces import THREADS, located, piece, piece_width, reached

COUNT = tl.constexpr(host.COUNT)
WORDS = tl.constexpr(host.WORDS)
NO_MOVE = tl.constexpr(host.NO_MOVE)
RANGE = tl.constexpr(host.RANGE)
TAIL = tl.constexpr(host.TAIL)
_WINDOW = 16
"""Pieces of a lane whose sums stand in registers. A longer window lets lanes drift further apart, and costs warps a multiprocessor."""
_FRESH = 4
"""Pieces by which the window moves on."""
_LAUNCH = {"num_warps": 1, "maxnreg": 64}
"""With 64 registers 32 warps fit a multiprocessor, which is as many programs as it takes."""
_NEVER = tl.constexpr(1 << 30)
_FULL = tl.constexpr(1 << 32)
"""A state below takes another word."""


def decode(batch: FrameBatch, coded: CodedFrames, staged: Staged) -> Tensor:
    """Fill `staged` and return how each frame ended: int32, DONE or a fault of `kernels.clock`. Queued on the current stream.

    Slots of a frame with a fault hold nothing of meaning. Scratch: the four bytes a frame that are returned.
    """
    alphabet, table = coded.alphabet, coded.table
    frames_a_program = LANES_MAX // coded.lanes
    status = torch.empty(batch.count, dtype=torch.int32, device=batch.device)
    if batch.count == 0:
        return status
    _decode[(triton.cdiv(batch.count, frames_a_program),)](
        batch.anchor, batch.bases, batch.lengths, batch.strides, batch.units, batch.count,
        table.widths, table.sums, table.lists, table.coarse, table.entries,
        coded.payload, coded.starts, coded.words,
        staged.firsts, staged.changed, staged.positions, staged.old, staged.new, status,
        LANES=coded.lanes, WALK=int(batch.walk), WINDOW=_WINDOW, FRESH=_FRESH,
        Z=table.zone_bits, VALUE_BITS=host.VALUE_BITS,
        BITS=alphabet.bits, SHIFT=alphabet.shift, MASK=alphabet.mask, ORDER=alphabet.order, **_LAUNCH,
    )  # fmt: skip
    return status


@triton.jit
def _refilled(state, payload, start, at, end):
    """Take one word where the state is short and a word is left."""
    short = (state < _FULL) & (at < end)
    place = payload + start + 2 * at
    low = tl.load(place, mask=short, other=0).to(tl.int64)
    high = tl.load(place + 1, mask=short, other=0).to(tl.int64)
    return tl.where(short, (state << 16) | (high << 8) | low, state), at + short.to(tl.int32)


@triton.jit
def _last_slot(entry):
    return ((entry >> 20) & 0xFFF) + ((entry >> 8) & 0xFFF)


@triton.jit
def _looked_up(lists, coarse, entries, index, slot, hit):
    """Start, frequency and symbol of the entry that holds a slot, in the value list of context `index`."""
    placed = tl.load(lists + index, mask=hit, other=0)
    at = (placed >> 8) + tl.load(coarse + (placed & 255) * 256 + (slot >> 4), mask=hit, other=0).to(tl.int32)
    entry = tl.load(entries + at, mask=hit, other=0xFFF00)
    while tl.max((slot > _last_slot(entry)).to(tl.int32), 0) > 0:
        further = slot > _last_slot(entry)
        at += further.to(tl.int32)
        entry = tl.where(further, tl.load(entries + at, mask=further, other=0), entry)
    return (entry >> 20) & 0xFFF, ((entry >> 8) & 0xFFF) + 1, entry & 255


@triton.jit
def _moved(unit, symbol, raw, BITS: tl.constexpr, ORDER: tl.constexpr):
    """A unit after its symbol (no escape), and whether the step left the range of its order."""
    if BITS == 8:
        if ORDER == NIBBLES:
            code = flipped(unit, BITS, ORDER)
            code = ((code + symbol) & 15) | ((code & 0xF0) + (symbol & 0xF0)) & 0xF0
        else:
            code = (flipped(unit, BITS, ORDER) + symbol) & 255
        return flipped(code, BITS, ORDER), symbol < 0
    else:
        # A 32-bit unit needs a wider type for the range check.
        wide = unit.to(tl.int64) & 0xFFFFFFFF if BITS == 32 else unit
        ranged = symbol >= RANGED
        least = 1 << tl.where(ranged, tl.minimum(symbol - 14, 15), 0)
        step = tl.where(ranged, least + (raw >> 1) + 1, (symbol + 1) >> 1)
        back = tl.where(ranged, raw & 1, (symbol - 1) & 1)
        code = flipped(wide, BITS, ORDER)
        TOP: tl.constexpr = 1 << (BITS - 1)
        if ORDER != PLAIN:
            code = (code ^ TOP) - TOP
        code = code + tl.where(back > 0, -step, step)
        if ORDER == PLAIN:
            out = (code < 0) | (code >= 2 * TOP)
        else:
            out = (code < -TOP) | (code >= TOP)
        return flipped(code & (2 * TOP - 1), BITS, ORDER).to(tl.int32), out | (symbol > LAST_STEP)


@triton.jit
def _valued(
    state, at, payload, start, end, unit, index, hit, lists, coarse, entries,
    VALUE_BITS: tl.constexpr, BITS: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    """Read what the units of lanes with a `hit` become: state, words read, new bits, and a fault or 0."""
    slot = (state & ((1 << VALUE_BITS) - 1)).to(tl.int32)
    first_slot, frequency, symbol = _looked_up(lists, coarse, entries, index, slot, hit)
    state = tl.where(hit, stepped(state, frequency, first_slot, VALUE_BITS), state)
    state, at = _refilled(state, payload, start, at, end)
    escape = hit & (symbol == ESCAPE)
    more = escape
    if BITS > 8:
        more = hit & ((symbol == ESCAPE) | (symbol >= RANGED))
    raw = tl.zeros((THREADS,), tl.int32)
    if tl.max(more.to(tl.int32), 0) > 0:
        taken = tl.full((THREADS,), BITS if BITS < 16 else 16, tl.int32)
        if BITS > 8:
            taken = tl.where(escape, taken, tl.minimum(tl.maximum(symbol - 13, 0), 16))
        raw = (state & ((1 << taken) - 1).to(tl.int64)).to(tl.int32)
        state = tl.where(more, state >> taken.to(tl.int64), state)
        state, at = _refilled(state, payload, start, at, end)
        if BITS == 32:
            raw = tl.where(escape, raw | ((state & 0xFFFF) << 16).to(tl.int32), raw)
            state = tl.where(escape, state >> 16, state)
            state, at = _refilled(state, payload, start, at, end)
    new, out = _moved(unit, symbol, raw, BITS, ORDER)
    new = tl.where(escape, raw, new)
    fault = tl.where(escape, tl.where(new == unit, NO_MOVE, 0), tl.where(out, RANGE, 0))
    return state, at, new, tl.where(hit, fault, 0)


@triton.jit
def _ranked(moved, LANES: tl.constexpr):
    """Of each lane, how many lanes of its frame before it moved, and how many of its frame in all."""
    thread = tl.arange(0, THREADS).to(tl.uint32)
    ours = tl.sum(moved.to(tl.uint32) << thread, 0) + tl.zeros((THREADS,), tl.uint32)
    if LANES < THREADS:
        ours = (ours >> (thread // LANES * LANES)) & ((1 << LANES) - 1)
    before = (tl.full((THREADS,), 1, tl.uint32) << (thread % LANES)) - 1
    return popcount(ours & before), popcount(ours)


@triton.jit(do_not_specialize=["frames"])
def _decode(
    anchor, bases, lengths, strides, unit_counts, frames,
    widths, width_sums, lists, coarse, entries,
    payload, starts, word_counts,
    firsts, changes, positions, olds, news, statuses,
    LANES: tl.constexpr, WALK: tl.constexpr, WINDOW: tl.constexpr, FRESH: tl.constexpr,
    Z: tl.constexpr, VALUE_BITS: tl.constexpr,
    BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    PIECE: tl.constexpr = 128 // BITS
    ONE: tl.constexpr = 1 << Z
    HORIZON: tl.constexpr = 4 << Z
    SLOTS: tl.constexpr = (16 << Z) - 1
    lane = tl.arange(0, THREADS) % LANES
    frame = tl.program_id(0) * (THREADS // LANES) + tl.arange(0, THREADS) // LANES
    there = frame < frames
    units = tl.load(unit_counts + frame, mask=there, other=0)
    base = tl.load(bases + frame, mask=there, other=0)
    length = tl.load(lengths + frame, mask=there, other=PIECE)
    stride = tl.load(strides + frame, mask=there, other=0)
    slot0 = tl.load(firsts + frame, mask=there, other=0)
    changed = tl.load(changes + frame, mask=there, other=0)
    number = frame.to(tl.int64) * LANES + lane
    start = tl.load(starts + number, mask=there, other=0)
    end = tl.load(word_counts + number, mask=there, other=0)
    pieces = (units + PIECE - 1) // PIECE
    table = (widths, width_sums)

    at = tl.zeros((THREADS,), tl.int32)
    state = tl.zeros((THREADS,), tl.int64)
    while tl.max(((state < _FULL) & (at < end)).to(tl.int32), 0) > 0:
        state, at = _refilled(state, payload, start, at, end)
    goal = target((state & SLOTS).to(tl.int32), Z)
    clock = tl.zeros((THREADS,), tl.int32)  # at the window's begin; below 0 where a change stands behind it
    found = tl.zeros((THREADS,), tl.int32)
    fault = tl.zeros((THREADS,), tl.int32)

    sums = ()  # widths of the window's pieces, up to and with each; pieces before the lane's first have none
    for _ in tl.static_range(WINDOW):
        sums = sums + (tl.zeros((THREADS,), tl.int32),)  # noqa: RUF005 Triton knows no star
    fresh = 0
    stop = tl.cdiv(tl.max(pieces, 0), LANES)
    while fresh < stop:
        moved_on = ()
        for k in tl.static_range(FRESH, WINDOW):
            moved_on = moved_on + (sums[k] - sums[FRESH - 1],)  # noqa: RUF005
        total = moved_on[WINDOW - FRESH - 1]
        for k in tl.static_range(FRESH):
            index = (fresh + k) * LANES + lane
            valid = index < pieces
            words = piece(anchor, base, length, stride, units, index, valid, WALK, BITS)
            width = piece_width(table, words, units - index * PIECE, WALK, BITS, SHIFT, MASK)
            total += tl.where(valid, width, 0)
            moved_on = moved_on + (total,)  # noqa: RUF005
        sums = moved_on
        due = tl.where(fresh + FRESH < stop, sums[FRESH - 1], total)
        while tl.max((clock + due > goal).to(tl.int32), 0) > 0:
            event = clock + total > goal
            row, passed = reached(sums, goal - clock, WINDOW)
            index = (fresh + FRESH - WINDOW + row) * LANES + lane
            words = piece(anchor, base, length, stride, units, index, event, WALK, BITS)
            left = units - index * PIECE
            place, unit, opening = located(table, words, clock + passed, goal, left, WALK, BITS, SHIFT, MASK)
            unit_context = context(unit, SHIFT, MASK)
            close = opening + tl.load(widths + unit_context, mask=event, other=0)

            slot = (state & SLOTS).to(tl.int32)
            hit = event & (slot >= ONE)
            lower = tl.where(hit, share(tl.maximum(tl.where(hit, opening, 0), 0), Z), 0)
            upper = tl.where(hit, share(tl.minimum(tl.where(hit, close, 0), HORIZON), Z), ONE)
            state = tl.where(event, stepped(state, upper - lower, lower, Z + 4), state)
            state, at = _refilled(state, payload, start, at, end)
            if tl.max(((state < _FULL) & (at < end)).to(tl.int32), 0) > 0:
                state, at = _refilled(state, payload, start, at, end)
            state, at, new, reason = _valued(
                state, at, payload, start, end, unit, unit_context, hit, lists, coarse, entries, VALUE_BITS, BITS, ORDER
            )
            fault = tl.where(hit, reason, fault)

            moved = hit & (fault == 0)
            rank, together = _ranked(moved, LANES)
            rank += found
            found += together
            fits = moved & (rank < changed)
            tl.store(positions + slot0 + rank, place + index * PIECE, mask=fits)
            tl.store(olds + slot0 + rank, unit.to(olds.dtype.element_ty), mask=fits)
            tl.store(news + slot0 + rank, new.to(news.dtype.element_ty), mask=fits)

            clock -= tl.where(hit, close, tl.where(event, HORIZON, 0))
            goal = tl.where(event, target((state & SLOTS).to(tl.int32), Z), goal)
            goal = tl.where(fault > 0, _NEVER, goal)
        clock = tl.where(fault > 0, 0, clock + sums[FRESH - 1])
        fresh += FRESH

    clock = tl.where(fault > 0, 0, clock + sums[WINDOW - 1] - sums[FRESH - 1])
    pending = clock > 0
    fault = tl.where(pending & ((state & SLOTS) >= ONE), TAIL, fault)
    state = tl.where(pending, stepped(state, tl.full((THREADS,), ONE, tl.int32), 0, Z + 4), state)
    state, at = _refilled(state, payload, start, at, end)
    state, at = _refilled(state, payload, start, at, end)
    fault = tl.where((fault == 0) & ((state != 0) | (at < end)), WORDS, fault)
    worst = tl.max(tl.reshape(fault, (THREADS // LANES, LANES)), 1)
    total_found = tl.max(tl.reshape(found, (THREADS // LANES, LANES)), 1)
    each = tl.program_id(0) * (THREADS // LANES) + tl.arange(0, THREADS // LANES)
    wanted = tl.load(changes + each, mask=each < frames, other=0)
    worst = tl.where((worst == 0) & (total_found != wanted), COUNT, worst)
    tl.store(statuses + each, worst, mask=each < frames)
