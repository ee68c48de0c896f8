"""The checkpoint on the node's disk: advanced in the background, mended where it rotted, waited for where somebody holds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from syncline.checkpoint import locks
from syncline.checkpoint.marker import OwnFiles
from syncline.store.faulty import Fault, FaultKind, ScriptedFaults
from syncline_agent.settings import FollowSettings


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


def test_a_checkpoint_that_a_failed_rebuild_left_empty_is_not_believed_to_be_there(world: Any) -> None:
    """The rebuild drops the old version before the new one is whole; an engine that starts then must find a node that joins."""
    world.publish(2)
    faulty = world.scripted()
    replica = world.replica(stores={"origin": faulty}, consumers=world.store)
    world.follow(replica, 2)
    world.weights["extra.weight"] = np.zeros((4, 4), np.uint16)
    world.publish()
    faulty._plan = ScriptedFaults([("get_range_into", "anchors/", Fault(FaultKind.UNAVAILABLE))] * 2)
    world.run(replica, lambda s: s.failures >= 1)
    assert None is replica.node.reporter.status.boot
    replica.stop_engine()
    world.follow(replica, 3)


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
