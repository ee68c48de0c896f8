"""What the log says of what `/status` knows: each change once, nothing that did not change, and nothing of another run."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline_agent.policy import Target
from syncline_agent.status import Phase
from syncline_distributor.publisher import Publisher


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


def test_a_run_that_is_not_there_is_told_with_those_that_are_and_the_store_is_listed_once(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish()
    replica = world.replica(target=Target("rum", generation=1))
    listings: list[str] = []
    list_after = world.store.list_after
    monkeypatch.setattr(
        world.store, "list_after", lambda prefix, **how: listings.append(prefix) or list_after(prefix, **how)
    )
    with capture_logs() as lines:
        tick(world, replica, 6)
    error = replica.node.reporter.status.error
    assert f"check the run name in target.json; the store ({world.store.url}) holds run" in error
    assert [("held up", "warning")] == said(lines, "held up")
    assert ["", ""] == listings  # one for each run, and one that finds no other
    Publisher(world.store, "rum", clock=world.clock, random=world.random).publish(world.weights)
    world.run(replica, lambda s: s.in_service)
    assert None is replica.node.reporter.status.error


def test_counters_in_a_reason_make_it_no_new_one(world: Any) -> None:
    reporter = world.replica().node.reporter
    with capture_logs() as lines:
        for tries in range(10, 15):
            error = f"versions/w1: refused (gave up after {tries} tries in {tries / 7:.1f} s)"
            reporter.say(error=error, failures=tries, phase=Phase.FAILED, target=3)
            reporter.say(error=None, phase=Phase.IDLE)
    assert [("held up", "warning")] == said(lines, "held up", "went on")


def test_a_reason_is_said_again_of_another_version_and_of_another_failure(world: Any) -> None:
    reporter = world.replica().node.reporter
    told = [("chunk a is gone", 3), ("chunk b is gone", 3), ("chunk a is gone", 3), ("chunk a is gone", 4)]
    with capture_logs() as lines:
        for failures, (error, target) in enumerate(told):
            reporter.say(error=error, failures=failures + 1, phase=Phase.FAILED, target=target)
    assert [told[0][0], told[1][0], told[3][0]] == [line["error"] for line in lines]


def test_an_outage_is_said_again_after_the_node_rested(world: Any) -> None:
    reporter = world.replica().node.reporter
    with capture_logs() as lines:
        for _ in range(2):
            reporter.say(error="the store is down", failures=1, phase=Phase.FAILED)
            for _ in range(3):
                reporter.say(error="no engine", phase=Phase.IDLE)
    assert ["the store is down", "no engine", "the store is down"] == [line["error"] for line in lines]


def test_a_join_that_fails_again_and_again_is_told_once_a_version_and_its_chunk_is_put_aside(world: Any) -> None:
    world.publish(2)
    key = world.reader.keys.chunk(world.reader.manifest(2).chunks[0].blake3)
    good = world.store.get(key, max_bytes=1 << 30).data
    world.store.delete(key)
    world.store.put(key, bytes([*good[:-1], good[-1] ^ 1]))
    replica = world.replica()
    with capture_logs() as lines:
        status = world.run(replica, lambda s: s.failures == 4)
    assert ["joining", "avoided a step", "held up"] == [
        e for e, _ in said(lines, "joining", "avoided a step", "held up")
    ]
    assert status.retries["corrupt"] > 0
    assert list((replica.settings.node_dir / "quarantine").iterdir())
    world.store.delete(key)
    world.store.put(key, good)
    world.follow(replica, 2)


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
