"""Ranks that hold parts and a gate that holds none, over real sockets: how they come together and commit as one engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from syncline.errors import DigestMismatch, EngineUnavailable
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline_agent.arm.client import ArmClient
from syncline_agent.arm.host_memory import Units
from syncline_agent.arm.layout import Block, Layout
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import StageRequest
from syncline_agent.testing.islands import (
    IslandEngine,
    IslandRank,
    Islands,
    ScriptedGate,
    is_proven,
    silence,
    wait_until,
)

Ask = Callable[..., StageRequest]


@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_are_proven_committed_undone_and_swept_as_one(
    run: WeightRun, server: ArmServer, start: Callable[[int], IslandEngine], ask: Ask, ranks: int
) -> None:
    engine = start(ranks)
    assert server.wait_connected(10)
    assert is_proven(server, 1)
    assert all(rank.live.in_service for rank in engine.ranks)
    staged = server.stage(ask(1, 3))
    assert staged.changed > 0
    done = server.commit(3, Policy.KEEP)
    assert (3, run.digest(3), {"request-0": 3}) == (done.version, done.digest, done.spans)
    assert engine.holds(run.weights(3))
    assert is_proven(server, 3)
    assert ["prove 1", "hold keep", "write", "resume 3", "publish"] == engine.gate.calls
    assert server.sweep().proven
    server.undo(1)
    assert engine.holds(run.weights(1))
    assert not is_proven(server, 1)
    assert engine.gate.withholds  # nothing leaves before a sweep
    assert server.sweep().proven
    assert is_proven(server, 1)
    assert (1, False) == (engine.gate.serves, engine.gate.withholds)
    server.stage(ask(1, 2))
    assert 2 == server.commit(2, Policy.KEEP).version
    assert engine.holds(run.weights(2))


def test_an_island_of_one_part_and_a_gate_in_its_process_is_proven_too(
    run: WeightRun, server: ArmServer, join: Callable[..., IslandRank], ask: Ask
) -> None:
    gate = ScriptedGate()
    ranks = [join(0, 2, gate=gate), join(1, 2)]
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    server.commit(2, Policy.ABORT)
    assert all(rank.holds(run.weights(2)) for rank in ranks)
    assert ["prove 1", "hold abort", "write", "resume 2", "publish"] == gate.calls


def test_nobody_calls_an_island_of_which_a_rank_or_the_gate_is_missing(
    server: ArmServer,
    join: Callable[..., IslandRank],
    join_gate: Callable[..., tuple[ScriptedGate, ArmClient]],
    ask: Ask,
) -> None:
    gate, _ = join_gate(2)
    wait_until(lambda: "ranks [0, 1] of 2" in silence(server))
    join(1, 2)
    wait_until(lambda: "ranks [0] of 2 of pod pod are not connected" in silence(server))
    with pytest.raises(EngineUnavailable, match=r"ranks \[0\]"):
        server.stage(ask(1, 2))
    assert [] == gate.calls  # and nothing is served before it is proven
    join(0, 2)
    assert server.wait_connected(10)
    wait_until(lambda: gate.serves == 1)


def test_without_its_gate_an_island_is_not_called(server: ArmServer, join: Callable[..., IslandRank]) -> None:
    join(0, 2)
    join(1, 2)
    wait_until(lambda: "the gate of pod pod is not connected" in silence(server))


def test_a_second_gate_is_refused_by_name(
    server: ArmServer,
    start: Callable[[int], IslandEngine],
    join_gate: Callable[..., tuple[ScriptedGate, ArmClient]],
    join: Callable[..., IslandRank],
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    _, second = join_gate(2)
    wait_until(lambda: second.refused)
    assert "the gate of pod is the engine's gate; the gate of pod would be a second one" in second.connection
    engine.ranks[1].client.stop()
    both = join(1, 2, gate=ScriptedGate())
    wait_until(lambda: both.client.refused)
    assert "the gate of pod is the engine's gate; rank 1 of pod would be a second one" in both.client.connection


def test_a_gate_that_connects_again_is_not_a_second_one(
    server: ArmServer, start: Callable[[int], IslandEngine], join_gate: Callable[..., tuple[ScriptedGate, ArmClient]]
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    engine.client.stop()
    gate, client = join_gate(2)
    wait_until(lambda: gate.serves == 1)
    assert "connected" == client.connection


def test_bands_that_overlap_are_refused_by_name(
    run: WeightRun,
    server: ArmServer,
    islands: Islands,
) -> None:
    islands.join_gate(2)
    first = islands.join(0, 2)
    wait_until(lambda: first.client.connection == "connected")
    low = islands.layout_of(1, 2)
    wider = Block(0, (17, 0), (20, 53), 0, 0, (53, 1))
    late = islands.join(1, 2, layout=Layout.of(run.table, [wider, *(b for held in low.blocks[1:] for b in held)]))
    wait_until(lambda: late.client.refused)
    assert (
        "rank 0 holds a.weight, indices 0 to 17 of axis 0, rank 1 a.weight, indices 17 to 36" in late.client.connection
    )
    assert "the last arm was turned away" in silence(server)


def test_whole_and_parts_do_not_make_an_island(
    run: WeightRun,
    server: ArmServer,
    islands: Islands,
) -> None:
    islands.join_gate(2)
    first = islands.join(0, 2)
    wait_until(lambda: first.client.connection == "connected")
    late = islands.join(1, 2, layout=islands.layout_of(0, 1))
    wait_until(lambda: late.client.refused)
    assert "rank 1 holds the view whole, rank 0 parts of it" in late.client.connection


@pytest.mark.parametrize(
    ("store", "says"),
    [(3, "rank 1 has other bits than rank 0 of e.ids, indices 0 to 128 of axis 0"), (0, "what the ranks hold sums to")],
    ids=["of a copy", "of what counts"],
)
def test_one_other_bit_on_one_rank_is_found_at_start_and_made_whole_from_a_checkpoint(
    run: WeightRun,
    server: ArmServer,
    join: Callable[..., IslandRank],
    join_gate: Callable[..., tuple[ScriptedGate, ArmClient]],
    ask: Ask,
    tmp_path: Path,
    store: int,
    says: str,
) -> None:
    def spoil(stores: list[Units]) -> None:
        stores[store][5] ^= 1

    gate, _ = join_gate(2)
    ranks = [join(0, 2), join(1, 2, spoil=spoil)]
    assert server.wait_connected(10)
    described = server.describe()
    assert says in str(described.error)
    assert described.applied is not None
    assert not described.applied.proven
    assert gate.serves is None
    with pytest.raises(DigestMismatch, match=says):
        server.sweep()
    with pytest.raises(DigestMismatch):
        server.stage(ask(1, 2))
    run.checkpoint(tmp_path / "whole", 2)
    server.stage(ask(1, 2, checkpoint=tmp_path / "whole"))
    server.commit(2, Policy.KEEP)
    assert gate.serves is None  # written over memory in doubt: a sweep decides
    assert server.sweep().proven
    assert 2 == gate.serves
    assert all(rank.holds(run.weights(2)) for rank in ranks)
    assert is_proven(server, 2)


def test_a_live_bit_that_flips_on_one_rank_takes_the_island_out(
    server: ArmServer, start: Callable[[int], IslandEngine]
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    engine.ranks[1].stores[1][9] ^= 1
    with pytest.raises(DigestMismatch, match=r"b\.down_proj\.weight"):
        server.sweep()
    assert "b.down_proj.weight" in str(server.describe().error)
    assert not is_proven(server, 1)


def test_what_ranks_stage_leads_to_the_version_or_nothing_is_written(
    run: WeightRun, server: ArmServer, start: Callable[[int], IslandEngine], ask: Ask
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    with pytest.raises(DigestMismatch, match="nothing was written"):
        server.stage(ask(1, 2, target_digest=run.digest(3)))
    with pytest.raises(EngineUnavailable, match="not staged"):
        server.commit(2, Policy.KEEP)
    assert engine.holds(run.weights(1))
    assert is_proven(server, 1)
