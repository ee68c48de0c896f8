"""Following a run: join, deltas, suspension, what is refused — and what is served is always what was published."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from syncline.store.keys import RunKeys
from syncline.wire.records import LeaseRecord
from syncline_agent import status as documented
from syncline_agent.status import ApplyPath, Phase

KEYS = RunKeys("run").view()


class Counting:
    """A store that counts calls, and notes the order of some."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(key: str = "", *args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, key))
            return found(key, *args, **kwargs)

        return call


def test_a_node_joins_an_engine_starts_from_its_checkpoint_and_follows(world: Any) -> None:
    world.publish(3)
    replica = world.replica()
    world.follow(replica, 3)
    assert 3 == replica.node.reporter.status.boot
    world.publish()
    status = world.follow(replica, 4)
    assert ApplyPath.DELTA == status.apply_path
    assert status.last_sync is not None
    assert (4, 3) == (status.last_sync.version, status.last_sync.came_from)
    assert {"plan", "fetch", "stage", "commit"} == set(status.last_sync.seconds)
    assert 15 == status.last_sync.changed


def test_a_node_that_starts_before_the_run_waits_for_its_first_version(world: Any) -> None:
    replica = world.replica()
    status = world.run(replica, lambda s: s.error is not None)
    assert "does not exist" in status.error
    world.publish()
    world.follow(replica, 1)


