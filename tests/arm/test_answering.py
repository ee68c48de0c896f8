"""What an arm does when it is called out of turn, by an agent that lost its thread: it refuses, and nothing is written or
let out. No sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from syncline.clock import SystemClock
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, ProtocolViolation
from syncline.logs import logger
from syncline.testing.weight_run import WeightRun, Weights
from syncline.versions import Policy
from syncline_agent.arm.answering import UNPROVEN, Answerer
from syncline_agent.arm.gate import Gate, OpenGate
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.messages import (
    BandPart,
    Call,
    Confirm,
    Fail,
    Hold,
    Prove,
    Publish,
    Ready,
    Resume,
    Scatter,
    Stage,
    Sweep,
    Write,
)
from syncline_agent.arm.parts import stage_message
from syncline_agent.engine import StageRequest
from syncline_agent.testing.bits import stores_of

Ask = Callable[..., StageRequest]


class Loop(OpenGate):
    """Tells what it was asked."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.calls: list[str] = []

    def hold(self, policy: Policy) -> Mapping[str, int]:
        self.calls.append("hold")
        return super().hold(policy)

    def write(self) -> None:
        self.calls.append("write")

    def resume(self, version: int) -> float:
        self.calls.append(f"resume {version}")
        return 0.0

    def publish(self) -> None:
        self.calls.append("publish")

    def fail(self, reason: str) -> None:
        self.calls.append(f"fail {reason}")

    def prove(self, version: int) -> None:
        self.calls.append(f"prove {version}")


@pytest.fixture
def memory(run: WeightRun) -> Weights:
    run.step()
    run.step()
    return run.copy(1)


@pytest.fixture
def live(hold: Callable[..., LiveWeights], memory: Weights) -> LiveWeights:
    return hold(1, memory)


@pytest.fixture
def gate() -> Loop:
    return Loop()


def answerer(live: LiveWeights | None, gate: Gate | None, node: Path, *, ranks: int = 1) -> Answerer:
    return Answerer(live, gate, ranks=ranks, node_dir=node, refusal=None, log=logger("test"))


@pytest.fixture
def arm(live: LiveWeights, gate: Loop, run: WeightRun) -> Answerer:
    """Rank and gate of one process."""
    return answerer(live, gate, run.folder)


@pytest.fixture
def stage(ask: Ask, run: WeightRun) -> Stage:
    return stage_message(1, ask(1, 2), run.folder)


def do(arm: Answerer, *calls: Call) -> None:
    for call in calls:
        arm.do(call)


READY, HOLD, WRITE = Ready(id=1, target=2, undo=False), Hold(id=1, policy=Policy.KEEP), Write(id=1)
SCATTER, RESUME, CONFIRM, PUBLISH = (
    Scatter(id=1, target=2),
    Resume(id=1, version=2),
    Confirm(id=1, target=2),
    Publish(id=1),
)


@pytest.mark.parametrize("before", [[], [HOLD]], ids=["unasked", "held only"])
def test_nothing_is_written_while_the_loop_of_the_same_process_does_not_stand_for_it(
    arm: Answerer, stage: Stage, run: WeightRun, memory: Weights, before: list[Call]
) -> None:
    do(arm, stage, READY, *before)
    with pytest.raises(EngineUnavailable, match="does not stand for a write; nothing was written"):
        do(arm, SCATTER)
    assert all(np.array_equal(memory[name], units) for name, units in run.weights(1).items())
    do(arm, HOLD, WRITE, SCATTER, RESUME, CONFIRM, PUBLISH)
    assert all(np.array_equal(memory[name], units) for name, units in run.weights(2).items())


def test_nothing_leaves_before_it_was_read_back(arm: Answerer, stage: Stage, gate: Loop) -> None:
    do(arm, stage, READY, HOLD, WRITE, SCATTER, RESUME)
    with pytest.raises(EngineUnavailable, match="nothing leaves"):
        do(arm, PUBLISH)
    assert "publish" not in gate.calls
    do(arm, CONFIRM, PUBLISH)
    assert "publish" == gate.calls[-1]


@pytest.mark.parametrize("before", [[WRITE], [WRITE, SCATTER], [WRITE, SCATTER, RESUME]], ids=len)
def test_nothing_is_proven_while_a_write_is_under_way(
    arm: Answerer, stage: Stage, gate: Loop, run: WeightRun, before: list[Call]
) -> None:
    do(arm, stage, READY, HOLD, *before)
    with pytest.raises(EngineUnavailable, match="nothing is proven"):
        do(arm, Prove(id=1, version=1, digest=run.digest(1)))
    assert "prove 1" not in gate.calls


