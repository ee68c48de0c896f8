"""Digests of what lies in memory, whole or by slices, for proofs and sweeps.

A sweep walks through a tensor slice by slice while commits go on. What is written behind it is added to its sum from
the staged bits, so that it never starts over; it only reads, and decides nothing about what it finds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from syncline.clock import Clock
from syncline.delta import StagedTensor
from syncline.kernels.digest import change_digest, digest_units
from syncline.wire.digest import Digest, seeds
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.memory import UnitMemory, Units

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


@dataclass(frozen=True, slots=True)
class _Missed:
    """What was written to a tensor while a sweep was in it."""

    staged: StagedTensor
    tiling: Tiling
    undo: bool
    done: int
    """How far the sweep was then."""


@dataclass(slots=True)
class _Walk:
    """A sweep's way through one tensor."""

    tensor: int
    done: int = 0
    """Units summed up."""
    found: Digest = field(default_factory=Digest)
    missed: list[_Missed] = field(default_factory=list[_Missed])


class Walks:
    """The sweeps that are under way."""

    def __init__(self, table: TensorTable, memory: UnitMemory, lock: threading.Lock, clock: Clock) -> None:
        """`lock` is held by whoever writes to `memory`, and here for a slice at a time."""
        self._table = table
        self._memory = memory
        self._lock = lock
        self._clock = clock
        self._under_way: list[_Walk] = []

    def written(self, tensors: Sequence[StagedTensor], tiling: Tiling, *, undo: bool) -> None:
        """These bits are in memory now. The caller has held the lock since before it wrote them."""
        for walk in self._under_way:
            walk.missed += [_Missed(s, tiling, undo, walk.done) for s in tensors if s.tensor == walk.tensor]

    def through(
        self, tensor: int, *, slice_units: int, rest: Callable[[], float], arrived: Callable[[Digest], None]
    ) -> None:
        """Sum up one tensor, then call `arrived` with its digest, under the lock. After each slice sleep `rest()` times
        as long as it took."""
        walk = _Walk(tensor)
        with self._lock:
            self._under_way.append(walk)
        try:
            while self._on(walk, self._table.tensors[tensor], slice_units, rest, arrived):
                pass
        finally:
            with self._lock:
                self._under_way.remove(walk)

    def _on(
        self,
        walk: _Walk,
        spec: TensorSpec,
        slice_units: int,
        rest: Callable[[], float],
        arrived: Callable[[Digest], None],
    ) -> bool:
        """One slice, or the arrival after the last; whether there is more to do."""
        while walk.missed:  # a commit changed what was summed up already: add that instead of starting over
            missed = walk.missed.pop(0)
            walk.found += change_before(spec, missed.tiling, missed.staged, missed.done, undo=missed.undo)
        began = self._clock.monotonic()
        with self._lock:
            if walk.missed:
                return True
            if walk.done >= spec.units:
                arrived(walk.found)
                return False
            stop = min(walk.done + slice_units, spec.units)
            walk.found += units_digest(spec, self._memory.units(walk.tensor, walk.done, stop), walk.done)
            walk.done = stop
        resting = rest()
        if resting:
            self._clock.sleep(resting * (self._clock.monotonic() - began))
        return True