def test_several_versions_go_into_one_commit(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.publish(6)
    status = world.follow(replica, 7)
    assert status.last_sync is not None
    assert (7, 1) == (status.last_sync.version, status.last_sync.came_from)


def test_versions_that_come_during_the_fetch_go_into_the_same_commit(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.publish()
    world.run(replica, lambda s: s.phase is Phase.FETCH)
    assert 2 == replica.node.reporter.status.target
    world.publish(2)
    status = world.follow(replica, 4)
    assert status.last_sync is not None
    assert 1 == status.last_sync.came_from


def test_a_trainer_that_publishes_without_pause_does_not_starve_the_engine(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    newest, applied = 1, set[int]()
    for _ in range(40):
        newest = world.publish()
        world.clock.advance(replica.node.follower.tick())
        applied.add(replica.serving.version)
    assert len(applied) >= 5
    world.follow(replica, newest)


def test_a_joiner_takes_its_lease_before_it_lists_and_lets_go_when_its_heartbeat_stands(world: Any) -> None:
    world.publish(2)
    counting = Counting(world.store)
    replica = world.replica(stores={"origin": counting})
    world.follow(replica, 2)
    put = next(i for i, (call, key) in enumerate(counting.calls) if call == "put" and key.startswith(KEYS.leases))
    anchors = next(i for i, (call, key) in enumerate(counting.calls) if call == "list_after" and key == KEYS.anchors)
    gone = next(i for i, (call, key) in enumerate(counting.calls) if call == "delete" and key.startswith(KEYS.leases))
    beats = [i for i, (call, key) in enumerate(counting.calls) if call == "put" and key.startswith(KEYS.consumers)]
    assert put < anchors < gone
    assert any(anchors < i < gone for i in beats)


def test_a_joiner_tells_from_which_anchor_it_starts_before_it_fetches_it(world: Any) -> None:
    """A distributor that starts anew meanwhile knows no more than the lease says."""
    world.publish(5)
    world.anchor(4)()
    noting = Counting(world.store)
    replica = world.replica(stores={"origin": noting})
    written: list[tuple[int, int | None]] = []

    def put(key: str, data: bytes) -> str:
        if key.startswith(KEYS.leases):
            written.append((len(noting.calls), LeaseRecord.parse(bytes(data), what=key).version))
        return world.store.put(key, data)

    noting.put = put  # pyright: ignore[reportAttributeAccessIssue]
    world.follow(replica, 5)
    assert [None, 4] == [version for _, version in written]
    fetched = [
        i
        for i, (_, key) in enumerate(noting.calls)
        if key.startswith(f"{KEYS.anchors}{4:012d}/") and ".json" not in key
    ]
    assert fetched[0] >= written[1][0]


def test_an_idle_node_asks_the_store_less_than_once_a_second(world: Any) -> None:
    world.publish(2)
    counting = Counting(world.store)
    replica = world.replica(stores={"origin": counting})
    world.follow(replica, 2)
    counting.calls.clear()
    begin = world.clock.now()
    follower_due = heart_due = background_due = begin
    while world.clock.now() < begin + 1800:
        now = world.clock.now()
        if now >= follower_due:
            follower_due = now + replica.node.follower.tick()
        if now >= heart_due:
            heart_due = now + replica.node.heart.tick()
        if now >= background_due:
            background_due = now + replica.node.background.tick()
        world.pass_time(max(0.001, min(follower_due, heart_due, background_due) - now))
    assert 1.0 >= len(counting.calls) / (world.clock.now() - begin)


def test_a_suspended_node_stays_where_it_is_and_goes_on_later(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.aim(replica, suspend=True)
    world.publish()
    status = world.run(replica, lambda s: s.phase is Phase.SUSPENDED and s.lag_versions == 1)
    for _ in range(20):
        world.pass_time(replica.node.follower.tick())
    assert 1 == replica.serving.version
    assert replica.node.reporter.status.lag_seconds > status.lag_seconds
    world.aim(replica)
    world.follow(replica, 2)


def test_suspending_in_the_middle_of_a_sync_drops_it(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.publish()
    world.run(replica, lambda s: s.phase is Phase.COMMIT)
    world.aim(replica, suspend=True)
    for _ in range(10):
        world.pass_time(replica.node.follower.tick())
    assert 1 == replica.serving.version


def test_the_generation_of_the_target_is_echoed(world: Any) -> None:
    world.publish()
    replica = world.replica()
    assert 1 == world.follow(replica, 1).generation
    world.aim(replica, pinned=1)
    assert world.targets == world.run(replica, lambda s: s.pinned == 1).generation
    replica.settings.target.write_text("{")
    status = world.run(replica, lambda s: s.target_error is not None)
    assert (world.targets, 1) == (status.generation, status.pinned)


def test_a_reused_run_name_is_refused_by_name_and_the_old_version_is_served_on(world: Any, tmp_path: Path) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    for info in list(world.store.list_after("")):
        world.store.delete(info.key)
    world.publisher = world.new_publisher()
    world.publish(3)
    status = world.run(replica, lambda s: s.failures >= 1)
    assert "reused" in status.error
    assert 2 == replica.serving.version
    assert not world.run(replica, lambda s: s.failures >= 2).in_service
    replica.restart_agent()
    status = world.run(replica, lambda s: s.error is not None)
    assert "reused" in status.error
    assert not status.in_service
    replica.stop_engine()
    replica.restart_agent()
    status = world.run(replica, lambda s: s.error is not None)
    assert str(replica.node.checkpoint.path) in status.error


def test_status_is_whole_in_every_phase(world: Any) -> None:
    world.publish()
    replica = world.replica()
    keys = set(json.loads(json.dumps(replica.node.reporter.status.to_json(heartbeats="on"))))
    world.follow(replica, 1)
    world.publish()
    world.follow(replica, 2)
    assert keys == set(json.loads(json.dumps(replica.node.reporter.status.to_json(heartbeats="on"))))
    assert {k for k in keys if k not in (documented.__doc__ or "")} == set()


def test_an_engine_whose_claim_the_manifest_contradicts_is_not_in_service(world: Any) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    honest = replica.live._applied
    for behind in (False, True):
        replica.live._applied = replace(honest, digest="0f" * 16)
        if behind:
            world.publish()
        status = world.run(replica, lambda s: s.failures >= 1)
        assert "restart the engine" in status.error
        assert not status.in_service
        assert not replica.node.heart._record(status, False).proven
        replica.live._applied = honest
        world.follow(replica, 3 if behind else 2)
