"""An encoder's rANS steps (FORMAT.md, `context`), one lane an element of the block: words grow from a region's end to its begin.

Steps are taken last to first. A region that is too small loses words, never others' memory; `at` below zero tells.
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

import triton
import triton.language as tl

from syncline.kernels import clock as coder
from syncline.kernels.gpu.clock import NIBBLES, SIGNED, context, flipped, share

VALUE_BITS = tl.constexpr(coder.VALUE_BITS)
KEPT = tl.constexpr("evict_last")
"""For what is written or looked up again and again, while weights stream by."""


@triton.jit
def put(x, at, words, on, frequency, start, bits, TWICE: tl.constexpr):
    """Code a symbol of `frequency` out of 2^bits: new state, and where the words now begin; they grow towards lower places."""
    limit = frequency << (48 - bits)
    spill = on & (x >= limit)
    at -= spill.to(tl.int32)
    tl.store(words + at, x.to(tl.int16), mask=spill & (at >= 0), eviction_policy=KEPT)
    x = tl.where(spill, x >> 16, x)
    if TWICE:
        spill = on & (x >= limit)
        at -= spill.to(tl.int32)
        tl.store(words + at, x.to(tl.int16), mask=spill & (at >= 0), eviction_policy=KEPT)
        x = tl.where(spill, x >> 16, x)
    # Exact: x < frequency * 2^(48 - bits), so the quotient's distance from the next integer, 1 / frequency at least, is far above
    # half a unit in its last place.
    quotient = (x.to(tl.float64) / frequency.to(tl.float64)).to(tl.int64)
    return tl.where(on, (quotient << bits) + (x - quotient * frequency) + start, x), at


@triton.jit
def _put_raw(x, at, words, on, value, bits):
    """Code `bits` bits, at most 16, as they are."""
    spill = on & (x >= (tl.full(x.shape, 1, tl.int64) << (48 - bits)))
    at -= spill.to(tl.int32)
    tl.store(words + at, x.to(tl.int16), mask=spill & (at >= 0), eviction_policy=KEPT)
    x = tl.where(spill, x >> 16, x)
    return tl.where(on, (x << bits) + value, x), at


@triton.jit
def _ordered(unit, BITS: tl.constexpr, ORDER: tl.constexpr):
    """The unit's place in integer order, from 0 or from -2^(BITS - 1): the difference of two of them is their step."""
    if ORDER == SIGNED:
        return flipped(unit, BITS, ORDER) ^ (1 << (BITS - 1))
    else:
        return unit


@triton.jit
def symbol_of(old, new, BITS: tl.constexpr, ORDER: tl.constexpr):
    """Symbol, raw value and raw bits of a change; units as in `clock.flipped`."""
    if ORDER == NIBBLES:
        before = flipped(old, BITS, ORDER)
        after = flipped(new, BITS, ORDER)
        # With the top bit of each nibble out of the way no borrow crosses.
        apart = (((after | 0x88) - (before & 0x77)) ^ ((after ^ before ^ 0x88) & 0x88)) & 255
        return apart, tl.zeros_like(old), tl.zeros_like(old)
    else:
        step = _ordered(new, BITS, ORDER) - _ordered(old, BITS, ORDER)
        if BITS == 8:
            return step & 255, tl.zeros_like(old), tl.zeros_like(old)
        else:
            sign = (step < 0).to(step.dtype)
            size = tl.abs(step) - 1
            near = size < 8
            far = size >= 65536
            inside = tl.minimum(tl.maximum(size, 1), 65535).to(tl.int32)
            # The exponent of a float holds the integer part of the logarithm, exactly below 2^24.
            k = (inside.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
            symbol = tl.where(near, (1 + 2 * size + sign).to(tl.int32), 14 + k)
            symbol = tl.where(far, 0, symbol)
            raw = ((inside - (1 << k)) * 2).to(step.dtype) + sign
            raw = tl.where(far, new, raw)
            bits = tl.where(near, 0, tl.where(far, BITS, k + 1))
            return symbol, raw, bits


@triton.jit
def put_change(
    x, at, words, on, old, new, clock, misses, fault, widths_ptr, lists_ptr, codes_ptr,
    BITS: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr, ORDER: tl.constexpr, Z: tl.constexpr,
):  # fmt: skip
    """Code the change old -> new with `misses` horizons and `clock` ticks before it, where `on`."""
    where = context(old, SHIFT, MASK).to(tl.int32)
    symbol, raw, bits = symbol_of(old, new, BITS, ORDER)
    width = tl.load(widths_ptr + where, mask=on, other=1)
    row = codes_ptr + (tl.load(lists_ptr + where, mask=on, other=0) & 255) * 256
    code = tl.load(row + symbol, mask=on, other=1)
    escaped = on & (code == 0)
    if tl.max(escaped.to(tl.int32), 0) > 0:
        code = tl.where(escaped, tl.load(row, mask=escaped, other=0), code)
        raw = tl.where(escaped, new, raw)
        bits = tl.where(escaped, BITS, bits)
    broken = on & ((code == 0) | (width == 0))
    fault = tl.where(broken, 1, fault)
    code = tl.where(broken, 1, code)
    width = tl.where(broken, 1, width)
    if tl.max(tl.where(on, bits, 0), 0) > 0:
        if BITS == 32:
            high = bits > 16
            x, at = _put_raw(x, at, words, on & high, raw >> 16, 16)
            raw = tl.where(high, raw & 65535, raw)
            bits = tl.where(high, 16, bits)
        x, at = _put_raw(x, at, words, on & (bits > 0), raw.to(tl.int64), bits.to(tl.int64))
    x, at = put(x, at, words, on, (code & 65535).to(tl.int64), (code >> 16).to(tl.int64), VALUE_BITS, TWICE=False)
    close = clock + width
    horizon: tl.constexpr = 4 << Z
    missed = (close > horizon) & (horizon - clock < close - horizon)
    misses += missed.to(tl.int32)
    close = tl.where(missed, close - horizon, close)
    clock = tl.where(missed, 0, clock)
    first = share(clock, Z)
    slots = tl.where(on, share(tl.minimum(close, horizon), Z) - first, 1)
    x, at = put(x, at, words, on, slots.to(tl.int64), first.to(tl.int64), Z + 4, TWICE=True)
    return x, at, misses, fault


@triton.jit
def put_misses(x, at, words, misses, Z: tl.constexpr):
    """Code so many misses a lane."""
    while tl.max(misses, 0) > 0:
        on = misses > 0
        spill = on & (x >= (1 << 44))
        at -= spill.to(tl.int32)
        tl.store(words + at, x.to(tl.int16), mask=spill & (at >= 0), eviction_policy=KEPT)
        x = tl.where(spill, x >> 16, x)
        x = tl.where(on, ((x >> Z) << (Z + 4)) + (x & ((1 << Z) - 1)), x)
        misses -= on.to(tl.int32)
    return x, at
