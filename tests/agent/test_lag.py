"""What an agent knows of how far it is behind, and for how long it has not looked: never less than may be true."""

from __future__ import annotations

import random
from typing import Any

from syncline.clock import ManualClock
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.keys import RunKeys
from syncline.store.memory import MemoryStore
from syncline.wire.records import HeadRecord
from syncline_agent.policy import Target

SILENT = [(op, "", Fault(FaultKind.UNAVAILABLE)) for op in ("get", "list_after", "head") for _ in range(400)]


def faulty(world: Any, *script: tuple[str, str, Fault]) -> FaultyStore:
    return FaultyStore(world.store, ScriptedFaults(script), clock=world.clock, rng=random.Random(1))


def said(replica: Any, *names: str) -> list[Any]:
    told = replica.node.reporter.read().to_json(heartbeats="on")
    return [told[name] for name in names]


def test_who_has_not_read_head_for_long_may_be_as_far_behind_though_nothing_is_known_to_be_missing(world: Any) -> None:
    world.publish()
    store = faulty(world)
    replica = world.replica(stores={"origin": store}, consumers=world.store)
    world.follow(replica, 1)
    world.run(replica, lambda s: s.head_age == 0.0)
    began = said(replica, "lag_versions", "lag_seconds", "lag_seconds_most", "head_age_seconds")
    world.pass_time(40.0)  # in the middle of a phase, as far as the status knows
    assert began[:2] == said(replica, "lag_versions", "lag_seconds")
    assert [round(number + 40.0, 3) for number in began[2:]] == said(replica, "lag_seconds_most", "head_age_seconds")
    store._plan = ScriptedFaults(SILENT)
    world.publish()
    world.run(replica, lambda s: s.head_age is not None and s.head_age > 90.0)
    most, age = said(replica, "lag_seconds_most", "head_age_seconds")
    assert 90.0 < most == age
    store._plan = ScriptedFaults([])
    world.follow(replica, 2)
    assert max(said(replica, "lag_seconds_most", "head_age_seconds")) < 10.0


def test_what_is_missing_is_older_the_longer_a_phase_takes(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.aim(replica, suspend=True)
    world.publish()
    world.run(replica, lambda s: s.lag_versions == 1 and s.lag_seconds > 0.0)
    before = said(replica, "lag_seconds", "lag_seconds_most")
    world.pass_time(50.0)
    now = said(replica, "lag_seconds", "lag_seconds_most")
    assert [round(number + 50.0, 3) for number in before] == now
    registry = replica.node.reporter._metrics.registry
    labels = {"run": "run", "view": "main", "pool": "default", "node": "node-0"}
    assert now[0] == round(registry.get_sample_value("syncline_lag_seconds", labels), 3)


def test_where_the_store_s_clock_is_not_known_what_is_missing_is_no_older_than_the_last_look_that_missed_nothing(
    world: Any,
) -> None:
    world.publish()
    denied = faulty(world, *[("put", "", Fault(FaultKind.DENIED))] * 4000)
    replica = world.replica(consumers=denied)
    world.follow(replica, 1)
    world.aim(replica, suspend=True)
    world.run(replica, lambda s: s.suspended and s.head_age == 0.0)
    world.publish()
    world.run(replica, lambda s: s.lag_versions == 1)
    world.pass_time(50.0)
    seconds, most = said(replica, "lag_seconds", "lag_seconds_most")
    assert 50.0 <= seconds <= most < 60.0
    replica.restart_agent()  # it has never looked before, so nobody can tell since when the version is there
    status = world.run(replica, lambda s: s.lag_versions == 1)
    assert [None] == said(replica, "lag_seconds_most")
    assert status.head_age is not None


def test_the_version_that_is_pinned_is_not_behind_however_long_the_store_is_silent(world: Any) -> None:
    world.publish(3)
    store = faulty(world)
    replica = world.replica(target=Target("run", pinned=2), stores={"origin": store}, consumers=world.store)
    world.follow(replica, 2)
    store._plan = ScriptedFaults(SILENT)
    world.run(replica, lambda s: s.head_age is not None and s.head_age > 90.0)
    assert [0.0] == said(replica, "lag_seconds_most")


def test_a_mirror_that_shows_less_than_what_is_applied_tells_nothing_of_lag(world: Any) -> None:
    world.publish()
    mirror = MemoryStore(ManualClock())
    replica = world.replica(stores={"mirror": mirror, "origin": world.store})
    world.publish()
    world.follow(replica, 2)
    keys = RunKeys("run").view()
    for info in list(world.store.list_after("")):
        if info.key != keys.version(2):
            mirror.put(info.key, world.store.get(info.key, max_bytes=1 << 30).data)
    lineage = world.reader.run_record().lineage
    mirror.put(keys.head, HeadRecord(lineage=lineage, version=1, epoch=1).encode())
    replica.restart_agent()
    status = world.run(replica, lambda s: s.error is not None and "head is version 1" in s.error)
    assert (True, None) == (status.in_service, status.target)
    assert [None] == said(replica, "lag_seconds_most")
