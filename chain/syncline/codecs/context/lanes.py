"""Where the lanes' words lie in many payloads at once: `codec.split_lanes` for frames that go to a device together.

Only looks at lengths; the words stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """Find the lanes of payloads that lie at `starts` in one buffer. Nothing outside a payload is believed."""
    at, ends = starts.copy(), starts + sizes
    counts = np.zeros((starts.size, lanes), np.int64)
    corrupt = np.zeros(starts.size, np.bool_)
    for lane in range(lanes - 1):
        open_ = np.ones(starts.size, np.bool_)
        for byte in range(_VARINT_BYTES):
            inside = open_ & (at < ends)
            value = np.where(inside, payloads[np.minimum(at, payloads.size - 1)], 0) if payloads.size else inside * 0
            corrupt |= open_ & ~inside  # the payload ends inside a length
            corrupt |= inside & (value == 0) & (byte > 0)  # not in its shortest form
            counts[:, lane] |= (value.astype(np.int64) & 0x7F) << (7 * byte)
            at += inside
            open_ = inside & (value >= 0x80)
            if not open_.any():
                break
        corrupt |= open_
    left = ends - at
    counts[:, lanes - 1] = left // 2 - counts[:, : lanes - 1].sum(1)
    corrupt |= (left % 2 != 0) | (counts[:, lanes - 1] < 0)
    counts[corrupt] = 0
    begins = at[:, None] + 2 * (np.cumsum(counts, 1) - counts)
    return LanePlaces(begins, counts.astype(np.int32), corrupt)
