"""Agent and arm over a real Unix socket: one rank, two ranks, and everything that can go wrong between them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, LayoutRefused
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline_agent.arm import messages
from syncline_agent.arm.channel import Channel
from syncline_agent.arm.committing import ArmTimeouts
from syncline_agent.arm.connected import Arm
from syncline_agent.arm.island import Island
from syncline_agent.arm.parts import stage_message
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import StageRequest
from syncline_agent.testing.islands import HELLO, ScriptedGate, WholeRank, breaking_once, described_version, wait_until

Ask = Callable[..., StageRequest]


def test_an_arm_connects_and_says_what_it_holds(
    run: WeightRun, server: ArmServer, connect: Callable[..., WholeRank]
) -> None:
    with pytest.raises(EngineUnavailable, match="no engine is connected"):
        server.describe()
    connect()
    assert server.wait_connected(10)
    description = server.describe()
    assert ("test", "pool", "pod", 1) == (
        description.engine,
        description.pool,
        description.pod,
        description.ranks,
    )
    assert description.applied is not None
    assert (1, run.digest(1), True) == (
        description.applied.version,
        description.applied.digest,
        description.applied.proven,
    )


def test_two_versions_are_staged_committed_undone_and_swept_through_the_socket(
    run: WeightRun, server: ArmServer, connect: Callable[..., WholeRank], ask: Ask, reached: list[str]
) -> None:
    gate = ScriptedGate()
    rank = connect(gate=gate)
    assert server.wait_connected(10)
    staged = server.stage(ask(1, 3))
    assert staged.changed > 0
    assert staged.staged_bytes > 0
    done = server.commit(3, Policy.KEEP)
    assert (3, run.digest(3), {"request-0": 3}) == (done.version, done.digest, done.spans)
    assert done.pause_seconds > 0
    assert ["hold keep", "write", "resume 3", "publish"] == gate.calls
    points = ["apply.ready", "apply.writing", "apply.scattering", "apply.scattered", "apply.resumed"]
    assert points == reached
    assert rank.holds(run.weights(3))
    assert server.describe().applied == server.sweep()
    assert 1 == server.undo(1).version
    applied = server.describe().applied
    assert applied is not None
    assert not applied.proven
    assert server.sweep().proven
    assert rank.holds(run.weights(1))
    server.stage(ask(1, 2))
    server.discard()
    with pytest.raises(EngineUnavailable, match="not staged"):
        server.commit(2, Policy.KEEP)


def test_an_error_of_the_arm_is_that_error_at_the_agent(
    server: ArmServer, connect: Callable[..., WholeRank], ask: Ask, tmp_path: Path
) -> None:
    with capture_logs() as lines:
        connect()
        assert server.wait_connected(10)
        with pytest.raises(DigestMismatch):
            server.stage(ask(2, 3))
        with pytest.raises(LayoutRefused):
            server.undo(2)
        with pytest.raises(EngineUnavailable, match="FileNotFoundError"):
            server.stage(ask(1, 2, table=tmp_path / "gone.json"))
    failed = [(line["call"], line["log_level"]) for line in lines if line["event"] == "arm call failed"]
    # To ask for an undo that is not kept is the usual way back, and no fault.
    assert [("stage", "warning"), ("ready", "info"), ("stage", "warning")] == failed


def test_two_ranks_commit_as_one(
    run: WeightRun, server: ArmServer, connect: Callable[..., WholeRank], ask: Ask
) -> None:
    first = connect(0, 2)
    wait_until(lambda: first.client.connection == "connected")
    with pytest.raises(EngineUnavailable, match=r"ranks \[1\] of 2"):
        server.stage(ask(1, 2))
    second = connect(1, 2)
    assert server.wait_connected(10)
    server.stage(ask(1, 3))
    assert 3 == server.commit(3, Policy.KEEP).version
    assert first.holds(run.weights(3))
    assert second.holds(run.weights(3))
    assert server.sweep().proven


def test_a_rank_that_is_not_ready_keeps_all_others_from_writing(
    run: WeightRun, server: ArmServer, connect: Callable[..., WholeRank], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = ScriptedGate()
    first, second = connect(0, 2, gate=gate), connect(1, 2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))

    def busy(_: int | None = None) -> None:
        raise EngineUnavailable("busy")

    monkeypatch.setattr(second.live, "ready", busy)
    with pytest.raises(EngineUnavailable, match="busy"):
        server.commit(2, Policy.KEEP)
    assert ["prove 1"] == gate.calls
    monkeypatch.undo()
    gate.breaks["hold"] = busy
    with pytest.raises(EngineUnavailable, match="busy"):
        server.commit(2, Policy.KEEP)
    assert (["prove 1", "hold keep"], True) == (gate.calls, gate.released.is_set())
    assert first.holds(run.weights(1))
    assert second.holds(run.weights(1))
    assert 2 == server.commit(2, Policy.KEEP).version  # what was staged still is


def test_a_rank_that_dies_in_its_write_makes_the_island_uncertain_until_it_is_whole_again(
    run: WeightRun, server: ArmServer, connect: Callable[..., WholeRank], ask: Ask, tmp_path: Path
) -> None:
    first, second = connect(0, 2), connect(1, 2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    with (
        breaking_once("apply.scattering", MemoryError("one rank only")),
        pytest.raises(EngineUncertain, match="one rank only"),
    ):
        server.commit(2, Policy.KEEP)
    described = server.describe()
    assert described.error is not None
    assert described.applied is None or not described.applied.proven
    run.checkpoint(tmp_path / "whole", 3)
    server.stage(ask(1, 3, checkpoint=tmp_path / "whole"))
    server.commit(3, Policy.KEEP)
    assert server.sweep().proven
    assert server.describe().error is None
    assert first.holds(run.weights(3))
    assert second.holds(run.weights(3))


def test_ranks_that_hold_different_versions_are_not_proven(
    server: ArmServer, connect: Callable[..., WholeRank]
) -> None:
    connect(0, 2, version=1)
    connect(1, 2, version=2)
    assert server.wait_connected(10)
    described = server.describe()
    assert described.applied is not None
    assert not described.applied.proven
    assert "different versions (1, 2)" in str(described.error)


def test_an_arm_whose_agent_restarts_connects_again(
    node: Path, connect: Callable[..., WholeRank], ask: Ask, run: WeightRun
) -> None:
    with ArmServer(node / "arm.sock") as before:
        rank = connect()
        assert before.wait_connected(10)
        before.stage(ask(1, 2))
        before.commit(2, Policy.KEEP)
    wait_until(lambda: rank.client.connection == f"connecting: {node / 'arm.sock'}: No such file or directory")
    with ArmServer(node / "arm.sock") as after:
        assert after.wait_connected(10)
        applied = after.describe().applied
        assert applied is not None
        assert 2 == applied.version
        after.stage(ask(2, 3))
        after.commit(3, Policy.KEEP)
    assert rank.holds(run.weights(3))


def test_an_engine_that_restarts_takes_the_place_of_its_earlier_connection(
    server: ArmServer, connect: Callable[..., WholeRank]
) -> None:
    first = connect(version=3)
    assert server.wait_connected(10)
    first.client.stop()
    connect(version=1)
    wait_until(lambda: described_version(server) == 1)


def test_a_rank_that_does_not_answer_is_disconnected_and_comes_back(
    node: Path, connect: Callable[..., WholeRank], ask: Ask
) -> None:
    gate, hung = ScriptedGate(), threading.Event()
    gate.breaks["hold"] = lambda: hung.wait(20)
    with ArmServer(node / "arm.sock", timeouts=ArmTimeouts(ready_s=0.2, other_s=0.2)) as server:
        connect(gate=gate)
        assert server.wait_connected(10)
        server.stage(ask(1, 2))
        with pytest.raises(EngineUnavailable, match=r"no answer within 0\.2 s"):
            server.commit(2, Policy.KEEP)
        hung.set()
        assert server.wait_connected(10)
        wait_until(lambda: described_version(server) == 1)
        assert 2 == server.commit(2, Policy.KEEP).version


def test_a_rank_that_was_disconnected_is_gone_before_its_thread_has_left() -> None:
    ours, theirs = socket.socketpair()
    there, island = Arm(Channel(ours), HELLO), Island()
    island.join(there, lambda: None)
    assert [there] == list(island.whole().ranks)
    there.close("it gave no answer")
    with pytest.raises(EngineUnavailable, match="no engine is connected"):
        island.whole()
    ours, _ = socket.socketpair()
    island.join(Arm(Channel(ours), HELLO.model_copy(update={"pod": "another"})), lambda: None)
    theirs.close()


def test_the_state_after_an_engine_s_own_sweep_reaches_the_agent(
    server: ArmServer, connect: Callable[..., WholeRank]
) -> None:
    rank = connect()
    assert server.wait_connected(10)
    rank.memory["a.weight"][7] ^= 1
    with pytest.raises(DigestMismatch):
        rank.live.sweep()
    rank.client.notify()
    wait_until(lambda: server.describe().error is not None)
    assert "a.weight" in str(server.describe().error)
    applied = server.describe().applied
    assert applied is not None
    assert not applied.proven


def test_what_a_call_of_a_lost_agent_did_is_told_to_the_next(
    run: WeightRun, node: Path, connect: Callable[..., WholeRank], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, told = threading.Event(), threading.Event()
    with ArmServer(node / "arm.sock") as first:
        rank = connect()
        assert first.wait_connected(10)
        first.stage(ask(1, 2))
        confirm = rank.live.confirm

        def slow(target: int) -> object:
            written.set()
            told.wait(20)
            return confirm(target)

        monkeypatch.setattr(rank.live, "confirm", slow)

        def commit_and_lose() -> None:
            with pytest.raises(EngineUncertain):
                first.commit(2, Policy.KEEP)

        commit = threading.Thread(target=commit_and_lose)
        commit.start()
        assert written.wait(10)
    commit.join(10)
    with ArmServer(node / "arm.sock") as second:
        told.set()
        assert second.wait_connected(10)
        assert 2 == described_version(second)  # its hello waited for that
        second.stage(ask(2, 3))
        second.commit(3, Policy.KEEP)
    assert rank.holds(run.weights(3))


def test_a_hold_that_a_lost_agent_asked_for_is_never_begun(
    node: Path, connect: Callable[..., WholeRank], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = ScriptedGate()
    staging, lost = threading.Event(), threading.Event()
    with ArmServer(node / "arm.sock") as first:
        rank = connect(gate=gate)
        assert first.wait_connected(10)
        stage = rank.live.stage

        def slow(request: StageRequest) -> object:
            staging.set()
            lost.wait(20)
            return stage(request)

        monkeypatch.setattr(rank.live, "stage", slow)
        (ours,) = first._island.whole().ranks
        ours.begin(lambda i: stage_message(i, ask(1, 2), node))
        assert staging.wait(10)
        ours.begin(lambda i: messages.Hold(id=i, policy=Policy.KEEP))
    with ArmServer(node / "arm.sock") as second:
        assert second.wait_connected(10)
        lost.set()
        assert second.sweep().proven
        second.discard()  # behind all that the first asked for
        assert not [call for call in gate.calls if call.startswith("hold")]
