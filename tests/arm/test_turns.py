"""Short turns of the interpreter, and none of its collector: asked for by many, put back by the last, and taken while an arm stages
and while an agent commits."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from syncline.clock import ManualClock
from syncline.delta import Delta
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline_agent.arm.host_memory import HostMemory
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.memory import Changes
from syncline_agent.arm.server import ArmServer
from syncline_agent.arm.turns import TURN_S, settle, short_turns, uncollected
from syncline_agent.engine import StageRequest
from syncline_agent.testing.islands import IslandEngine

USUAL_S = 0.004


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    found = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    sys.setswitchinterval(found)


def interval() -> float:
    return round(sys.getswitchinterval(), 6)


def test_the_last_to_leave_puts_back_what_was_found() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with short_turns():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with short_turns():
        thread.start()
        assert entered.wait(30)
        assert TURN_S == interval()
    assert TURN_S == interval()
    leave.set()
    thread.join(30)
    assert USUAL_S == interval()


def test_an_error_puts_it_back_too() -> None:
    with pytest.raises(ValueError, match="inside"), short_turns():
        raise ValueError("inside")
    assert USUAL_S == interval()


def test_turns_that_are_shorter_already_stay() -> None:
    sys.setswitchinterval(1e-5)
    with short_turns():
        assert 1e-5 == interval()
    assert 1e-5 == interval()


def test_what_somebody_else_sets_meanwhile_stays() -> None:
    with short_turns():
        sys.setswitchinterval(0.002)
    assert 0.002 == interval()


def test_nothing_is_collected_until_the_last_has_left() -> None:
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_stands_when_an_engine_is_loaded_is_looked_at_no_more() -> None:
    before = gc.get_freeze_count()
    try:
        settle()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


class Watched(HostMemory):
    """Notes the interval that it is staged in, and whether garbage is collected."""

    seen: list[tuple[float, bool]]

    def stage(self, deltas: Sequence[Delta], **options: Any) -> Changes:
        self.seen = [*getattr(self, "seen", []), (interval(), gc.isenabled())]
        return super().stage(deltas, **options)


def test_an_arm_stages_in_short_turns_and_uncollected(run: WeightRun, ask: Callable[..., StageRequest]) -> None:
    run.step()
    memory = Watched.whole(run.table, run.tiling.tiling, {n: u.copy() for n, u in run.weights(1).items()})
    live = LiveWeights(run.table, run.tiling.tiling, memory, clock=ManualClock())
    live.prove(run.lineage, "main", 1, run.digest(1))
    live.stage(ask(1, 2))
    assert isinstance(memory, Watched)
    assert ([(TURN_S, False)], USUAL_S, True) == (memory.seen, interval(), gc.isenabled())


def test_an_agent_commits_in_short_turns_and_uncollected(
    server: ArmServer, start: Callable[[int], IslandEngine], ask: Callable[..., StageRequest], monkeypatch: Any
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    seen: list[tuple[float, bool]] = []
    plain = engine.gate.write

    def write() -> None:
        seen.append((interval(), gc.isenabled()))
        plain()

    monkeypatch.setattr(engine.gate, "write", write)
    server.commit(2, Policy.KEEP)
    assert ([(TURN_S, False)], USUAL_S, True) == (seen, interval(), gc.isenabled())
