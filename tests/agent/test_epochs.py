"""What an agent knows of the writer's epoch of what it serves: from the manifest, before anybody can ask."""

from __future__ import annotations

from typing import Any

from syncline_agent.engine import Applied
from syncline_distributor.publisher import Publisher


def known(replica: Any) -> list[int | None]:
    """Of every version up to the one that is served."""
    held = replica.node.reporter.status.applied
    names = [Applied(held.lineage, held.view, version, "", True) for version in range(1, held.version + 1)]
    return [replica.node.epochs.of(name) for name in names]


def test_the_epoch_is_another_after_a_writer_has_taken_over_and_read_again_by_an_agent_that_comes_again(
    world: Any,
) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    assert 1 == known(replica)[-1]
    Publisher(world.store, "run", clock=world.clock).open()
    world.follow(replica, 3)
    assert [1, 2] == known(replica)[1:]
    world.aim(replica, pinned=2)
    world.follow(replica, 2)
    assert 1 == known(replica)[-1]
    replica.restart_agent()
    world.aim(replica, pinned=2, suspend=True)
    world.run(replica, lambda s: s.in_service and s.suspended)
    assert [None, 1] == known(replica)


def test_the_epoch_of_a_version_whose_manifest_was_collected_is_not_known_and_nothing_waits_for_it(world: Any) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    world.publish(2)
    world.aim(replica, suspend=True)
    world.run(replica, lambda s: s.suspended and s.lag_versions == 2)
    world.store.delete(world.reader.keys.version(2))
    replica.restart_agent()
    world.run(replica, lambda s: s.in_service and s.suspended)
    assert [None, None] == known(replica)
