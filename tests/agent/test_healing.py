"""Bits in doubt: found, out of service, and whole again. No replica ever claims what it does not hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from syncline import faults
from syncline.errors import EngineUnavailable, EngineUncertain, LayoutRefused
from syncline_agent.engine import StageRequest
from syncline_agent.nodecheckpoint import NodeCheckpoint
from syncline_agent.status import Phase
from syncline_agent.testing.bits import stores_of


def flip(replica: Any, name: str, place: int) -> None:
    """Flip one bit of live memory behind everybody's back."""
    live = replica.live
    stores_of(live)[live.table.index[name]][place] ^= 1


def untouched_place(world: Any, name: str, before: np.ndarray[Any, Any]) -> int:
    return int(np.flatnonzero(world.weights[name].reshape(-1) == before.reshape(-1))[0])


@pytest.fixture
def following(world: Any) -> Any:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    return replica


def test_a_live_bit_flipped_inside_the_next_delta_is_found_before_anything_is_written(
    world: Any, following: Any
) -> None:
    before = {n: w.copy() for n, w in world.weights.items()}
    world.publish()
    name = "embed.weight"
    place = int(np.flatnonzero(world.weights[name].reshape(-1) != before[name].reshape(-1))[0])
    flip(following, name, place)
    out = world.run(following, lambda s: not s.in_service)
    assert out.applied is not None
    assert 2 == out.applied.version
    world.follow(following, 3)


def test_a_live_bit_flipped_outside_is_found_by_the_sweep_and_healed(world: Any, following: Any) -> None:
    flip(following, "layers.0.norm.weight", 7)
    world.pass_time(following.node.follower.tick())
    assert following.node.reporter.status.in_service
    with pytest.raises(Exception, match="live bits of layers"):
        following.slot.sweep()
    assert None is following.serving
    out = world.run(following, lambda s: s.phase is Phase.HEAL)
    assert not out.in_service
    world.follow(following, 2)


def test_healing_needs_no_store(world: Any, following: Any) -> None:
    flip(following, "layers.0.norm.weight", 7)
    with pytest.raises(Exception, match="live bits"):
        following.slot.sweep()
    objects = {i.key: world.store.get(i.key, max_bytes=1 << 30).data for i in world.store.list_after("")}
    for key in objects:
        world.store.delete(key)
    world.run(following, lambda s: s.in_service and not s.lag_versions)
    for key, data in objects.items():
        world.store.put(key, data)
    world.follow(following, 2)


def test_healing_needs_no_store_after_other_failures_either(world: Any, following: Any) -> None:
    world.publish()
    follower, failed, objects = following.node.follower, [], {}

    def fail(reached: str) -> None:
        if reached == "apply.scattered" and not failed:
            failed.append(reached)
            objects.update((i.key, world.store.get(i.key, max_bytes=1 << 30).data) for i in world.store.list_after(""))
            for key in objects:
                world.store.delete(key)
            raise RuntimeError("a driver died")

    follower._failures = 3
    faults.install_hook(fail)
    try:
        world.run(following, lambda s: bool(failed))
        world.run(following, lambda s: s.in_service, seconds=60.0)
    finally:
        faults.install_hook(None)
    for key, data in objects.items():
        world.store.put(key, data)
    world.follow(following, 3)


