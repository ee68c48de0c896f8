"""A mirror beside the origin: it is read first, damaged or missing copies in it harm nobody, and how far it is behind is seen."""

from __future__ import annotations

import random
from typing import Any

import pytest

from syncline.clock import ManualClock
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.keys import RunKeys
from syncline.store.memory import MemoryStore
from syncline.wire.records import HeadRecord
from syncline_agent.mirrors import EVERY_SECONDS
from syncline_distributor.vetoes import mark_bad

KEYS = RunKeys("run").view()


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


def test_a_mirror_is_read_first_and_the_origin_when_it_fails(world: Any) -> None:
    world.publish()
    mirror = MemoryStore(ManualClock())
    for info in world.store.list_after(""):
        mirror.put(info.key, world.store.get(info.key, max_bytes=1 << 30).data)
    replica = world.replica(stores={"mirror": mirror, "origin": world.store})
    world.follow(replica, 1)
    world.publish()
    for info in world.store.list_after(""):
        if info.key != KEYS.head:
            mirror.put(info.key, world.store.get(info.key, max_bytes=1 << 30).data)
    mirror.put(KEYS.head, world.store.get(KEYS.head, max_bytes=1 << 20).data)
    status = world.follow(replica, 2)
    assert {"mirror"} == set(status.bytes_by_source)
    world.publish()
    mirror.put(KEYS.head, world.store.get(KEYS.head, max_bytes=1 << 20).data)
    status = world.follow(replica, 3)
    assert {"mirror", "origin"} == set(status.bytes_by_source)


def test_a_mirror_that_lags_takes_no_replica_back(world: Any) -> None:
    world.publish()
    mirror = MemoryStore(ManualClock())
    replica = world.replica(stores={"mirror": mirror, "origin": world.store})
    world.publish(2)
    world.follow(replica, 3)

    def sync(*, upto: int) -> None:
        for info in list(world.store.list_after("")):
            if "/versions/" not in info.key or info.key <= KEYS.version(upto):
                mirror.put(info.key, world.store.get(info.key, max_bytes=1 << 30).data)
        mirror.put(KEYS.head, HeadRecord(lineage=world.reader.run_record().lineage, version=upto, epoch=1).encode())

    sync(upto=2)
    replica.restart_agent()
    status = world.run(replica, lambda s: s.error is not None)
    assert "head is version 2, behind 3" in status.error
    assert (True, None, 0) == (status.in_service, status.target, status.lag_versions)
    for _ in range(30):
        world.pass_time(replica.node.follower.tick())
    assert 3 == replica.serving.version
    world.publish()
    sync(upto=4)
    assert None is world.follow(replica, 4).error


def test_a_node_joins_by_what_only_the_origin_holds_while_its_mirror_is_empty(world: Any) -> None:
    world.publish(3)
    replica = world.replica(stores={"mirror": MemoryStore(ManualClock()), "origin": world.store})
    world.follow(replica, 3)


def test_a_veto_at_the_origin_counts_though_the_mirror_does_not_have_it_and_outlives_an_outage(world: Any) -> None:
    world.publish(2)
    mirror = MemoryStore(ManualClock())
    for info in list(world.store.list_after("")):
        mirror.put(info.key, world.store.get(info.key, max_bytes=1 << 30).data)
    mark_bad(world.reader, 2, "loss is NaN", clock=world.clock)
    origin = world.scripted()
    replica = world.replica(stores={"mirror": mirror, "origin": origin})
    world.follow(replica, 1)
    origin._plan = ScriptedFaults([("list_after", "vetoes", Fault(FaultKind.UNAVAILABLE))] * 100)
    for _ in range(60):
        world.pass_time(replica.node.follower.tick())
    assert 1 == replica.serving.version
