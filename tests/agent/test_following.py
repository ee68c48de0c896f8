"""Following a run: join, deltas, pins, vetoes, holes, corrupt chunks, outages — and what is served is always what was published."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline.checkpoint import locks
from syncline.checkpoint.marker import OwnFiles
from syncline.clock import ManualClock
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.keys import RunKeys
from syncline.store.memory import MemoryStore
from syncline.versions import Policy
from syncline.wire.records import HeadRecord, LeaseRecord
from syncline_agent import status as documented
from syncline_agent.engine import CommitResult
from syncline_agent.settings import FollowSettings
from syncline_agent.status import ApplyPath, Phase
from syncline_distributor.vetoes import mark_bad, unmark

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


def scripted(world: Any, *script: tuple[str, str, FaultKind]) -> FaultyStore:
    faults = ScriptedFaults([(operation, part, Fault(kind)) for operation, part, kind in script])
    return FaultyStore(world.store, faults, clock=world.clock, rng=random.Random(1))


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


def test_pinned_to_an_older_version_and_back_by_undo(world: Any) -> None:
    world.publish(3)
    replica = world.replica()
    world.follow(replica, 3)
    world.publish()
    world.follow(replica, 4)
    world.aim(replica, pinned=3)
    status = world.follow(replica, 3)
    assert (ApplyPath.UNDO, 3) == (status.apply_path, status.pinned)
    world.aim(replica)
    assert ApplyPath.DELTA == world.follow(replica, 4).apply_path


def test_a_way_back_by_undo_keeps_the_policy_of_the_target(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish(1)
    replica = world.replica()
    world.follow(replica, 1)
    world.publish()
    world.follow(replica, 2)
    met: list[Policy] = []
    undo = replica.slot.undo

    def note(version: int, policy: Policy = Policy.KEEP) -> CommitResult:
        met.append(policy)
        return undo(version, policy)

    monkeypatch.setattr(replica.slot, "undo", note)
    world.aim(replica, pinned=1, policy=Policy.DRAIN)
    assert ApplyPath.UNDO == world.follow(replica, 1).apply_path
    assert [Policy.DRAIN] == met


def test_pinned_far_back_is_staged_from_a_second_checkpoint(world: Any) -> None:
    world.publish(6)
    replica = world.replica()
    world.follow(replica, 6)
    world.aim(replica, pinned=2)
    status = world.follow(replica, 2)
    assert ApplyPath.CHECKPOINT == status.apply_path
    assert 6 == status.boot
    assert not replica.node.checkpoint.back.exists()
    world.aim(replica, pinned=5)
    assert ApplyPath.DELTA == world.follow(replica, 5).apply_path
    world.aim(replica)
    world.follow(replica, 6)


def test_going_back_to_a_version_after_the_disks_uses_the_disk(world: Any) -> None:
    world.publish(1)
    replica = world.replica()
    world.follow(replica, 1)
    for _ in range(3):
        world.follow(replica, world.publish())
    world.aim(replica, pinned=2)
    status = world.follow(replica, 2)
    assert (ApplyPath.CHECKPOINT, 2) == (status.apply_path, status.boot)


def test_pinned_to_a_version_that_does_not_exist_yet_waits_and_says_so(world: Any) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    world.aim(replica, pinned=4)
    status = world.run(replica, lambda s: s.error is not None)
    assert "not committed yet" in status.error
    assert status.in_service
    world.publish(3)
    world.follow(replica, 4)


def test_a_vetoed_version_is_skipped(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.publish(2)
    mark_bad(world.reader, 3, "reward fell", clock=world.clock)
    world.follow(replica, 2)
    world.publish()
    status = world.follow(replica, 4)
    assert status.last_sync is not None
    assert 2 == status.last_sync.came_from


def test_a_version_vetoed_while_it_is_served_is_left(world: Any) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    world.follow(replica, world.publish())
    mark_bad(world.reader, 3, "reward fell", clock=world.clock)
    assert ApplyPath.UNDO == world.follow(replica, 2).apply_path
    unmark(world.reader, 3)
    world.follow(replica, 3)


def test_a_version_vetoed_while_its_chunks_are_fetched_is_never_served(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.publish()
    world.run(replica, lambda s: s.phase is Phase.FETCH)
    mark_bad(world.reader, 2, "reward fell", clock=world.clock)
    for _ in range(10):
        world.pass_time(replica.node.follower.tick())
        assert 1 == replica.serving.version


def test_a_version_vetoed_while_it_is_staged_is_never_served(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.publish()
    world.run(replica, lambda s: s.phase is Phase.COMMIT)
    mark_bad(world.reader, 2, "reward fell", clock=world.clock)
    for _ in range(10):
        world.pass_time(replica.node.follower.tick())
        assert 1 == replica.serving.version
    assert 0 == replica.node.reporter.status.failures
    world.follow(replica, world.publish())


def test_a_version_vetoed_on_the_way_back_to_it_is_not_undone_to(world: Any) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    world.follow(replica, world.publish())
    world.aim(replica, pinned=2)
    world.run(replica, lambda s: s.phase is Phase.COMMIT)
    mark_bad(world.reader, 2, "reward fell", clock=world.clock)
    served: set[int] = set()
    for _ in range(20):
        world.pass_time(replica.node.follower.tick())
        served.add(replica.serving.version)
    assert {3, 1} == served


def test_a_staged_version_is_committed_while_the_store_is_silent(world: Any) -> None:
    world.publish()
    faulty = scripted(world)
    replica = world.replica(stores={"origin": faulty}, consumers=world.store)
    world.follow(replica, 1)
    world.publish()
    world.run(replica, lambda s: s.phase is Phase.COMMIT)
    faulty._plan = ScriptedFaults([("list_after", "vetoes", Fault(FaultKind.UNAVAILABLE))])
    replica.node.follower.tick()
    assert 2 == replica.serving.version


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


def test_a_missing_link_is_planned_around(world: Any) -> None:
    """The delta to 3 is gone; an anchor at 3 leads over the hole."""
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    world.publish(2)
    commit_anchor = world.anchor(3)
    for ref in world.reader.manifest(3).chunks:
        world.store.delete(KEYS.chunk(ref.blake3))
    status = world.run(replica, lambda s: s.failures >= 2)
    assert status.in_service
    assert "no way" in status.error or "is in none of" in status.error
    commit_anchor()
    status = world.follow(replica, 4)
    assert ApplyPath.CHECKPOINT == status.apply_path


def test_a_corrupt_chunk_is_quarantined_and_fetched_again(world: Any) -> None:
    world.publish()
    faulty = scripted(world, ("get_range_into", "chunks/", FaultKind.FLIPPED))
    replica = world.replica(stores={"origin": faulty})
    world.follow(replica, 1)
    world.store_faults = faulty
    world.publish()
    world.follow(replica, 2)


def test_a_chunk_file_that_rots_before_it_is_staged_is_fetched_again(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.publish()
    world.run(replica, lambda s: s.phase is Phase.STAGE)
    path = replica.node.files.chunk(world.reader.manifest(2).chunks[0].blake3)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    status = world.follow(replica, 2)
    assert 1 == replica.node.files.quarantined
    assert 1 == status.retries["quarantined"]


@pytest.mark.parametrize("operation", ["get", "list_after", "head", "get_range_into"])
def test_no_outage_stops_serving_and_lag_grows_meanwhile(world: Any, operation: str) -> None:
    world.publish()
    down: list[tuple[str, str, FaultKind]] = []
    faulty = scripted(world, *down)
    replica = world.replica(stores={"origin": faulty}, consumers=world.store)
    world.follow(replica, 1)
    world.publish()
    plan = ScriptedFaults([(operation, "", Fault(FaultKind.UNAVAILABLE))] * 12)
    faulty._plan = plan
    lags: list[float] = []
    for _ in range(12):
        world.pass_time(replica.node.follower.tick())
        assert replica.serving is not None
        lags.append(replica.node.reporter.status.lag_seconds)
    if operation == "get":
        assert lags == sorted(lags)
        assert lags[-1] > 3
    faulty._plan = ScriptedFaults([])
    world.follow(replica, 2)


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


def test_a_reader_key_turns_heartbeats_off_and_the_node_follows_all_the_same(world: Any) -> None:
    world.publish()
    denied = FaultyStore(
        world.store,
        ScriptedFaults([("put", "", Fault(FaultKind.DENIED))] * 1000),
        clock=world.clock,
        rng=random.Random(1),
    )
    replica = world.replica(consumers=denied)
    world.follow(replica, 1)
    assert replica.node.heart.state.startswith("off:")
    assert "off:" in replica.node.reporter.status.to_json(heartbeats=replica.node.heart.state)["heartbeats"]
    world.publish()
    world.follow(replica, 2)


def test_the_checkpoint_follows_in_the_background_and_chunks_are_pruned(world: Any) -> None:
    world.publish()
    replica = world.replica(follow=FollowSettings(advance_every=4))
    world.follow(replica, 1)
    counts: list[int] = []
    for _ in range(12):
        world.follow(replica, world.publish())
        replica.node.background.tick()
        counts.append(len(list((replica.settings.node_dir / "chunks").iterdir())))
    assert 13 - 4 <= replica.node.checkpoint.version(world.reader.run_record().lineage, "main")
    assert max(counts) <= 5
    replica.stop_engine()
    assert replica.start_engine()
    world.follow(replica, 13)


def test_the_advance_fetches_again_what_the_budget_did_not_keep(world: Any) -> None:
    world.publish()
    replica = world.replica(follow=FollowSettings(advance_every=4, keep_chunk_bytes=0))
    world.follow(replica, 1)
    for _ in range(4):
        world.follow(replica, world.publish())
    assert [] == list((replica.settings.node_dir / "chunks").iterdir())
    replica.node.background.tick()
    assert None is replica.node.background.error
    assert 5 == replica.node.checkpoint.version(world.reader.run_record().lineage, "main")


def test_a_checkpoint_that_rotted_on_disk_is_made_anew_by_the_background(world: Any) -> None:
    world.publish(2)
    replica = world.replica(follow=FollowSettings(advance_every=1))
    world.follow(replica, 2)
    shard = next(replica.node.checkpoint.path.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-2000:] = bytes(byte ^ 0x41 for byte in data[-2000:])
    shard.write_bytes(data)
    world.follow(replica, world.publish())
    replica.node.background.tick()
    assert "stays at version 2" in replica.node.background.error
    assert None is replica.node.checkpoint.version(world.reader.run_record().lineage, "main")
    assert 3 == replica.serving.version
    replica.node.background.tick()
    assert None is replica.node.background.error
    replica.stop_engine()
    assert replica.start_engine()
    assert 3 == world.follow(replica, 3).boot


def test_a_node_says_what_it_waits_for_while_a_stopped_process_holds_its_checkpoint(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent was killed while it patched, an engine that starts mends it and is stopped: nothing may hang on that."""
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.05)
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    replica.restart_agent()
    own = OwnFiles(replica.node.checkpoint.path)
    with locks.exclusive(own.lock):
        own.journal.write_bytes(b"torn")
        status = world.run(replica, lambda s: s.failures == 2)
        assert f"{replica.node.checkpoint.path} is being read or written by another process" in status.error
        assert 2 == replica.serving.version
    world.publish()
    assert 2 == world.follow(replica, 3).boot


