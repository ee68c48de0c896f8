"""What a store holds, told to whoever asked for a run that is not there."""

from __future__ import annotations

import random

from syncline.chain.runs import PLACES_LOOKED_AT, RUNS_NAMED, runs_held
from syncline.clock import ManualClock
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.memory import MemoryStore


def holding(*keys: str) -> MemoryStore:
    store = MemoryStore(ManualClock())
    for key in keys:
        store.put(key, b"{}")
    return store


def test_runs_are_named_in_order_and_nothing_else_is() -> None:
    store = holding(
        "ab/run.json", "ab/main/head", "ab-x/run.json", "ab0/run.json", "notes/a", "readme.txt", "Z/run.json"
    )
    assert "it holds ab-x, ab, ab0" == runs_held(store)
    assert "it holds no run" == runs_held(holding("notes/a"))


def test_only_so_many_are_named_and_looked_for() -> None:
    runs = [f"r{n:03d}" for n in range(RUNS_NAMED + 1)]
    many = holding(*(f"{run}/run.json" for run in runs))
    assert f"it holds {', '.join(runs[:-1])} and more" == runs_held(many)
    assert "it holds no run" == runs_held(holding(*(f"a{n:03d}" for n in range(PLACES_LOOKED_AT)), "run/run.json"))


def test_a_key_pair_that_may_not_list_is_told() -> None:
    clock = ManualClock()
    plan = ScriptedFaults([("list_after", "", Fault(FaultKind.DENIED))])
    store = FaultyStore(holding("a/run.json"), plan, clock=clock, rng=random.Random(0))
    assert "this key pair may not list what it holds" == runs_held(store)
