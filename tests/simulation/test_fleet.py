"""What must always hold in a fleet, and what must come true in the end, over seeded runs with faults of every kind.

Always: a replica that claims a proven version holds that version's very bits, and they are bits that the trainer published. In the end,
with the faults gone: every replica serves head, proven. The matrix of what happens is in conftest.py: lost replies, outages, flipped and
truncated reads, delays, skewed clocks, a trainer, agents and engines killed anywhere, flipped live bits, pins, suspensions, vetoes,
anchors, skip deltas and retention, all at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

SEEDS = int(os.environ.get("SYNCLINE_SEEDS", "20"))
EVENTS = int(os.environ.get("SYNCLINE_EVENTS", "500"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_fleet_never_lies_and_converges_when_the_faults_end(fleet_of: Callable[[int], Any], seed: int) -> None:
    fleet = fleet_of(seed)
    fleet.run(EVENTS)
    assert fleet.settle() > 0


def test_a_seed_replays_the_same_run(fleet_of: Callable[[int], Any]) -> None:
    first, second = fleet_of(3), fleet_of(3)
    for fleet in (first, second):
        fleet.run(300)
    assert first.trace.hexdigest() == second.trace.hexdigest()


def test_the_runs_meet_what_they_are_meant_to_meet(fleet_of: Callable[[int], Any]) -> None:
    """Otherwise the invariants would hold for want of trouble."""
    fleet = fleet_of(9)
    wanted = {"published", "trainer killed", "kept", "collected", "vetoed", "engine killed", "bit flipped"}
    fleet.run(3000)
    for _ in range(8):  # a sweep seldom gets far in such weather: when one does is a matter of luck
        if not wanted <= fleet.counts.keys():
            fleet.run(1000)
    assert wanted <= fleet.counts.keys()
    assert sum(1 for what in fleet.counts if what.startswith("killed at")) >= 5
    fleet.settle()
