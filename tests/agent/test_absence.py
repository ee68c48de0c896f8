"""A node whose engine does not come: the checkpoint that it waits for, and cannot load, goes on without it."""

from __future__ import annotations

from typing import Any

import numpy as np


def wait_boot(world: Any, replica: Any, version: int, *, seconds: float) -> float:
    """Tick without an engine until the disk holds that version; how long it took."""
    began = world.clock.now()
    while world.clock.now() < began + seconds:
        if replica.node.reporter.status.boot == version:
            return world.clock.now() - began
        world.pass_time(replica.node.follower.tick())
        replica.node.heart.tick()
    raise AssertionError(f"not within {seconds} s: {replica.node.reporter.status}")


def test_a_checkpoint_of_other_tensors_is_brought_on_though_no_engine_has_come(world: Any) -> None:
    world.weights["extra.weight"] = np.zeros((4, 4), np.uint16)
    world.publish()
    replica = world.replica()
    wait_boot(world, replica, 1, seconds=60)
    del world.weights["extra.weight"]  # no engine could load it: the trainer mends it
    world.publish()
    wait_boot(world, replica, 2, seconds=60)
    world.follow(replica, 2)
    world.publish()
    world.follow(replica, 3)


def test_one_of_equal_tensors_waits_long_and_then_goes_on_too(world: Any) -> None:
    world.publish()
    replica = world.replica()
    wait_boot(world, replica, 1, seconds=60)
    world.publish()
    patience = replica.settings.follow.advance_seconds
    took = wait_boot(world, replica, 2, seconds=2 * patience)
    assert patience - 5 < took < patience + 60
    world.follow(replica, 2)


def test_a_way_back_is_taken_without_an_engine_where_the_tensors_are_others(world: Any) -> None:
    world.publish(2)
    world.weights["extra.weight"] = np.zeros((4, 4), np.uint16)
    world.publish()
    replica = world.replica()
    wait_boot(world, replica, 3, seconds=60)
    world.aim(replica, pinned=2)
    wait_boot(world, replica, 2, seconds=60)
    world.follow(replica, 2)


def test_a_suspended_node_s_checkpoint_stays_as_it_is(world: Any) -> None:
    world.publish()
    replica = world.replica()
    wait_boot(world, replica, 1, seconds=60)
    world.aim(replica, suspend=True)
    world.weights["extra.weight"] = np.zeros((4, 4), np.uint16)
    world.publish()
    for _ in range(50):
        world.pass_time(replica.node.follower.tick())
    assert 1 == replica.node.reporter.status.boot
    world.aim(replica)
    wait_boot(world, replica, 2, seconds=60)