def test_a_disk_that_refuses_the_advance_is_said_and_tried_again(world: Any) -> None:
    world.publish()
    replica = world.replica(follow=FollowSettings(advance_every=1))
    world.follow(replica, 1)
    world.follow(replica, world.publish())
    tables = replica.node.files.root / "checkpoint/.syncline/lock"
    tables.unlink()
    tables.mkdir()
    assert replica.node.background.tick() > 1.0
    assert "stays at version 1" in replica.node.background.error
    tables.rmdir()
    replica.node.background.tick()
    assert 2 == replica.node.checkpoint.version(world.reader.run_record().lineage, "main")


def test_other_tensors_are_refused_by_name_and_wait_on_disk_for_the_next_start(world: Any) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    world.weights["extra.weight"] = np.zeros((4, 4), np.uint16)
    world.publish()
    status = world.run(replica, lambda s: s.failures >= 1)
    assert "has other tensors" in status.error
    assert (2, True) == (replica.serving.version, status.in_service)
    assert 3 == world.run(replica, lambda s: s.boot == 3).boot
    replica.stop_engine()
    world.follow(replica, 3)
    world.publish()
    world.follow(replica, 4)


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


def test_a_checkpoint_that_a_failed_rebuild_left_empty_is_not_believed_to_be_there(world: Any) -> None:
    """The rebuild drops the old version before the new one is whole; an engine that starts then must find a node that joins."""
    world.publish(2)
    faulty = scripted(world)
    replica = world.replica(stores={"origin": faulty}, consumers=world.store)
    world.follow(replica, 2)
    world.weights["extra.weight"] = np.zeros((4, 4), np.uint16)
    world.publish()
    faulty._plan = ScriptedFaults([("get_range_into", "anchors/", Fault(FaultKind.UNAVAILABLE))] * 2)
    world.run(replica, lambda s: s.failures >= 1)
    assert None is replica.node.reporter.status.boot
    replica.stop_engine()
    world.follow(replica, 3)


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


def test_a_folder_that_cannot_be_written_is_said_in_the_status(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    chunks = replica.node.files.root / "chunks"
    chunks.rename(chunks.with_name("away"))
    chunks.write_text("in the way")
    world.publish()
    status = world.run(replica, lambda s: s.failures >= 2)
    assert str(chunks) in status.error
    assert 1 == replica.serving.version
    chunks.unlink()
    chunks.with_name("away").rename(chunks)
    world.follow(replica, 2)


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
    origin = scripted(world)
    replica = world.replica(stores={"mirror": mirror, "origin": origin})
    world.follow(replica, 1)
    origin._plan = ScriptedFaults([("list_after", "vetoes", Fault(FaultKind.UNAVAILABLE))] * 100)
    for _ in range(60):
        world.pass_time(replica.node.follower.tick())
    assert 1 == replica.serving.version
