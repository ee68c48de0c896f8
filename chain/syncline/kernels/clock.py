"""The context coder's arithmetic: what a unit's bits mean to it, shares of a clock's ticks, symbols of changes (wire/FORMAT.md, `context`).

Integers in, integers out; it never looks at a frame or at words. The loops are in `clock_encoding`, `clock_decoding`, `clock_counting`.
"""

# pyright: basic
# compiled functions have no annotations: numba infers their types at the call

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np

PLAIN, SIGNED, NIBBLES = 0, 1, 2
"""Order of a unit's bit patterns: as they are, sign-magnitude, sign-magnitude a nibble."""
ESCAPE = 0
"""Symbol of a unit that is sent as it is."""
VALUE_BITS = 12
UNCODABLE = -1
"""What encoding returns where a table has no code for a change."""
DONE, COUNT, WORDS, NO_MOVE, RANGE, TAIL = range(6)
"""How decoding ended: well; other changes than promised; words are left over or the state is not the start; an escape that changes
nothing; a step out of range; a lane that ends inside a change."""


@dataclass(frozen=True, slots=True)
class Alphabet:
    """What a unit's bits mean to the coder. Constants of the compiled loops."""

    bits: int
    """8, 16 or 32."""
    shift: int
    mask: int
    """Context of unit x: x >> shift & mask, below 256."""
    order: int
    """PLAIN, SIGNED or NIBBLES."""

    @property
    def unit(self) -> np.dtype[Any]:
        return np.dtype(f"u{self.bits // 8}")

    @property
    def piece(self) -> int:
        """Units dealt to a lane at a time: 16 bytes."""
        return 128 // self.bits


@nb.njit(inline="always")
def share(tick, z):
    """First slot of a tick, 0..4 * 2^z."""
    zone = tick >> z
    return (np.int64(17) << z) - ((np.int64(16) << z) >> zone) + (tick - (zone << z)) * (np.int64(8) >> zone)


@nb.njit(inline="always")
def target(slot, z):
    """The tick that holds a slot; for a miss the last one before the horizon. Which zone it is nobody can guess, so nothing branches."""
    zone = np.int64(1) << z
    at = slot - zone
    number = np.int64(at >= 8 * zone) + np.int64(at >= 12 * zone) + np.int64(at >= 14 * zone)
    before = (np.int64(16) << z) - ((np.int64(16) << z) >> number)
    tick = (number << z) + ((at - before) >> (3 - number))
    return tick if at >= 0 else 4 * zone - 1


@nb.njit(inline="always")
def nibble(x):
    """Order of a sign-magnitude nibble, modulo 16. Its own inverse."""
    return x if x < 8 else 23 - x


@nb.njit(inline="always")
def ordered(x, bits, order):
    """Order of a unit of more than four bits."""
    top = np.int64(1) << (bits - 1)
    return top - 1 - x if order == SIGNED and x >= top else x


@nb.njit(inline="always")
def symbol_of(old, new, bits, order):
    """Symbol, raw value and raw bits of a change."""
    if order == NIBBLES:
        low = (nibble(new & 15) - nibble(old & 15)) & 15
        high = (nibble(new >> 4) - nibble(old >> 4)) & 15
        return high << 4 | low, np.int64(0), 0
    d = ordered(new, bits, order) - ordered(old, bits, order)
    if bits == 8:
        return d & 255, np.int64(0), 0
    sign = np.int64(d < 0)
    u = abs(d) - 1
    if u < 8:
        return 1 + 2 * u + sign, np.int64(0), 0
    if u >= 65536:
        return np.int64(ESCAPE), new, bits
    k = np.int64(3)
    while u >> (k + 1):
        k += 1
    return 14 + k, (u - (np.int64(1) << k)) * 2 + sign, k + 1
