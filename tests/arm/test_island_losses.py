"""An island of which a rank, the gate or the agent fails or goes away in a commit: it says so, and becomes whole again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from syncline import faults
from syncline.errors import EngineUnavailable, EngineUncertain
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import StageRequest
from syncline_agent.testing.islands import (
    TIMES,
    IslandEngine,
    IslandRank,
    Islands,
    ScriptedGate,
    breaking_once,
    described_version,
    is_proven,
    silence,
    wait_until,
)

Ask = Callable[..., StageRequest]


class Gone(BaseException):
    """What kill -9 of the agent is to this process."""


# --- a rank fails ------------------------------------------------------------------------------------------------------


def test_a_rank_that_is_not_ready_costs_nothing(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], IslandEngine],
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    monkeypatch.setattr(engine.ranks[1].live, "ready", raising(EngineUnavailable("busy")))
    with pytest.raises(EngineUnavailable, match="busy"):
        server.commit(2, Policy.KEEP)
    monkeypatch.undo()
    assert ["prove 1"] == engine.gate.calls
    assert 2 == server.commit(2, Policy.KEEP).version
    assert engine.holds(run.weights(2))


def raising(error: Exception) -> Callable[[int], object]:
    def fail(_: int) -> object:
        raise error

    return fail


@pytest.mark.parametrize("by", ["undo", "checkpoint"])
@pytest.mark.parametrize("at", ["scatter", "confirm"])
def test_a_rank_that_fails_after_the_write_began_takes_the_island_out_until_it_is_whole(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], IslandEngine],
    ask: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    by: str,
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    monkeypatch.setattr(engine.ranks[1].live, at, raising(EngineUncertain("the device is gone")))
    with pytest.raises(EngineUncertain, match="the device is gone"):
        server.commit(2, Policy.KEEP)
    monkeypatch.undo()
    assert (None, False, False) == (engine.gate.serves, engine.gate.stands, engine.gate.withholds)
    assert "fail" in engine.gate.calls
    assert not is_proven(server, 2)
    assert "ranks hold different versions (2, 1)" in str(server.describe().error)
    with pytest.raises(EngineUncertain, match="different versions"):
        server.sweep()
    if by == "undo":  # where only one has written, the other stays
        target = server.undo(1).version
    else:
        run.checkpoint(tmp_path / "whole", 3)
        server.stage(ask(1, 3, checkpoint=tmp_path / "whole"))
        target = server.commit(3, Policy.KEEP).version
    assert engine.gate.serves is None
    assert server.sweep().proven
    assert target == engine.gate.serves
    assert engine.holds(run.weights(target))
    assert is_proven(server, target)
    server.stage(ask(target, target + 1))
    server.commit(target + 1, Policy.KEEP)
    assert engine.holds(run.weights(target + 1))
    assert target + 1 == engine.gate.serves


def test_a_rank_that_was_lost_before_it_wrote_and_comes_back_as_it_was_is_undone_around(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], IslandEngine],
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    away = engine.ranks[1].client

    def drop(_: int) -> None:
        assert away._channel is not None
        away._channel.close()
        raise EngineUnavailable("the connection ended first")

    monkeypatch.setattr(engine.ranks[1].live, "scatter", drop)
    with pytest.raises(EngineUncertain):
        server.commit(2, Policy.KEEP)
    monkeypatch.undo()
    wait_until(lambda: described_version(server) is not None)
    assert engine.gate.serves is None
    assert 1 == server.undo(1).version
    assert server.sweep().proven
    assert engine.holds(run.weights(1))
    assert 1 == engine.gate.serves


def test_a_rank_that_writes_half_and_fails_is_undone_with_all_others(
    run: WeightRun, server: ArmServer, start: Callable[[int], IslandEngine], ask: Ask
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    with (
        breaking_once("apply.scattering", MemoryError("one rank only")),
        pytest.raises(EngineUncertain, match="one rank only"),
    ):
        server.commit(2, Policy.KEEP)
    assert engine.gate.serves is None
    server.undo(1)
    assert server.sweep().proven
    assert engine.holds(run.weights(1))
    assert 1 == engine.gate.serves


def test_a_rank_that_is_lost_in_its_write_leaves_an_island_that_says_so(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], IslandEngine],
    join: Callable[..., IslandRank],
    ask: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    lost = engine.ranks[1]

    def die(_: int) -> None:
        assert lost.client._channel is not None
        lost.client._stopping.set()
        lost.client._channel.close()

    monkeypatch.setattr(lost.live, "scatter", die)
    with pytest.raises(EngineUncertain, match="rank 1 of pod went away"):
        server.commit(2, Policy.KEEP)
    assert engine.gate.serves is None
    assert "ranks [1] of 2" in silence(server)
    engine.ranks[1] = join(1, 2)  # its process starts again from the checkpoint that it started from before
    assert server.wait_connected(10)
    assert "ranks hold different versions (2, 1)" in str(server.describe().error)
    run.checkpoint(tmp_path / "whole", 2)
    server.stage(ask(1, 2, checkpoint=tmp_path / "whole"))
    server.commit(2, Policy.KEEP)
    assert server.sweep().proven
    assert 2 == engine.gate.serves
    assert engine.holds(run.weights(2))


# --- the gate is lost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "kind", "version"),
    [
        ("hold", EngineUnavailable, 1),
        ("write", EngineUnavailable, 1),
        ("resume", EngineUncertain, 2),
        ("publish", EngineUncertain, 2),
    ],
)
@pytest.mark.parametrize("answers", [True, False], ids=["it fails", "its connection ends"])
def test_a_gate_that_is_lost_anywhere_comes_back_with_what_the_ranks_hold(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], IslandEngine],
    ask: Ask,
    at: str,
    kind: type[Exception],
    version: int,
    answers: bool,
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))

    def break_here() -> None:
        if not answers:
            assert engine.client._channel is not None
            engine.client._channel.close()
        raise EngineUnavailable("the loop hangs")

    engine.gate.breaks[at] = break_here
    with pytest.raises(kind):
        server.commit(2, Policy.KEEP)
    assert engine.holds(run.weights(version))
    assert server.wait_connected(10)
    if kind is EngineUncertain:
        assert "fail" in engine.gate.calls
        server.sweep()
    wait_until(lambda: is_proven(server, version))
    assert (version, False) == (engine.gate.serves, engine.gate.stands)
    server.stage(ask(version, 3))
    assert 3 == server.commit(3, Policy.KEEP).version
    assert engine.holds(run.weights(3))
    assert 3 == engine.gate.serves


# --- the agent is lost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "version"), [("apply.ready", 1), ("apply.writing", 1), ("apply.resumed", 2)], ids=lambda v: str(v)
)
def test_an_agent_killed_in_a_commit_finds_an_island_that_it_can_prove(
    run: WeightRun, node: Path, start: Callable[[int], IslandEngine], ask: Ask, point: str, version: int
) -> None:
    engine = start(2)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as first:
        assert first.wait_connected(10)
        engine.gate.released.clear()
        commit_and_die(first, ask(1, 2), point)
        assert version == 1 or not is_proven(first, 2)
    assert engine.gate.released.wait(5)  # at once, not when its patience ends
    if point != "apply.ready":
        wait_until(lambda: "fail" in engine.gate.calls)
        assert (None, False) == (engine.gate.serves, engine.gate.stands)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as second:
        assert second.wait_connected(10)
        wait_until(lambda: described_version(second) == version)
        assert second.sweep().proven
        assert is_proven(second, version)
        assert version == engine.gate.serves
        assert engine.holds(run.weights(version))
        second.stage(ask(version, 3))
        second.commit(3, Policy.KEEP)
        assert engine.holds(run.weights(3))


def commit_and_die(server: ArmServer, request: StageRequest, at: str) -> None:
    def die(point: str) -> None:
        if point == at:
            raise Gone

    server.stage(request)
    faults.install_hook(die)
    try:
        with pytest.raises(Gone):
            server.commit(request.target, Policy.KEEP)
    finally:
        faults.install_hook(None)


@pytest.mark.parametrize(("point", "version"), [("apply.writing", 1), ("apply.resumed", 2)])
def test_an_engine_of_one_process_ends_by_itself_what_a_killed_agent_began(
    run: WeightRun,
    node: Path,
    islands: Islands,
    hold: Callable[..., LiveWeights],
    ask: Ask,
    point: str,
    version: int,
) -> None:
    memory, gate = run.copy(1), ScriptedGate()
    live = hold(1, memory)
    islands.connect(0, 1, live, gate)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as first:
        assert first.wait_connected(10)
        commit_and_die(first, ask(1, 2), point)
    wait_until(lambda: gate.calls[-1] == "publish")
    assert ["hold keep", "write", f"resume {version}", "publish"] == gate.calls
    assert live.applied is not None
    assert (version, True) == (live.applied.version, live.in_service)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as second:
        assert second.wait_connected(10)
        wait_until(lambda: is_proven(second, version))
        second.stage(ask(version, 3))
        assert 3 == second.commit(3, Policy.KEEP).version


def test_an_agent_that_starts_again_finds_a_proven_island_proven(
    node: Path, start: Callable[[int], IslandEngine], ask: Ask
) -> None:
    engine = start(2)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as first:
        assert first.wait_connected(10)
        first.stage(ask(1, 2))
        first.commit(2, Policy.KEEP)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as second:
        assert second.wait_connected(10)
        assert is_proven(second, 2)
    assert "publish" == engine.gate.calls[-1]  # there was nothing to say
