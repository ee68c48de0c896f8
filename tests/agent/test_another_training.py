"""An engine that holds another training than the target names is not in service, and nothing is said of it under that
name: neither while the other run is followed, nor while there is none of that name, nor when the store is down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline.metrics import Metrics
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.wire.tiling import Tiling
from syncline_agent.status import Phase
from syncline_distributor.publisher import Publisher
from syncline_distributor.settings import PublishSettings

OF_THE_APPLIED = ("syncline_applied_version", "syncline_lag_versions", "syncline_lag_seconds", "syncline_proven")


def runs_told(metrics: Metrics) -> dict[str, set[str]]:
    """By gauge of what is applied, the runs that it has a value for."""
    told: dict[str, set[str]] = {name: set() for name in OF_THE_APPLIED}
    for family in metrics.registry.collect():
        if family.name in told:
            told[family.name] |= {sample.labels["run"] for sample in family.samples}
    return told


def only(*runs: str) -> dict[str, set[str]]:
    return {name: set(runs) for name in OF_THE_APPLIED}


def publish_other(world: Any) -> None:
    settings = PublishSettings(tiling=Tiling(64, 256, 4))
    Publisher(world.store, "other", settings=settings, clock=world.clock, random=world.random).publish(world.weights)


def test_an_engine_of_another_run_is_out_of_service_until_its_own_is_followed_again(world: Any) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    metrics = replica.node.reporter._metrics
    assert only("run") == runs_told(metrics)
    publish_other(world)
    world.aim(replica, run="other")
    for _ in range(6):  # after each failure, and between them
        world.pass_time(replica.node.follower.tick())
        status = replica.node.reporter.status
        assert ("other", False) == (status.run, status.in_service)
        assert only() == runs_told(metrics)
    assert "lineage" in status.error
    assert f"start the engine on this node's checkpoint, {replica.node.checkpoint.path}; if the run" in status.error
    assert 2 == replica.serving.version
    world.aim(replica, run="run")
    world.follow(replica, 2)
    assert only("run") == runs_told(metrics)


def test_a_target_that_names_no_run_takes_the_engine_out_of_service(world: Any) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    world.aim(replica, run="none")
    status = world.run(replica, lambda s: s.run == "none")
    assert not status.in_service
    assert "waiting for the first version" in status.error
    assert only() == runs_told(replica.node.reporter._metrics)


def test_a_store_that_is_down_takes_no_engine_out_of_service(world: Any) -> None:
    world.publish()
    faulty = FaultyStore(world.store, ScriptedFaults([]), clock=world.clock, rng=world.random)
    replica = world.replica(stores={"origin": faulty}, consumers=world.store)
    world.follow(replica, 1)
    faulty._plan = ScriptedFaults([("get", "", Fault(FaultKind.UNAVAILABLE))] * 100)
    replica.restart_agent()
    status = world.run(replica, lambda s: s.failures >= 3 and s.applied is not None)
    assert status.in_service
    assert only("run") == runs_told(replica.node.reporter._metrics)


def test_a_gauge_without_a_value_is_not_shown() -> None:
    metrics = Metrics()
    assert [] == [f.name for f in metrics.registry.collect() if f.type == "gauge" and f.samples]
    metrics.store_probed(several_writers=False)
    metrics.store_probed(several_writers=True)
    assert 1.0 == metrics.registry.get_sample_value("syncline_store_conditional_writes")


@pytest.mark.parametrize(("proven", "event"), [(True, "healed"), (False, "loaded whole, not proven")])
def test_what_was_loaded_whole_is_called_healed_only_where_it_is_proven(
    world: Any, monkeypatch: pytest.MonkeyPatch, proven: bool, event: str
) -> None:
    world.publish()
    replica = world.replica()
    status = world.follow(replica, 1)
    follower = replica.node.follower
    monkeypatch.setattr(follower._healer, "_healed", lambda *_, **__: replace(status.applied, proven=proven))
    follower._phase = Phase.HEAL
    with capture_logs() as lines:
        follower.tick()
    assert [event] == [line["event"] for line in lines if line["event"] in ("healed", "loaded whole, not proven")]
