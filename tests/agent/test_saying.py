"""What the log says of what `/status` knows: each change once, nothing that did not change, and nothing of another run."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline_agent.status import Phase


def said(lines: list[Any], *events: str) -> list[tuple[str, str]]:
    return [(line["event"], line["log_level"]) for line in lines if line["event"] in events]


def tick(world: Any, replica: Any, times: int) -> None:
    for _ in range(times):
        world.pass_time(replica.node.follower.tick())


def test_what_a_node_waits_for_is_logged_once_and_its_end_once(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.aim(replica, pinned=3)
    with capture_logs() as lines:
        tick(world, replica, 10)
        world.publish()
        tick(world, replica, 10)
        world.publish()
        world.follow(replica, 3)
        tick(world, replica, 10)
    assert [("held up", "warning"), ("went on", "info")] == said(lines, "held up", "went on")
    assert "version 3 is pinned" in next(line["error"] for line in lines if line["event"] == "held up")


def test_a_failure_that_repeats_is_logged_once_until_a_try_succeeds(world: Any) -> None:
    """Between two tries the status shows no error: that is not the end of it."""
    world.publish()
    faulty = FaultyStore(world.store, ScriptedFaults([]), clock=world.clock, rng=world.random)
    replica = world.replica(stores={"origin": faulty}, consumers=world.store)
    world.follow(replica, 1)
    world.publish()
    faulty._plan = ScriptedFaults([("get_range_into", "", Fault(FaultKind.UNAVAILABLE))] * 8)
    with capture_logs() as lines:
        world.run(replica, lambda s: s.failures == 4)
        assert [("held up", "warning")] == said(lines, "held up", "went on")
        assert Phase.FETCH == lines[-1]["phase"]
        faulty._plan = ScriptedFaults([])
        world.follow(replica, 2)
    assert [("held up", "warning"), ("went on", "info")] == said(lines, "held up", "went on")


def test_a_broken_target_file_is_logged_once_and_its_end_once(world: Any) -> None:
    world.publish()
    replica = world.replica()
    good = replica.settings.target.read_text()
    with capture_logs() as lines:
        replica.settings.target.write_text("{")
        tick(world, replica, 5)
        assert "nothing is followed" in replica.node.reporter.status.target_error
        replica.settings.target.write_text(good)
        world.follow(replica, 1)
        replica.settings.target.write_text("{")
        tick(world, replica, 5)
        assert "last good target stays in force" in replica.node.reporter.status.target_error
    events = ("target file not in force", "target file in force")
    wrong, right = (events[0], "warning"), (events[1], "info")
    assert [wrong, right, wrong] == said(lines, *events)
    assert not [line for line in lines if line["event"] == "held up" and "not a target" in line["error"]]


@pytest.mark.parametrize("other", [{"run": "other"}, {"view": "other"}])
def test_nothing_of_the_run_before_is_said_of_the_next(world: Any, other: dict[str, str]) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    world.publish(3)
    world.aim(replica, suspend=True)
    world.run(replica, lambda s: s.lag_versions == 3 and s.lag_seconds > 0)
    replica.node.reporter.sources_at("run", "main", {"mirror": 4})
    world.aim(replica, **other)
    status = world.run(replica, lambda s: (s.run, s.view) != ("run", "main"))
    assert (None, None, 0, 0.0) == (status.head, status.target, status.lag_versions, status.lag_seconds)
    assert {} == status.source_heads
    replica.node.reporter.sources_at("run", "main", {"mirror": None})  # as its own loop does at its next turn
    gauges = [
        s
        for m in replica.node.reporter._metrics.registry.collect()
        for s in m.samples
        if m.type == "gauge" and s.labels
    ]
    assert [] == [s for s in gauges if (s.labels.get("run"), s.labels.get("view", "main")) == ("run", "main")]
    world.aim(replica)
    world.follow(replica, 5)
