"""Going back: to a pinned version by undo, from memory or from the disk, and away from a version that is vetoed."""

from __future__ import annotations

from typing import Any

import pytest

from syncline.versions import Policy
from syncline_agent.engine import CommitResult
from syncline_agent.status import ApplyPath, Phase
from syncline_distributor.vetoes import mark_bad, unmark


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


@pytest.mark.parametrize("phase", [Phase.FETCH, Phase.COMMIT])
def test_a_version_vetoed_while_it_is_fetched_or_staged_is_never_served(world: Any, phase: Phase) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.publish()
    world.run(replica, lambda s: s.phase is phase)
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
