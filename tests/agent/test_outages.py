"""A store that fails, is silent or has holes, and chunks that are damaged: the old version is served, and the node follows on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.keys import RunKeys
from syncline_agent.status import ApplyPath, Phase

KEYS = RunKeys("run").view()


def test_a_staged_version_is_committed_while_the_store_is_silent(world: Any) -> None:
    world.publish()
    faulty = world.scripted()
    replica = world.replica(stores={"origin": faulty}, consumers=world.store)
    world.follow(replica, 1)
    world.publish()
    world.run(replica, lambda s: s.phase is Phase.COMMIT)
    faulty._plan = ScriptedFaults([("list_after", "vetoes", Fault(FaultKind.UNAVAILABLE))])
    replica.node.follower.tick()
    assert 2 == replica.serving.version


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
    faulty = world.scripted(("get_range_into", "chunks/", FaultKind.FLIPPED))
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
    faulty = world.scripted(*down)
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
