"""What an agent knows of how far it is behind, and for how long it has not looked: never less than may be true."""

from __future__ import annotations

import random
from typing import Any

import pytest

from syncline.clock import ManualClock
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.keys import RunKeys
from syncline.store.memory import MemoryStore
from syncline.wire.records import HeadRecord
from syncline_agent.heartbeat import StoreTime
from syncline_agent.lag import Lag
from syncline_agent.policy import Target
from syncline_agent.status import Phase

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


def test_head_is_read_beside_a_phase_that_takes_long_and_only_then(world: Any) -> None:
    names = ("newest_seen", "head_age_seconds", "target")
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.publish()
    world.run(replica, lambda s: s.phase is Phase.FETCH)
    watch = replica.node.head_watch
    watch.tick()
    newest, age, target = said(replica, *names)
    assert (None, 2) == (newest, target)
    world.publish()
    world.pass_time(60.0)  # the fetch takes that long
    assert [None, age + 60.0, 2] == said(replica, *names)
    watch.tick()
    assert [3, 0.0, 2] == said(replica, *names)
    world.pass_time(4.0)
    assert [3, 4.0, 2] == said(replica, *names)
    world.follow(replica, 3)
    assert None is said(replica, *names)[0]

    # On the newest version, while the follower does not come to look: what was seen beside it bounds the lag
    world.pass_time(60.0)
    watch.tick()
    world.pass_time(2.0)
    assert [3, 2.0, 2.0] == said(replica, "newest_seen", "head_age_seconds", "lag_seconds_most")
    replica.node.reporter.say(lineage="of another training")
    assert None is said(replica, *names)[0]


def test_a_store_that_answers_late_and_in_whole_seconds_does_not_make_a_version_younger() -> None:
    clock = ManualClock(1000.0)
    time = StoreTime(clock)
    assert (None, None) == (time.now(), time.latest())
    ahead = 500.9  # what the store's clock is ahead of this one
    began = clock.monotonic()
    written = began + ahead
    clock.advance(7.0)  # until the write, tried again, is acknowledged
    time.saw(float(int(written)), since=began)
    clock.advance(60.0)
    now, latest = time.now(), time.latest()
    assert now is not None and latest is not None
    assert now < clock.monotonic() + ahead <= latest

    lag = Lag(clock, time)
    lag.behind(2, float(int(written + 10.0)))
    assert (lag.most() or 0.0) >= 57.0 > lag.seconds()


@pytest.mark.parametrize("seed", range(4))
def test_no_lag_is_ever_said_to_be_less_than_it_is_whatever_comes_in_whatever_order(world: Any, seed: int) -> None:
    chance = random.Random(seed)
    committed: dict[int, float] = {}

    def publish() -> None:
        committed[world.publish()] = world.store_clock.now()

    publish()
    store = faulty(world)
    replica = world.replica(stores={"origin": store}, consumers=world.store)
    world.follow(replica, 1)
    told = 0
    for _ in range(120):
        turn = chance.random()
        if turn < 0.2:
            publish()
        elif turn < 0.3:
            store._plan = ScriptedFaults(SILENT[:: 1 + 20 * chance.randrange(2)])
        elif turn < 0.45:
            store._plan = ScriptedFaults([])
        elif turn < 0.55:
            world.aim(replica, suspend=chance.random() < 0.5)
        elif turn < 0.58:
            replica.restart_agent()
            world.run(replica, lambda s: s.in_service or s.failures > 0)
        else:
            world.pass_time(chance.choice([0.0, 0.1, 3.0, 30.0]))
        world.pass_time(replica.node.follower.tick())
        replica.node.heart.tick()
        if chance.random() < 0.5:
            world.pass_time(chance.choice([0.0, 20.0]))
            replica.node.head_watch.tick()
        status = replica.node.reporter.read()
        most, age, newest = said(replica, "lag_seconds_most", "head_age_seconds", "newest_seen")
        if status.applied is None or status.target is None:
            continue
        now = world.store_clock.now()
        missing = sorted(version for version in committed if version > status.applied.version)
        if most is not None and missing:
            told += 1
            assert now - committed[missing[0]] <= most + 0.001
        if age is not None:
            seen = [version for version in missing if committed[version] < now - age - 0.001]
            assert len(seen) <= max(abs(status.target - status.applied.version), (newest or 0) - status.applied.version)
    assert told > 10
