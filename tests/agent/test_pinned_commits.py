"""The follower and the pins of a gateway: it stages meanwhile, commits when they are over, and lets none starve it."""

from __future__ import annotations

from typing import Any

from syncline_agent.lane.pins import MOST_PIN_S
from syncline_agent.status import Phase


def test_a_commit_waits_for_a_pin_with_everything_staged_and_comes_when_it_is_given_back(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    pin = replica.node.pins.grant(30)
    assert pin is not None
    world.publish()
    world.run(replica, lambda status: status.phase is Phase.COMMIT)
    for _ in range(20):
        replica.node.follower.tick()
    assert (Phase.COMMIT, 1) == (replica.node.reporter.status.phase, replica.serving.version)
    assert replica.node.pins.grant(30) is None
    replica.node.pins.give_back(pin)
    world.follow(replica, 2)
    assert replica.node.pins.grant(30) is not None


def test_a_pin_that_is_never_given_back_delays_a_commit_for_a_bounded_time(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    assert replica.node.pins.grant(10 * MOST_PIN_S) is not None
    world.publish()
    began = world.clock.monotonic()
    world.follow(replica, 2)
    assert began + MOST_PIN_S <= world.clock.monotonic() < began + MOST_PIN_S + 10


def test_a_target_that_turns_away_from_a_commit_that_waits_wants_it_no_more(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    assert replica.node.pins.grant(30) is not None
    world.publish()
    world.run(replica, lambda status: status.phase is Phase.COMMIT)
    world.aim(replica, pinned=1)
    world.run(replica, lambda status: status.phase is Phase.IDLE and status.pinned == 1)
    world.pass_time(2)
    assert replica.node.pins.grant(30) is not None
    assert 1 == replica.serving.version
