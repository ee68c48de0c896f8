"""Digests of what lies in memory, whole or by slices, for proofs and sweeps."""

from __future__ import annotations

import numpy as np

from syncline.delta import StagedTensor
from syncline.kernels.digest import change_digest, digest_units
from syncline.wire.digest import Digest, seeds
from syncline.wire.tensors import TensorSpec
from syncline.wire.tiling import Tiling
from syncline_agent.arm.memory import Units

SLICE_UNITS = 1 << 20
"""About a millisecond of one core: how long a sweep may keep a commit waiting."""


def units_digest(spec: TensorSpec, units: Units, start: int = 0) -> Digest:
    """What units of a tensor, the first of them at `start`, add to its digest."""
    return digest_units(units, seeds(spec.name), start=start)


def change_before(spec: TensorSpec, tiling: Tiling, staged: StagedTensor, stop: int, *, undo: bool) -> Digest:
    """What writing the staged bits (to undo, the old ones) adds to the digest of the tensor's units [0, stop)."""
    grid, seed, change = spec.grid(tiling), seeds(spec.name), Digest()
    for part in staged.frames:
        frame = grid.frame(part.frame)
        if frame.base >= stop:
            continue
        runs, within = np.divmod(part.positions.astype(np.int64), frame.length)
        before = frame.base + runs * frame.stride + within < stop
        old, new = (part.new, part.old) if undo else (part.old, part.new)
        change += change_digest(frame, part.positions[before], old[before], new[before], seed)
    return change
