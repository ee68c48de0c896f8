"""An island in doubt is out of service: its gate hears so, until somebody has looked at every bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from syncline.errors import DigestMismatch, EngineUncertain
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline_agent.arm.host_memory import Units
from syncline_agent.arm.messages import Sweep, Swept
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import Applied, StageRequest
from syncline_agent.testing.islands import (
    TIMES,
    IslandEngine,
    IslandRank,
    is_proven,
    wait_until,
)

Ask = Callable[..., StageRequest]


def test_no_gate_goes_into_service_over_a_rank_that_only_a_sweep_can_prove(
    node: Path, start: Callable[[int], IslandEngine], ask: Ask
) -> None:
    engine = start(2)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as first:
        assert first.wait_connected(10)
        first.stage(ask(1, 2))
        first.commit(2, Policy.KEEP)
        first.undo(1)
    wait_until(lambda: engine.gate.serves is None)
    proofs = engine.gate.calls.count("prove 1")
    with ArmServer(node / "arm.sock", timeouts=TIMES) as second:
        assert second.wait_connected(10)
        assert not is_proven(second, 1)
        assert (None, proofs) == (engine.gate.serves, engine.gate.calls.count("prove 1"))
        assert second.sweep().proven
        assert 1 == engine.gate.serves


def test_a_bit_that_a_rank_finds_by_itself_takes_the_gate_of_all_out_until_it_is_mended(
    run: WeightRun, server: ArmServer, start: Callable[[int], IslandEngine], ask: Ask, tmp_path: Path
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    wait_until(lambda: engine.gate.serves == 1)
    engine.ranks[1].stores[1][9] ^= 1
    with pytest.raises(DigestMismatch):
        engine.ranks[1].live.sweep()  # the engine's own
    engine.ranks[1].client.notify()
    wait_until(lambda: engine.gate.serves is None)
    run.checkpoint(tmp_path / "whole", 2)
    server.stage(ask(1, 2, checkpoint=tmp_path / "whole"))
    server.commit(2, Policy.KEEP)
    assert engine.gate.serves is None
    assert server.sweep().proven
    assert 2 == engine.gate.serves


@pytest.mark.parametrize("spoilt", [False, True], ids=["an older version", "other bits"])
def test_a_rank_that_comes_back_with_something_else_takes_the_gate_out(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], IslandEngine],
    join: Callable[..., IslandRank],
    ask: Ask,
    spoilt: bool,
) -> None:
    def spoil(stores: list[Units]) -> None:
        stores[0][3] ^= 1

    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    server.commit(2, Policy.KEEP)
    assert 2 == engine.gate.serves
    engine.ranks[1].client.stop()
    join(1, 2, version=2 if spoilt else 1, spoil=spoil if spoilt else lambda stores: None)
    wait_until(lambda: engine.gate.serves is None)
    assert not is_proven(server, 2)


def test_an_island_is_not_proven_while_its_gate_keeps_inside_what_an_undo_left_though_a_rank_was_away(
    server: ArmServer, start: Callable[[int], IslandEngine], ask: Ask
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    server.commit(2, Policy.KEEP)
    server.undo(1)
    away = engine.ranks[1].client._channel
    assert away is not None
    away.close()
    wait_until(lambda: engine.ranks[1].client._channel not in (None, away))
    assert server.wait_connected(10)
    for rank in engine.ranks:
        assert rank.live.sweep().proven  # the engine's own
        rank.client.notify()
    wait_until(lambda: all(arm.state.applied is None or arm.state.applied.proven for arm in server._island.present()))
    assert engine.gate.withholds
    assert not is_proven(server, 1)  # so that whoever follows sweeps
    assert server.sweep().proven
    assert (1, False) == (engine.gate.serves, engine.gate.withholds)


def test_ranks_that_confirm_another_version_than_was_written_take_the_gate_out(
    server: ArmServer, start: Callable[[int], IslandEngine], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    for rank in engine.ranks:
        monkeypatch.setattr(rank.live, "confirm", lambda _, live=rank.live: live.applied)
    with pytest.raises(EngineUncertain, match="the ranks hold version 1, not 2"):
        server.commit(2, Policy.KEEP)
    assert engine.gate.serves is None
    assert "publish" not in engine.gate.calls


def test_a_sweep_tells_no_digests_of_another_version_than_it_swept(
    server: ArmServer, start: Callable[[int], IslandEngine], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    rank = engine.ranks[0]
    sweep = rank.live.sweep

    def then_a_write_comes() -> Applied:
        applied = sweep()
        rank.live.stage(ask(1, 2))
        rank.live.ready(2)
        rank.live.scatter(2)
        return applied

    monkeypatch.setattr(rank.live, "sweep", then_a_write_comes)
    answer = rank.client._answerer.do(Sweep(id=1))
    assert isinstance(answer, Swept)
    assert (1, None) == (answer.applied.version, answer.digests)


@pytest.mark.parametrize("doubt", [False, True], ids=["in a commit", "by a rank's sweep"])
def test_a_gate_that_could_not_go_out_of_service_is_asked_again(
    server: ArmServer, start: Callable[[int], IslandEngine], ask: Ask, doubt: bool
) -> None:
    def break_here() -> None:
        raise RuntimeError("busy")

    engine = start(2)
    assert server.wait_connected(10)
    wait_until(lambda: engine.gate.serves == 1)
    engine.gate.breaks["fail"] = break_here
    if doubt:
        engine.ranks[1].stores[1][9] ^= 1
        with pytest.raises(DigestMismatch):
            server.sweep()
        engine.ranks[1].stores[1][9] ^= 1
    else:
        server.stage(ask(1, 2))
        engine.gate.breaks["resume"] = break_here
        with pytest.raises(EngineUncertain):
            server.commit(2, Policy.KEEP)
        assert not is_proven(server, 2)
    wait_until(lambda: engine.gate.serves is None)
    assert 2 == engine.gate.calls.count("fail")
    assert not engine.gate.stands
    assert server.sweep().proven
    assert (1 if doubt else 2) == engine.gate.serves