def test_a_gate_that_stands_for_a_write_is_not_held_again(arm: Answerer, stage: Stage, gate: Loop) -> None:
    do(arm, stage, READY, HOLD, WRITE)
    with pytest.raises(EngineUnavailable, match="a write is under way"):
        do(arm, HOLD)
    assert ["hold", "write"] == gate.calls


def test_another_version_than_the_one_that_is_held_is_not_proven(arm: Answerer, gate: Loop, run: WeightRun) -> None:
    with pytest.raises(EngineUnavailable, match="not what is applied"):
        do(arm, Prove(id=1, version=2, digest=run.digest(2)))
    assert [] == gate.calls


def test_a_gate_is_no_rank_and_a_rank_no_gate(live: LiveWeights, gate: Loop, run: WeightRun, stage: Stage) -> None:
    for call in (stage, READY, SCATTER, CONFIRM, Sweep(id=1)):
        with pytest.raises(ProtocolViolation, match="no rank"):
            do(answerer(None, gate, run.folder, ranks=2), call)
    for call in (HOLD, WRITE, RESUME, PUBLISH, Fail(id=1, reason="no")):
        with pytest.raises(ProtocolViolation, match="no gate"):
            do(answerer(live, None, run.folder, ranks=2), call)
    assert [] == gate.calls


@pytest.mark.parametrize(
    ("before", "calls"),
    [
        ([], []),
        ([HOLD], []),
        ([HOLD, WRITE], ["resume 1", "publish"]),
        ([HOLD, WRITE, SCATTER], ["resume 2", "publish"]),
        ([HOLD, WRITE, SCATTER, RESUME], ["publish"]),
        ([HOLD, WRITE, SCATTER, RESUME, CONFIRM], ["publish"]),
        ([HOLD, WRITE, SCATTER, RESUME, CONFIRM, PUBLISH], []),
    ],
    ids=lambda v: str(len(v)),
)
def test_a_process_that_holds_all_ends_by_itself_what_an_agent_left(
    arm: Answerer, live: LiveWeights, gate: Loop, stage: Stage, before: list[Call], calls: list[str]
) -> None:
    do(arm, stage, READY, *before)
    asked = len(gate.calls)
    arm.settle()
    assert calls == gate.calls[asked:]
    assert live.applied is not None
    assert (2 if SCATTER in before else 1, True) == (live.applied.version, live.in_service)
    assert arm.state().failed is None
    arm.settle()  # there is nothing left to do
    assert calls == gate.calls[asked:]


@pytest.mark.parametrize(
    ("before", "failed"),
    [
        ([HOLD], False),
        ([HOLD, WRITE], True),
        ([HOLD, WRITE, SCATTER], True),
        ([HOLD, WRITE, SCATTER, RESUME], True),
        ([HOLD, WRITE, SCATTER, RESUME, CONFIRM], True),
        ([HOLD, WRITE, SCATTER, RESUME, CONFIRM, PUBLISH], False),
    ],
    ids=lambda v: str(len(v)) if isinstance(v, list) else "",
)
def test_the_gate_of_more_ranks_cannot_know_and_is_out_of_service(
    live: LiveWeights, gate: Loop, run: WeightRun, stage: Stage, before: list[Call], failed: bool
) -> None:
    arm = answerer(live, gate, run.folder, ranks=2)
    assert UNPROVEN == arm.state().failed
    do(arm, Prove(id=1, version=1, digest=run.digest(1)), stage, READY, *before)
    assert arm.state().failed is None
    arm.settle()
    assert failed == gate.calls[-1].startswith("fail the agent went away")
    assert failed == (arm.state().failed is not None)
    assert live.applied is not None
    assert (2 if SCATTER in before else 1) == live.applied.version  # what was written is read back, and said


