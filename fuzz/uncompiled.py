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


def _piece_sums(units, at, tables, sums, to, shift, mask):
    bits = 8 * units.itemsize
    per_piece = 128 // bits
    contexts = _inside(units, at, vectors.STEP[bits]).astype(np.int64) >> shift & mask
    widths = np.zeros(contexts.size, np.int64)
    for plane in range(vectors.PLANES):
        widths += tables[256 * plane + contexts].astype(np.int64) << 8 * plane
    found = widths.reshape(-1, per_piece).sum(1)
    _inside(sums, to, found.size)[:] = found


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


PLAIN = {
    "piece_sums": _piece_sums,
    "differing": _differing,
    "beyond": _beyond,
    "ones": _ones,
    "lowest": _lowest,
}
"""By the names of `kernels.vectors`."""
np.seterr(over="ignore")  # compiled integers wrap without a word
for _name, _plain in PLAIN.items():
    setattr(vectors, _name, _plain)