def test_an_engine_that_no_checkpoint_fits_is_not_asked_again_before_something_changed(
    world: Any, following: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, asked, fetched = following.slot.stage, [], []

    def refuse(request: StageRequest) -> None:
        asked.append(request.target)
        raise LayoutRefused("no rank holds layers.0.norm.weight")

    def fetch(*arguments: Any, **named: Any) -> Any:
        fetched.append(arguments)
        return NodeCheckpoint.second(following.node.checkpoint, *arguments, **named)

    monkeypatch.setattr(following.slot, "stage", refuse)
    monkeypatch.setattr(following.node.checkpoint, "second", fetch)
    flip(following, "layers.0.norm.weight", 7)
    with pytest.raises(Exception, match="live bits"):
        following.slot.sweep()
    world.run(following, lambda s: s.failures >= 5)
    assert "no rank holds layers.0.norm.weight" in following.node.reporter.status.error
    assert ([2], []) == (asked, fetched)  # the node's own, which is the version to go on with
    assert not following.node.reporter.status.in_service
    world.publish()
    monkeypatch.setattr(following.slot, "stage", stage)
    following.stop_engine()
    following.start_engine()
    world.follow(following, 3)


def test_healing_falls_back_to_the_store_when_the_disk_is_damaged_too(world: Any, following: Any) -> None:
    shard = next(following.node.checkpoint.path.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-3] ^= 4
    shard.write_bytes(data)
    flip(following, "layers.0.norm.weight", 7)
    with pytest.raises(Exception, match="live bits"):
        following.slot.sweep()
    assert None is world.follow(following, 2).boot
    following.node.background.tick()
    following.stop_engine()
    assert following.start_engine()
    assert 2 == world.follow(following, 2).boot


@pytest.mark.parametrize("point", ["apply.scattering", "apply.scattered"])
def test_an_engine_that_fails_after_its_first_write_is_out_until_it_is_proven(
    world: Any, following: Any, point: str
) -> None:
    armed = [True]

    def fail(reached: str) -> None:
        if reached == point and armed.pop() if armed else False:
            raise RuntimeError("a driver died")

    world.publish()
    faults.install_hook(fail)
    try:
        out = world.run(following, lambda s: s.phase is Phase.HEAL)
        assert not out.in_service
        assert None is following.serving
        world.follow(following, 3)
    finally:
        faults.install_hook(None)


def test_an_engine_that_was_away_since_it_failed_half_way_is_still_undone(
    world: Any, following: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed, wholes, stage = [True], [], following.slot.stage

    def fail(reached: str) -> None:
        if reached == "apply.scattered" and armed:
            armed.clear()
            raise RuntimeError("a driver died")

    def seen(request: StageRequest) -> Any:
        wholes.append(request.checkpoint)
        return stage(request)

    world.publish()
    monkeypatch.setattr(following.slot, "stage", seen)
    faults.install_hook(fail)
    try:
        world.run(following, lambda s: s.phase is Phase.HEAL)
    finally:
        faults.install_hook(None)
    engine, following.slot.engine = following.slot.engine, None  # its connection ended
    world.pass_time(following.node.follower.tick())
    following.slot.engine = engine
    world.follow(following, 3)
    assert {None} == set(wholes)


def test_an_engine_that_restarts_is_followed_from_what_it_holds(world: Any, following: Any) -> None:
    for _ in range(3):
        world.follow(following, world.publish())
    following.stop_engine()
    status = world.run(following, lambda s: s.applied is not None and s.applied.version == 2)
    assert status.engine is not None
    status = world.follow(following, 5)
    assert status.last_sync is not None
    assert 2 == status.last_sync.came_from


def test_an_engine_that_restarts_in_the_middle_of_a_sync_is_planned_for_anew(world: Any, following: Any) -> None:
    world.follow(following, world.publish())
    world.publish()
    world.run(following, lambda s: s.phase is Phase.STAGE)
    following.stop_engine()
    following.start_engine()
    status = world.follow(following, 4)
    assert status.last_sync is not None
    assert 2 == status.last_sync.came_from


def test_an_engine_with_other_base_weights_is_out_of_service_by_name_until_it_is_whole(
    world: Any, following: Any
) -> None:
    live = following.live
    for index in range(len(live.table.tensors)):
        stores_of(live)[index][:] = 7
    applied = live.applied
    with pytest.raises(Exception, match="other base weights"):
        live.prove(applied.lineage, applied.view, applied.version, applied.digest)
    out = world.run(following, lambda s: s.engine is not None and s.engine.error is not None)
    assert "other base weights" in out.engine.error
    assert not out.in_service
    world.follow(following, 2)


def test_an_agent_that_restarts_takes_up_where_the_engine_is(world: Any, following: Any) -> None:
    for phase in (Phase.PLAN, Phase.FETCH, Phase.STAGE, Phase.COMMIT, Phase.IDLE):
        newest = world.publish()
        world.run(following, lambda s, phase=phase: s.phase is phase)
        following.restart_agent()
        world.follow(following, newest)


def test_an_engine_that_goes_away_before_its_first_write_loses_nothing(world: Any, following: Any) -> None:
    engine = following.slot.engine
    commit = engine.commit
    calls: list[int] = []

    def unavailable_once(target: int, policy: Any) -> Any:
        calls.append(target)
        if len(calls) == 1:
            raise EngineUnavailable("the arm went away")
        return commit(target, policy)

    engine.commit = unavailable_once
    world.publish()
    world.follow(following, 3)
    assert [3, 3] == calls


def test_an_engine_in_doubt_that_never_heals_is_never_in_service(world: Any, following: Any) -> None:
    engine = following.slot.engine

    def hopeless(*_: Any) -> Any:
        raise EngineUncertain("memory is broken")

    engine.commit = engine.undo = engine.sweep = engine.stage = hopeless
    following.live._doubt("memory is broken")
    for _ in range(50):
        world.pass_time(following.node.follower.tick())
        assert not following.node.reporter.status.in_service
    assert following.node.reporter.status.failures >= 10