def test_what_cannot_be_read_back_when_the_agent_is_gone_takes_the_engine_out(
    arm: Answerer, live: LiveWeights, gate: Loop, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(arm, stage, READY, HOLD, WRITE, SCATTER)
    place = live.table.index["e.ids"]
    confirm = live.confirm

    def spoiled(target: int) -> object:
        stores_of(live)[place][:] = 7
        return confirm(target)

    monkeypatch.setattr(live, "confirm", spoiled)
    with capture_logs() as lines:
        arm.settle()
    assert ["what was written could not be confirmed"] == [line["event"] for line in lines]
    assert gate.calls[-1].startswith("fail version 2 reads back wrong in e.ids")
    assert "publish" not in gate.calls


def test_what_is_not_proven_does_not_leave_when_the_agent_is_gone(
    arm: Answerer, live: LiveWeights, gate: Loop, stage: Stage
) -> None:
    do(arm, stage, READY, HOLD, WRITE, SCATTER, RESUME, CONFIRM, PUBLISH)
    undo = [Ready(id=1, target=1, undo=True), HOLD, WRITE, Scatter(id=1, target=1), Resume(id=1, version=1)]
    do(arm, *undo, Confirm(id=1, target=1))
    arm.settle()
    assert gate.calls[-1].startswith("fail the agent went away")
    assert not arm.recovers
    live.sweep()  # the engine's own
    assert arm.recovers
    arm.recover()
    assert "prove 1" == gate.calls[-1]
    assert arm.state().failed is None


def test_a_write_that_fails_is_not_gone_on_from(
    arm: Answerer, live: LiveWeights, gate: Loop, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("half-way")

    do(arm, stage, READY, HOLD, WRITE)
    monkeypatch.setattr(live._memory, "scatter", fail)
    with pytest.raises(EngineUncertain, match="half-way"):
        do(arm, SCATTER)
    arm.settle()
    assert gate.calls[-1].startswith("fail writing version 2 failed half-way")


@pytest.mark.parametrize(
    ("before", "breaks"), [([HOLD, WRITE, SCATTER], "resume"), ([HOLD, WRITE, SCATTER, RESUME], "publish")]
)
def test_an_engine_that_cannot_go_on_when_the_agent_is_gone_says_so_and_can_be_proven(
    arm: Answerer,
    live: LiveWeights,
    gate: Loop,
    stage: Stage,
    run: WeightRun,
    monkeypatch: pytest.MonkeyPatch,
    before: list[Call],
    breaks: str,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the loop is gone")

    do(arm, stage, READY, *before)
    monkeypatch.setattr(gate, breaks, fail)
    arm.settle()
    assert "the loop is gone" in str(arm.state().failed)
    assert "the loop is gone" in gate.calls[-1]
    assert live.applied is not None
    assert 2 == live.applied.version  # what was written is read back all the same
    do(arm, Prove(id=1, version=2, digest=run.digest(2)))
    assert "prove 2" == gate.calls[-1]


def test_a_gate_that_breaks_when_it_is_told_to_fail_is_failed(
    live: LiveWeights, gate: Loop, run: WeightRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("no route")

    arm = answerer(live, gate, run.folder)
    monkeypatch.setattr(gate, "fail", fail)
    with pytest.raises(RuntimeError, match="no route"):
        do(arm, Fail(id=1, reason="in doubt"))
    assert "in doubt" == arm.state().failed
    with pytest.raises(RuntimeError, match="no route"):
        do(arm, Prove(id=1, version=1, digest=run.digest(1)))  # it may be serving still
    monkeypatch.undo()
    do(arm, Prove(id=1, version=1, digest=run.digest(1)))
    assert ["fail in doubt", "prove 1"] == gate.calls
    assert arm.state().failed is None


def test_what_is_in_doubt_does_not_leave_whoever_asks(
    arm: Answerer, live: LiveWeights, gate: Loop, stage: Stage
) -> None:
    do(arm, stage, READY, HOLD, WRITE, SCATTER, RESUME, CONFIRM)
    stores_of(live)[live.table.index["e.ids"]][:] = 7
    with pytest.raises(DigestMismatch):
        live.sweep()  # the engine's own
    with pytest.raises(EngineUnavailable, match="not proven"):
        do(arm, PUBLISH)
    assert "publish" not in gate.calls


def test_a_claim_is_of_one_moment_though_a_call_ends_meanwhile(
    arm: Answerer, stage: Stage, run: WeightRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(arm, stage, READY, HOLD, WRITE, SCATTER, RESUME)
    holds, seen = arm.holds, []

    def confirm_meanwhile() -> list[BandPart] | None:
        seen.append(holds())
        if len(seen) == 1:
            arm.do(CONFIRM)
        return seen[-1]

    monkeypatch.setattr(arm, "holds", confirm_meanwhile)
    _, state = arm.claim()
    assert state.applied is not None
    assert (2, 2) == (state.applied.version, len(seen))


@pytest.mark.parametrize(
    "under_way", [[HOLD, WRITE], [HOLD, WRITE, SCATTER], [HOLD, WRITE, SCATTER, RESUME]], ids=lambda v: v[-1].type
)
def test_a_failed_gate_does_not_recover_while_its_weights_are_changed(
    arm: Answerer, gate: Loop, stage: Stage, under_way: list[Call]
) -> None:
    do(arm, Fail(id=1, reason="in doubt"))
    assert arm.recovers
    do(arm, stage, READY, *under_way)
    assert not arm.recovers
    arm.recover()  # a sweep of the engine's own ended
    assert not [call for call in gate.calls if call.startswith("prove")]
    assert "in doubt" == arm.state().failed
    arm.settle()  # and then the agent goes away
    arm.recover()
    assert gate.calls[-1].startswith("prove")
    assert arm.state().failed is None
