"""Binary logarithms of integers, in integers: tables must come out the same on every machine."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from syncline.kernels.merging import FRACTION, MANTISSA

Integers = NDArray[np.int64]


def exact_log2(value: int, fraction: int) -> int:
    """floor(log2(value) * 2^fraction), or one less, for value >= 1: bit by bit, by squaring (a logarithm's oldest recipe)."""
    whole = value.bit_length() - 1
    kept = 64
    x = value << kept >> whole  # 1 <= x / 2^kept < 2
    result = whole
    for _ in range(fraction):
        x = x * x >> kept
        result <<= 1
        if x >> (kept + 1):
            x >>= 1
            result |= 1
    return result


@cache
def mantissas() -> Integers:
    """log2(1 + i / 4096) with 16 fraction bits, for each i."""
    logs = [exact_log2((1 << MANTISSA) + i, FRACTION) for i in range(1 << MANTISSA)]
    return np.array(logs, np.int64) - (MANTISSA << FRACTION)


def log2(values: Integers) -> Integers:
    """log2 of values below 2^53 with 16 fraction bits, from their leading 13 bits; 0 for values below 2."""
    bits = (
        np.maximum(values, 1).astype(np.float64).view(np.int64)
    )  # exact: the exponent and the leading bits are all it is for
    mantissa = (bits >> (52 - MANTISSA)) & ((1 << MANTISSA) - 1)
    return (((bits >> 52) - 1023) << FRACTION) + mantissas()[mantissa]


@cache
def _quiet_table() -> Integers:
    """log2(1 / (1 - x)) (1 - x) / x at x = i / 4096, with 16 fraction bits; at 0 its limit, log2(e)."""
    steps, fraction = 1 << MANTISSA, 40
    whole = MANTISSA << fraction
    kept = [
        (steps - i) * (whole - exact_log2(steps - i, fraction)) // i >> fraction - FRACTION for i in range(1, steps)
    ]
    return np.array([kept[0], *kept, 0], np.int64)


def quiet_bits(units: Integers, changes: Integers) -> Integers:
    """What unchanged units take for each changed one, with 16 fraction bits, where each takes log2(1 / (1 - p)), p = changes / units.

    Near log2(e) where few change. Taken as a difference of `log2` it would be lost in what those leave out.
    """
    return _quiet_table()[(changes << MANTISSA) // np.maximum(units, 1)]
