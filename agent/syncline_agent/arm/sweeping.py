"""Digests of what lies in memory, by slices, for proofs and sweeps.

A sweep walks through a tensor part by part while commits go on. What is written behind it is added to its sums, so that
it never starts over; it only reads, and decides nothing about what it finds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from syncline.clock import Clock
from syncline.wire.digest import Digest
from syncline_agent.arm.memory import Changes, Memory


@dataclass(slots=True, eq=False)
class _Walk:
    """A sweep's way through one tensor: no other that has come equally far."""

    tensor: int
    found: list[Digest]
    """By band, of the parts so far."""
    done: int = 0
    """Parts summed up."""


class Walks:
    """The sweeps that are under way."""

    def __init__(self, memory: Memory, lock: threading.Lock, clock: Clock) -> None:
        """`lock` is held by whoever writes to `memory`, and here for a slice at a time."""
        self._memory = memory
        self._lock = lock
        self._clock = clock
        self._under_way: list[_Walk] = []

    def written(self, changes: Changes, *, undo: bool) -> None:
        """These bits are in memory now. The caller has held the lock since before it wrote them."""
        for walk in self._under_way:
            parts = self._memory.parts(walk.tensor)
            for part, change in changes.digests.get(walk.tensor, _NOTHING).items():
                if part < walk.done:
                    band = parts[part].band
                    walk.found[band] = walk.found[band] - change if undo else walk.found[band] + change

    def anew(self) -> None:
        """Nobody knows what of a change is in memory now. The caller has held the lock since before it was written."""
        for walk in self._under_way:
            walk.done, walk.found = 0, [Digest() for _ in walk.found]

    def through(
        self, tensor: int, *, slice_units: int, rest: Callable[[], float], arrived: Callable[[Sequence[Digest]], None]
    ) -> None:
        """Sum up what is held of one tensor, then call `arrived` with the digest of each band, under the lock. After each
        slice sleep `rest()` times as long as it took."""
        walk = _Walk(tensor, [Digest() for _ in self._memory.layout.bands[tensor]])
        with self._lock:
            self._under_way.append(walk)
        try:
            while self._on(walk, slice_units, rest, arrived):
                pass
        finally:
            with self._lock:
                self._under_way.remove(walk)

    def _on(
        self,
        walk: _Walk,
        slice_units: int,
        rest: Callable[[], float],
        arrived: Callable[[Sequence[Digest]], None],
    ) -> bool:
        """One slice, or the arrival after the last; whether there is more to do."""
        parts = self._memory.parts(walk.tensor)
        began = self._clock.monotonic()
        with self._lock:
            if walk.done >= len(parts):
                arrived(walk.found)
                return False
            stop, units = walk.done, 0
            while stop < len(parts) and (stop == walk.done or units + parts[stop].units <= slice_units):
                units += parts[stop].units
                stop += 1
            for part, digest in zip(
                parts[walk.done : stop],
                self._memory.digests(walk.tensor, range(walk.done, stop)),
                strict=True,
            ):
                walk.found[part.band] += digest
            walk.done = stop
        resting = rest()
        if resting:
            self._clock.sleep(resting * (self._clock.monotonic() - began))
        return True


_NOTHING: Mapping[int, Digest] = {}


def band_digests(memory: Memory, tensor: int) -> list[Digest]:
    """What each held band of the tensor adds to its digest, read now. Whoever writes must not meanwhile."""
    found = [Digest() for _ in memory.layout.bands[tensor]]
    parts = memory.parts(tensor)
    for part, digest in zip(parts, memory.digests(tensor, range(len(parts))), strict=True):
        found[part.band] += digest
    return found
