"""The integers of the clock coder (FORMAT.md, `context`) that both directions share, one lane an element of the block.

Pure functions of their arguments: no memory is touched here. `Z` is the table's zone, BITS the width of a unit, ORDER its integer order.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

import triton
import triton.language as tl

from syncline.kernels import clock

PLAIN = tl.constexpr(clock.PLAIN)
SIGNED = tl.constexpr(clock.SIGNED)
NIBBLES = tl.constexpr(clock.NIBBLES)
ESCAPE = tl.constexpr(clock.ESCAPE)
RANGED = tl.constexpr(17)
LAST_STEP = tl.constexpr(29)
"""Symbols of 16- and 32-bit units: 1..16 name one step each, 17..29 a range of steps, of which raw bits name one."""


@triton.jit
def share(tick, Z: tl.constexpr):
    """G: the first slot of a tick, 0 <= tick <= H."""
    zone = tl.minimum(tick >> Z, 3)
    return ((17 - (16 >> zone)) << Z) + (tick - (zone << Z)) * (8 >> zone)


@triton.jit
def target(slot, Z: tl.constexpr):
    """The tick whose share holds a slot; the last before the horizon for the slots that mean a miss."""
    zone = (slot >= (9 << Z)).to(tl.int32) + (slot >= (13 << Z)).to(tl.int32) + (slot >= (15 << Z)).to(tl.int32)
    tick = (zone << Z) + ((slot - ((17 - (16 >> zone)) << Z)) >> (3 - zone))
    return tl.where(slot < (1 << Z), (4 << Z) - 1, tick)


@triton.jit
def context(unit, SHIFT: tl.constexpr, MASK: tl.constexpr):
    """Context of a unit's old bits; what stands above the unit does not matter where MASK cuts it off."""
    return (unit >> SHIFT) & MASK


@triton.jit
def flipped(unit, BITS: tl.constexpr, ORDER: tl.constexpr):
    """The unit's place in integer order, modulo 2^BITS. Also the way back, since the sign stays where it is.

    A unit of 32 bits comes as an int64, a narrower one as an int32; no bit above the unit is set.
    """
    if ORDER == SIGNED:
        return tl.where((unit >> (BITS - 1)) != 0, unit ^ ((1 << (BITS - 1)) - 1), unit)
    elif ORDER == NIBBLES:
        return unit ^ (((unit >> 3) & 0x11) * 7)
    else:
        return unit


@triton.jit
def stepped(state, frequency, start, BITS: tl.constexpr):
    """A rANS step of a decoder: `frequency` of 2^BITS slots, from `start` on, hold the state's lowest bits. No refill."""
    upper = state >> BITS
    if BITS > 16:
        upper = upper.to(tl.int32).to(tl.int64)  # a state is below 2^48: one 32-bit multiplication will do
    return frequency.to(tl.int64) * upper + ((state & ((1 << BITS) - 1)).to(tl.int32) - start).to(tl.int64)


@triton.jit
def popcount(bits):
    """Set bits of a uint32."""
    pairs = bits - ((bits >> 1) & 0x55555555)
    nibbles = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    return ((((nibbles + (nibbles >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)
