"""The coder's loops as plain Python: import it before any of `syncline.kernels`. Branches become coverage, and a place outside an array an
IndexError in place of a read of foreign memory.

numba runs its loops uncompiled when told so, but has no plain form of an intrinsic. Those of `kernels.vectors` get one here.
"""

# pyright: basic
# numba gives its objects no types

from __future__ import annotations

import os

os.environ["NUMBA_DISABLE_JIT"] = "1"

import numpy as np

from syncline.kernels import vectors


def _inside(array, at, count):
    """`count` elements from `at` on; IndexError where they are not all there."""
    at = int(at)
    if at < 0 or at + count > array.size:
        raise IndexError(f"{count} elements from {at} on of {array.size}")
    return array[at : at + count]


def _widths(units, tables, shift, mask):
    contexts = units.astype(np.int64) >> shift & mask
    widths = np.zeros(contexts.size, np.int64)
    for plane in range(vectors.PLANES):
        widths += tables[256 * plane + contexts].astype(np.int64) << 8 * plane
    return widths


def _piece_sums(units, at, tables, low, sums, to, shift, mask):
    bits = 8 * units.itemsize
    widths = _widths(_inside(units, at, vectors.STEP[bits]), tables, shift, mask)
    found = widths.reshape(-1, 128 // bits).sum(1)
    _inside(sums, to, found.size)[:] = found


def _running_sums(units, at, tables, low, sums, limit, shift, mask):
    found = np.cumsum(_widths(_inside(units, at, 16 // units.itemsize), tables, shift, mask))
    _inside(sums, 1, found.size)[:] = found
    return int(np.count_nonzero(found <= limit))


def _columns_before(rows, at, stride, carried, lane, columns, to, apart):
    before = _inside(carried, lane, vectors.SQUARE)
    square = [before.copy()]
    for row in range(vectors.SQUARE):
        square.append(square[-1] + _inside(rows, at + row * stride, vectors.SQUARE))
    before[:] = square.pop()
    for column, values in enumerate(np.array(square).T):
        _inside(columns, to + column * apart, vectors.SQUARE)[:] = values


def _mask(found):
    return np.uint64(sum(1 << k for k in np.flatnonzero(found).tolist()))


def _differing(old, new, at):
    return _mask(_inside(old, at, 64) != _inside(new, at, 64))


def _beyond(values, at, limit):
    return _mask(_inside(values, at, 32) > limit)


def _ones(word):
    return int(word).bit_count()


def _lowest(word):
    return (int(word) & -int(word)).bit_length() - 1 if word else 64


def _prefetch(array, at):
    """Nothing is read, inside the array or outside."""


PLAIN = {
    "piece_sums": _piece_sums,
    "running_sums": _running_sums,
    "columns_before": _columns_before,
    "prefetch": _prefetch,
    "differing": _differing,
    "beyond": _beyond,
    "ones": _ones,
    "lowest": _lowest,
}
"""By the names of `kernels.vectors`."""
np.seterr(over="ignore")  # compiled integers wrap without a word
for _name, _plain in PLAIN.items():
    setattr(vectors, _name, _plain)
