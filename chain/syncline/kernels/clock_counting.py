"""What the context coder's tables are made of: how often contexts occur, and with which symbols they change."""

# pyright: basic, reportCallIssue=false
# compiled functions have no annotations: numba infers their types at the call, and gives an intrinsic its first argument

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from syncline.kernels.clock import Alphabet, symbol_of
from syncline.kernels.compiling import INT, Signature, array, compiled
from syncline.kernels.lane_clocks import context
from syncline.kernels.vectors import prefetch


def _units_kernel(alphabet: Alphabet):
    shift, mask = alphabet.shift, alphabet.mask

    def kernel(flat, block, stride, found):
        """Contexts of the first of every `stride` blocks. Returns how many units were looked at."""
        apart = np.zeros((4, 256), np.uint32)  # four blocks at once: equal units would wait for each other in one row,
        one, two, three, four = apart[0], apart[1], apart[2], apart[3]  # and far blocks for memory
        step = block * stride
        seen = start = 0
        while start + 3 * step + block <= flat.size and seen < 1 << 31:
            for far in range(start + 4 * step, start + 8 * step, step):
                for line in range(far, far + block, 64 // flat.itemsize):
                    prefetch(flat, line)
            for i in range(start, start + block):
                one[context(flat[i], shift, mask)] += np.uint32(1)
                two[context(flat[i + step], shift, mask)] += np.uint32(1)
                three[context(flat[i + 2 * step], shift, mask)] += np.uint32(1)
                four[context(flat[i + 3 * step], shift, mask)] += np.uint32(1)
            seen += 4 * block
            start += 4 * step
        for row in range(4):
            for at in range(256):
                found[at] += apart[row, at]
        for first in range(start, flat.size, step):
            for i in range(first, min(first + block, flat.size)):
                found[context(flat[i], shift, mask)] += 1
                seen += 1
        return seen

    return kernel


def _symbols_kernel(alphabet: Alphabet):
    bits, order = alphabet.bits, alphabet.order
    shift, mask = alphabet.shift, alphabet.mask

    def kernel(before, after, found):
        """Changes at context * 256 + symbol."""
        for i in range(before.size):
            symbol, _, _ = symbol_of(np.int64(before[i]), np.int64(after[i]), bits, order)
            found[np.int64(context(before[i], shift, mask)) * 256 + symbol] += 1

    return kernel


def _of_units(unit) -> Signature:
    return (array(unit), INT, INT, array(INT, writable=True))


def _of_symbols(unit) -> Signature:
    return (array(unit), array(unit), array(INT, writable=True))


@cache
def count_units(alphabet: Alphabet) -> Callable[..., Any]:
    """Compiled loop; see `_units_kernel`."""
    return compiled(_units_kernel(alphabet), _of_units, allocates=True)(alphabet.unit)


@cache
def count_symbols(alphabet: Alphabet) -> Callable[..., Any]:
    """Compiled loop; see `_symbols_kernel`."""
    return compiled(_symbols_kernel(alphabet), _of_symbols)(alphabet.unit)
