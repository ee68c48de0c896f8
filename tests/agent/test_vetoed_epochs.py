"""A trainer that starts again commits an epoch on head; where head was marked bad, a fleet must not go to it by that."""

from __future__ import annotations

from typing import Any

from syncline_distributor.vetoes import mark_bad, unmark


def restarted(world: Any) -> None:
    world.publisher = world.new_publisher()
    world.publisher.open()


def stays(world: Any, replica: Any, version: int) -> None:
    for _ in range(30):
        world.pass_time(replica.node.follower.tick())
        assert version == replica.serving.version


def test_a_mark_outlives_the_writers_restart(world: Any) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    world.publish()
    mark_bad(world.reader, 3, "reward fell", clock=world.clock)
    restarted(world)
    stays(world, replica, 2)
    joined = world.replica("node-1")
    world.follow(joined, 2)
    stays(world, joined, 2)
    world.follow(replica, world.publish())
    assert 5 == replica.serving.version


def test_a_mark_below_an_epoch_that_is_served_already_takes_the_fleet_back_until_it_is_undone(world: Any) -> None:
    world.publish(3)
    replica = world.replica()
    restarted(world)
    world.follow(replica, 4)
    mark_bad(world.reader, 3, "reward fell", clock=world.clock)
    world.follow(replica, 2)
    stays(world, replica, 2)
    unmark(world.reader, 3)
    world.follow(replica, 4)
