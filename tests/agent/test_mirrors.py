"""A mirror beside the origin: damaged copies in it harm nobody, and how far it is behind is seen."""

from __future__ import annotations

import random
from typing import Any

import pytest

from syncline.clock import ManualClock
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.memory import MemoryStore
from syncline_agent.mirrors import EVERY_SECONDS


def mirrored(world: Any, mirror: MemoryStore, *, flip: str | None = None) -> None:
    """Bring the mirror up to the origin; objects whose key holds `flip` lose a bit on the way."""
    for info in world.store.list_after(""):
        data = world.store.get(info.key, max_bytes=1 << 30).data
        if flip is not None and flip in info.key:
            data = data[:-1] + bytes([data[-1] ^ 1])
        mirror.put(info.key, data)


@pytest.mark.parametrize("part", ["/versions/", "/chunks/", "/anchors/", "run.json", ""])
def test_a_region_joins_and_follows_whatever_its_mirror_holds_damaged(world: Any, part: str) -> None:
    world.publish()
    mirror = MemoryStore(ManualClock())
    mirrored(world, mirror, flip=part)
    replica = world.replica(stores={"mirror": mirror, "origin": world.store})
    world.follow(replica, 1)
    world.publish()
    mirrored(world, mirror, flip=part)
    status = world.follow(replica, 2)
    assert None is status.error
    if part != "/anchors/":
        assert status.retries["corrupt"] > 0


def test_how_far_each_source_is_stands_in_status_and_metrics(world: Any) -> None:
    world.publish()
    mirror = MemoryStore(ManualClock())
    mirrored(world, mirror)
    replica = world.replica(stores={"mirror": mirror, "origin": world.store})
    world.follow(replica, 1)
    world.publish()
    world.publish()
    node = replica.node
    assert EVERY_SECONDS == node.source_heads.tick()
    assert {"mirror": 1, "origin": 3} == node.reporter.status.to_json(heartbeats="on")["source_heads"]
    gauge = node.reporter._metrics.source_head
    assert {("run", "main", "default", "mirror"): 1.0, ("run", "main", "default", "origin"): 3.0} == {
        labels: child._value.get() for labels, child in gauge._metrics.items()
    }


def test_a_source_that_does_not_say_is_told_from_one_that_holds_nothing(world: Any) -> None:
    world.publish()
    plan = ScriptedFaults([("get", "head", Fault(FaultKind.UNAVAILABLE))] * 100)
    down = FaultyStore(world.store, plan, clock=world.clock, rng=random.Random(1))
    empty = MemoryStore(ManualClock())
    replica = world.replica(stores={"mirror": empty, "mirror2": down, "origin": world.store})
    world.follow(replica, 1)
    replica.node.source_heads.tick()
    assert {"mirror": 0, "mirror2": None, "origin": 1} == replica.node.reporter.status.source_heads


def test_with_one_source_nothing_is_compared(world: Any) -> None:
    world.publish()
    replica = world.replica()
    assert replica.node.source_heads is None
    assert {} == world.follow(replica, 1).source_heads
