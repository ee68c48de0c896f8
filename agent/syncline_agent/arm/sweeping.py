"""Digests of what lies in memory, whole or by slices, for proofs and sweeps."""

from __future__ import annotations

from syncline.kernels.digest import digest_units
from syncline.wire.digest import Digest, seeds
from syncline.wire.tensors import TensorSpec
from syncline_agent.arm.memory import Units

SLICE_UNITS = 1 << 20
"""About a millisecond of one core: how long a sweep may keep a commit waiting."""


def units_digest(spec: TensorSpec, units: Units, start: int = 0) -> Digest:
    """What units of a tensor, the first of them at `start`, add to its digest."""
    return digest_units(units, seeds(spec.name), start=start)
