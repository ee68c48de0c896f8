"""Where the lanes' words lie in many payloads at once: `codec.split_lanes` for frames that go to a device together, compiled, so that other
threads run meanwhile.

Only looks at lengths; the words stay where they are.
"""

# pyright: basic
# compiled functions have no annotations

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncline.kernels.compiling import I32, INT, U8, array, compiled_as

_VARINT_BYTES = 4
"""Of a lane's length, at most."""


@dataclass(frozen=True, slots=True)
class LanePlaces:
    """Frames with the same number of lanes."""

    starts: NDArray[np.int64]
    """[frames, lanes]: byte at which a lane's words begin."""
    words: NDArray[np.int32]
    """[frames, lanes]: the number of them."""
    corrupt: NDArray[np.bool_]
    """[frames]: its lengths are no varints, or longer than the payload. Such a frame's lanes are empty."""


def place_lanes(
    payloads: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], lanes: int
) -> LanePlaces:
    """Find the lanes of payloads that lie at `starts` in one buffer. Nothing outside a payload is believed. ValueError where one does not
    lie there."""
    if (
        (starts < 0) | (sizes < 0) | (starts > payloads.size - sizes)
    ).any():  # a sum of two large ones is less than none
        raise ValueError(f"payloads do not lie in {payloads.size} bytes")
    begins, words = np.empty(starts.size * lanes, np.int64), np.empty(starts.size * lanes, np.int32)
    corrupt = np.empty(starts.size, np.uint8)
    _compiled()(payloads, np.ascontiguousarray(starts), np.ascontiguousarray(sizes), lanes, begins, words, corrupt)
    return LanePlaces(begins.reshape(-1, lanes), words.reshape(-1, lanes), corrupt.view(np.bool_))


def _place_kernel(payloads, starts, sizes, lanes, begins, words, corrupt):
    for frame in range(starts.size):
        at = starts[frame]
        end = at + sizes[frame]
        first = frame * lanes
        whole = True
        before = np.int64(0)
        for lane in range(lanes - 1):
            length = np.int64(0)
            ended = False
            for turn in range(_VARINT_BYTES):
                if ended or at >= end:
                    break
                byte = np.int64(payloads[at])
                at += 1
                length |= (byte & 127) << (7 * turn)
                ended = byte < 128
                whole = whole and (byte > 0 or turn == 0)  # else it is not in its shortest form
            whole = whole and ended
            begins[first + lane] = before
            words[first + lane] = length
            before += length
        left = end - at
        begins[first + lanes - 1] = before
        words[first + lanes - 1] = left // 2 - before
        whole = whole and left % 2 == 0 and before <= left // 2
        corrupt[frame] = not whole
        for lane in range(lanes):
            begins[first + lane] = at + 2 * begins[first + lane] if whole else at
            if not whole:
                words[first + lane] = 0


@cache
def _compiled() -> Any:
    ints = array(INT)
    room = array(INT, writable=True), array(I32, writable=True), array(U8, writable=True)
    return compiled_as(_place_kernel, (array(U8), ints, ints, INT, *room))
