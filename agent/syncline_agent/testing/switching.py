"""Live weights by hand: from one version to another without an agent, and a clock that lets something fall between the slices
of a sweep."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from syncline.clock import ManualClock
from syncline.testing.weight_run import WeightRun, Weights
from syncline_agent.arm.live import LiveWeights
from syncline_agent.engine import StageRequest


def same(memory: Weights, expected: Weights) -> bool:
    return all(np.array_equal(memory[name], units) for name, units in expected.items())


def place_of(run: WeightRun, name: str, *, changed: bool) -> int:
    """The first unit that version 2 changes, or the first that it does not."""
    return int(np.flatnonzero((run.weights(1)[name] != run.weights(2)[name]) == changed)[0])


def commit(live: LiveWeights, target: int) -> None:
    live.ready(target)
    live.scatter(target)
    live.confirm(target)


def undo(live: LiveWeights, version: int) -> None:
    live.ready_undo(version)
    live.scatter(version)
    live.confirm(version)


def write(live: LiveWeights, request: StageRequest) -> None:
    """Everything but the reading back."""
    live.stage(request)
    live.ready(request.target)
    live.scatter(request.target)


class Sleeper(ManualClock):
    """A clock whose sleeps something is done in: it is called with their number."""

    def __init__(self, during: Callable[[int], None]) -> None:
        super().__init__()
        self.slept = 0
        self._during = during

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self._during(self.slept)

    def monotonic(self) -> float:
        return float(self.slept)


def slowly(run: WeightRun, memory: Weights, clock: ManualClock) -> LiveWeights:
    """Version 1 in memory, swept under a clock of the test's own."""
    slow = LiveWeights(run.table, run.tiling.tiling, memory, clock=clock)
    slow.prove(run.lineage, "main", 1, run.digest(1))
    return slow
