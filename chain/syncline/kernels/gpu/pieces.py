"""How a lane reads its frame: pieces of 16 bytes, the widths of their units, and the unit in which the clock passes a point.

Bodies that both directions may call. `WALK` says how a batch's frames are reached (batch.Walk); a lane's words are never read here.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

import triton
import triton.language as tl

from syncline.kernels.gpu.batch import LANES_MAX, Walk
from syncline.kernels.gpu.clock import context

FLAT = tl.constexpr(int(Walk.FLAT))
ANY = tl.constexpr(int(Walk.ANY))
THREADS = tl.constexpr(LANES_MAX)


@triton.jit
def piece(anchor, base, length, stride, units, index, valid, WALK: tl.constexpr, BITS: tl.constexpr):
    """The four 32-bit words of each lane's piece `index` of its frame; zeros where it is not valid."""
    SHARE: tl.constexpr = 32 // BITS
    PIECE: tl.constexpr = 4 * SHARE
    column = tl.arange(0, 4)[None, :]
    if WALK == ANY:
        words = tl.zeros((THREADS, 4), tl.int32)
        for part in tl.static_range(SHARE):
            unit = index[:, None] * PIECE + column * SHARE + part
            inside = valid[:, None] & (unit < units[:, None])
            row = unit // length[:, None]
            place = base[:, None] + row.to(tl.int64) * stride[:, None] + (unit - row * length[:, None])
            bits = tl.load(anchor + place, mask=inside, other=0).to(tl.int32)
            words |= (bits & ((1 << BITS) - 1) if BITS < 32 else bits) << (BITS * part)
    else:
        if WALK == FLAT:
            place = base // PIECE + index
        else:
            across = length // PIECE
            row = index // across
            place = base // PIECE + row.to(tl.int64) * (stride // PIECE) + (index - row * across)
        pointer = anchor.to(tl.pointer_type(tl.int32))
        words = tl.load(pointer + (place * 4)[:, None] + column, mask=valid[:, None], other=0)
    even, odd = tl.split(tl.reshape(words, (THREADS, 2, 2)))
    word0, word2 = tl.split(even)
    word1, word3 = tl.split(odd)
    return word0, word1, word2, word3


@triton.jit
def unit_width(
    widths,
    word,
    left,
    PART: tl.constexpr,
    WALK: tl.constexpr,
    BITS: tl.constexpr,
    SHIFT: tl.constexpr,
    MASK: tl.constexpr,
):
    """Width of a word's unit number PART; `left` units of the frame begin with the word's first."""
    width = tl.load(widths + context(word, BITS * PART + SHIFT, MASK)).to(tl.int32)
    return tl.where(left > PART, width, 0) if WALK == ANY else width


@triton.jit
def word_width(table, word, left, WALK: tl.constexpr, BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr):
    """Width of all units of a word."""
    widths, sums = table
    if BITS == 16 and WALK != ANY:
        return tl.load(sums + (((word >> SHIFT) & MASK) | ((word >> (SHIFT + 8)) & (MASK << 8))))
    else:
        narrow = widths if BITS == 16 else sums
        total = unit_width(narrow, word, left, 0, WALK, BITS, SHIFT, MASK)
        for part in tl.static_range(1, 32 // BITS):
            total += unit_width(narrow, word, left, part, WALK, BITS, SHIFT, MASK)
        return total


@triton.jit
def piece_width(table, words, left, WALK: tl.constexpr, BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr):
    """Width of all units of a piece; `left` units of the frame begin with it."""
    SHARE: tl.constexpr = 32 // BITS
    width = word_width(table, words[0], left, WALK, BITS, SHIFT, MASK)
    width += word_width(table, words[1], left - SHARE, WALK, BITS, SHIFT, MASK)
    width += word_width(table, words[2], left - 2 * SHARE, WALK, BITS, SHIFT, MASK)
    width += word_width(table, words[3], left - 3 * SHARE, WALK, BITS, SHIFT, MASK)
    return width


@triton.jit
def located(
    table, words, clock, goal, left, WALK: tl.constexpr, BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr
):
    """The first unit of a piece whose end lies behind the goal: where in the piece, its bits, and the clock at its start."""
    SHARE: tl.constexpr = 32 // BITS
    first, second, third, fourth = words
    width = word_width(table, first, left, WALK, BITS, SHIFT, MASK)
    width += word_width(table, second, left - SHARE, WALK, BITS, SHIFT, MASK)
    past = clock + width <= goal
    clock = tl.where(past, clock + width, clock)
    at = tl.where(past, 2 * SHARE, 0)
    word, other = tl.where(past, third, first), tl.where(past, fourth, second)
    width = word_width(table, word, left - at, WALK, BITS, SHIFT, MASK)
    past = clock + width <= goal
    clock = tl.where(past, clock + width, clock)
    at += tl.where(past, SHARE, 0)
    word = tl.where(past, other, word)
    widths = table[0]
    if SHARE == 4:
        width = unit_width(widths, word, left - at, 0, WALK, BITS, SHIFT, MASK)
        width += unit_width(widths, word, left - at, 1, WALK, BITS, SHIFT, MASK)
        past = clock + width <= goal
        clock = tl.where(past, clock + width, clock)
        at += tl.where(past, 2, 0)
        word = tl.where(past, word >> 16, word)
    if SHARE >= 2:
        width = unit_width(widths, word, left - at, 0, WALK, BITS, SHIFT, MASK)
        past = clock + width <= goal
        clock = tl.where(past, clock + width, clock)
        at += tl.where(past, 1, 0)
        word = tl.where(past, word >> BITS, word)
        word = word & ((1 << BITS) - 1)
    return at, word, clock


@triton.jit
def reached(sums, room, SUMS: tl.constexpr):
    """How many of the ascending sums, all but the last at most, lie within `room`, and the last that does."""
    row = tl.zeros((THREADS,), tl.int32)
    passed = tl.zeros((THREADS,), tl.int32)
    for level in tl.static_range(5):
        if SUMS >> level > 1:
            past = sums[(SUMS >> level) // 2 - 1] <= room
            passed = tl.where(past, sums[(SUMS >> level) // 2 - 1], passed)
            row += tl.where(past, (SUMS >> level) // 2, 0)
            rest = ()
            for k in tl.static_range((SUMS >> level) // 2):
                rest = rest + (tl.where(past, sums[(SUMS >> level) // 2 + k], sums[k]),)  # noqa: RUF005 Triton knows no star
            sums = rest
    return row, passed
