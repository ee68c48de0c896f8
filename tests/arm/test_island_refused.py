"""Engines that cannot be changed in place: named as soon as they come, left to serve as without an agent, and asked in vain
once at most."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from syncline.errors import DigestMismatch, EngineUnavailable, LayoutRefused
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline.wire.tensors import TensorTable
from syncline_agent.arm.client import ArmClient, ArmIdentity
from syncline_agent.arm.layout import Layout
from syncline_agent.arm.proof import NamedBand, Shares
from syncline_agent.arm.server import ArmServer
from syncline_agent.arm.tables import in_checkpoint
from syncline_agent.engine import StageRequest
from syncline_agent.testing.islands import TIMES, Islands, ScriptedGate, described_error, wait_until

Ask = Callable[..., StageRequest]


@pytest.fixture
def knowing(node: Path) -> Iterator[ArmServer]:
    """An agent that looks into the node's checkpoint."""
    with ArmServer(node / "arm.sock", timeouts=TIMES, tables=in_checkpoint(node / "checkpoint")) as server:
        yield server


@pytest.fixture
def lacking(run: WeightRun, islands: Islands) -> Callable[[int], Layout]:
    """What a rank of two holds, without the last tensor, a scalar, which is in nobody's memory then."""

    def make(rank: int) -> Layout:
        blocks = (block for held in islands.layout_of(rank, 2).blocks for block in held)
        return Layout.of(run.table, [block for block in blocks if block.store < 4])

    return make


def test_a_rank_whose_layout_was_refused_says_so_and_refuses_every_call(
    server: ArmServer, islands: Islands, ask: Ask
) -> None:
    islands.connect(0, 1, None, ScriptedGate(), refusal="x.weight was requantized")
    assert server.wait_connected(10)
    described = server.describe()
    assert described.applied is None
    assert "x.weight was requantized" == described.error
    with pytest.raises(LayoutRefused, match="was requantized"):
        server.stage(ask(1, 2))


@pytest.mark.parametrize("refused", [0, 1])
def test_an_engine_of_which_any_rank_is_refused_serves_on_and_is_named(
    server: ArmServer, islands: Islands, refused: int
) -> None:
    gate, _ = islands.join_gate(2)
    islands.connect(refused, 2, None, None, refusal="x.weight was requantized")
    islands.join(1 - refused, 2)
    assert server.wait_connected(10)
    wait_until(lambda: gate.is_open)
    described = server.describe()
    assert (None, f"rank {refused} of pod: x.weight was requantized") == (described.applied, described.error)
    assert (["open"], None) == (gate.calls, gate.serves)


def test_a_gate_that_could_not_serve_on_is_asked_again(server: ArmServer, islands: Islands) -> None:
    up = threading.Event()

    def not_up_yet() -> None:
        if not up.is_set():
            gate.breaks["open"] = not_up_yet
            raise EngineUnavailable("the server does not answer yet")

    gate, _ = islands.join_gate(2)
    gate.breaks["open"] = not_up_yet
    islands.join(0, 2)
    islands.connect(1, 2, None, None, refusal="x.weight was requantized")
    assert server.wait_connected(10)
    described = server.describe()
    assert (None, True) == (described.applied, described.opening)  # nobody reloads it meanwhile
    assert "x.weight was requantized; its gate does not serve on yet" in str(described.error)
    up.set()
    wait_until(lambda: gate.is_open)
    wait_until(lambda: not server.describe().opening)
    assert {"open"} == set(gate.calls)


def test_an_engine_that_was_written_under_stays_out_of_service_when_a_rank_comes_back_refused(
    server: ArmServer, islands: Islands, ask: Ask
) -> None:
    engine = islands.start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    server.commit(2, Policy.KEEP)
    engine.ranks[0].stores[1][9] ^= 1
    with pytest.raises(DigestMismatch):
        server.sweep()
    wait_until(lambda: "fail" in engine.gate.calls)
    engine.ranks[1].client.stop()
    islands.connect(1, 2, None, None, refusal="x.weight was requantized")
    wait_until(lambda: "x.weight was requantized" in str(described_error(server)))
    server.stop()  # every look that was begun has ended
    assert "open" not in engine.gate.calls


def test_a_tensor_that_no_rank_holds_is_named_when_the_last_rank_comes(
    run: WeightRun, knowing: ArmServer, islands: Islands, lacking: Callable[[int], Layout]
) -> None:
    run.checkpoint(run.folder / "checkpoint", 1)
    gate, _ = islands.join_gate(2)
    for rank in range(2):
        islands.join(rank, 2, layout=lacking(rank))
    assert knowing.wait_connected(10)
    described = knowing.describe()
    assert (None, "no rank holds f.scalar; this engine cannot be changed in place") == (
        described.applied,
        described.error,
    )
    wait_until(lambda: gate.is_open)


@pytest.mark.parametrize("on_disk", [False, True], ids=["no checkpoint", "another version's"])
def test_where_the_disk_does_not_tell_it_is_named_once_something_is_staged(
    run: WeightRun,
    knowing: ArmServer,
    islands: Islands,
    lacking: Callable[[int], Layout],
    ask: Ask,
    tmp_path: Path,
    on_disk: bool,
) -> None:
    if on_disk:
        run.checkpoint(run.folder / "checkpoint", 2)
    gate, _ = islands.join_gate(2)
    ranks = [islands.join(rank, 2, layout=lacking(rank)) for rank in range(2)]
    assert knowing.wait_connected(10)
    assert "what the ranks hold sums to" in str(knowing.describe().error)
    assert (None, False) == (gate.serves, gate.is_open)
    run.checkpoint(tmp_path / "whole", 2)
    with pytest.raises(LayoutRefused, match=r"no rank holds f\.scalar; nothing was written"):
        knowing.stage(ask(1, 2, checkpoint=tmp_path / "whole"))
    assert all(rank.holds(run.weights(1)) for rank in ranks)
    wait_until(lambda: gate.is_open)
    wait_until(lambda: not knowing.describe().opening)
    described = knowing.describe()
    assert described.applied is None  # so that nobody heals it in vain again
    assert "no rank holds f.scalar" in str(described.error)


def test_a_tensor_that_the_version_has_not_is_named_with_who_holds_it(run: WeightRun) -> None:
    table = TensorTable(tensors=list(run.table.tensors[1:]))
    shares = Shares([[NamedBand(table.tensors[0].name, 1, 0, 64)], [NamedBand("a.weight", 0, 0, 37)]])
    assert "rank 1 holds a.weight, which the version has not" == shares.unlike(table)


@pytest.mark.parametrize(
    ("rank", "refusal", "gate"), [(None, None, None), (None, "no", ScriptedGate()), (0, None, ScriptedGate())]
)
def test_an_arm_that_is_neither_rank_nor_gate_is_not_made(
    node: Path, rank: int | None, refusal: str | None, gate: ScriptedGate | None
) -> None:
    with pytest.raises(ValueError, match="a rank has weights"):
        ArmClient(
            node / "arm.sock",
            ArmIdentity("test", "pool", "pod", rank),
            None,
            gate,
            randomness=random.Random(1),
            refusal=refusal,
        )
