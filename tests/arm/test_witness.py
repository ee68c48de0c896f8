"""Who must say which version a token came from hears of a commit before any token of its version can leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from syncline.errors import EngineUncertain
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import Crossing, StageRequest
from syncline_agent.testing.islands import TIMES, IslandRank, ScriptedGate


class Gate(ScriptedGate):
    """One request in flight, one that has ended."""

    def ended(self) -> tuple[str, ...]:
        return ("request-9",)


def test_a_commit_and_an_undo_are_told_while_what_they_led_to_is_kept_inside(
    run: WeightRun, node: Path, join: Callable[..., IslandRank], ask: Callable[..., StageRequest]
) -> None:
    gate = Gate()
    told: list[tuple[Crossing, bool]] = []
    with ArmServer(node / "arm.sock", timeouts=TIMES, witness=lambda c: told.append((c, gate.withholds))) as server:
        join(0, 2, gate=gate)
        join(1, 2)
        assert server.wait_connected(10)
        server.stage(ask(1, 2))
        server.commit(2, Policy.KEEP)
        server.undo(1)
    (there, kept), (back, still_kept) = told
    assert there.before is not None and there.after is not None and back.before is not None and back.after is not None
    assert [(1, 2), (2, 1)] == [(c.before.version, c.after.version) for c in (there, back) if c.before and c.after]
    assert (run.digest(2), True) == (there.after.digest, there.after.proven)
    assert not back.after.proven
    assert ({"request-0": 3}, ["request-9"]) == (there.spans, there.ended)
    assert (True, True) == (kept, still_kept)


def test_of_a_commit_that_failed_after_its_first_write_nobody_can_tell_what_came_before(
    node: Path, join: Callable[..., IslandRank], ask: Callable[..., StageRequest]
) -> None:
    gate = Gate()
    told: list[Crossing] = []

    def breaks() -> None:
        raise EngineUncertain("the loop is gone")

    with ArmServer(node / "arm.sock", timeouts=TIMES, witness=told.append) as server:
        join(0, 2, gate=gate)
        join(1, 2)
        assert server.wait_connected(10)
        server.stage(ask(1, 2))
        gate.breaks["resume"] = breaks
        with pytest.raises(EngineUncertain, match="the loop is gone"):
            server.commit(2, Policy.KEEP)
    (failed,) = told
    assert failed.before is not None
    assert (1, None, None, None) == (failed.before.version, failed.after, failed.spans, failed.ended)


def test_a_commit_that_was_given_up_before_its_first_write_is_none(
    node: Path, join: Callable[..., IslandRank], ask: Callable[..., StageRequest]
) -> None:
    gate = Gate()
    told: list[Crossing] = []

    def breaks() -> None:
        raise EngineUncertain("it does not stand")

    with ArmServer(node / "arm.sock", timeouts=TIMES, witness=told.append) as server:
        join(0, 2, gate=gate)
        join(1, 2)
        assert server.wait_connected(10)
        server.stage(ask(1, 2))
        gate.breaks["write"] = breaks
        with pytest.raises(EngineUncertain, match="it does not stand"):
            server.commit(2, Policy.KEEP)
    assert [] == told
