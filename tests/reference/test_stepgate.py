"""The pause between two steps: who waits for whom, for how long, and what happens when the other does not come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from syncline.clock import SystemClock
from syncline.errors import EngineUnavailable
from syncline.versions import Policy
from syncline_agent.reference.stepgate import Patience, StepGate


class Loop:
    """A generation loop that only counts its steps."""

    def __init__(self, patience: Patience) -> None:
        self.wake = threading.Condition(threading.RLock())
        self.gate = StepGate(self.wake, SystemClock(), patience)
        self.steps = 0
        self.active = 0
        self.written: list[Policy] = []
        self.stopping = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stopping:
            self.gate.pass_between_steps(self.active, lambda: {"r": self.steps}, self.written.append)
            with self.wake:
                self.wake.wait(0.002)
            self.steps += 1

    def steps_on(self) -> bool:
        before = self.steps
        for _ in range(500):
            if self.steps > before + 2:
                return True
            threading.Event().wait(0.01)
        return False


@pytest.fixture
def loop() -> Iterator[Callable[..., Loop]]:
    made: list[Loop] = []

    def make(**patience: float) -> Loop:
        made.append(Loop(Patience(**({"held_s": 5.0, "step_s": 5.0, "drain_s": 5.0} | patience))))
        return made[-1]

    yield make
    for one in made:
        one.stopping = True
        one.thread.join(10)


def test_a_write_runs_in_the_loop_s_thread_while_no_step_does(loop: Callable[..., Loop]) -> None:
    one = loop()
    one.gate.hold(Policy.KEEP)
    held_at = one.steps
    ran: list[object] = []
    switched = one.gate.switch(lambda: ran.append((threading.current_thread(), one.steps)))
    assert [(one.thread, held_at)] == ran
    assert {"r": held_at} == switched.spans
    assert [Policy.KEEP] == one.written
    assert switched.pause_seconds > 0
    assert one.steps_on()


def test_a_write_that_fails_fails_at_the_arm_and_the_loop_goes_on(loop: Callable[..., Loop]) -> None:
    def fail() -> None:
        raise ArithmeticError("half-way")

    one = loop()
    one.gate.hold(Policy.ABORT)
    with pytest.raises(ArithmeticError):
        one.gate.switch(fail)
    assert [] == one.written
    assert one.steps_on()


def test_a_released_hold_lets_steps_go_on_and_no_write_in(loop: Callable[..., Loop]) -> None:
    one = loop()
    one.gate.hold(Policy.KEEP)
    one.gate.release()
    assert one.steps_on()
    with pytest.raises(EngineUnavailable, match="nothing was written"):
        one.gate.switch(lambda: None)


def test_a_held_loop_goes_on_by_itself_when_no_write_comes(loop: Callable[..., Loop]) -> None:
    one = loop(held_s=0.05)
    one.gate.hold(Policy.KEEP)
    assert one.steps_on()
    with pytest.raises(EngineUnavailable, match="went on"):
        one.gate.switch(lambda: None)
    one.gate.hold(Policy.KEEP)  # and can be held again
    one.gate.switch(lambda: None)


def test_a_loop_that_hangs_in_a_step_is_not_waited_for_for_ever() -> None:
    gate = StepGate(threading.Condition(threading.RLock()), SystemClock(), Patience(step_s=0.05))
    with pytest.raises(EngineUnavailable, match=r"within 0\.05 s"):
        gate.hold(Policy.KEEP)
    gate.pass_between_steps(0, dict, lambda _: None)  # what was asked for is forgotten


def test_draining_waits_for_the_last_request_and_says_so_meanwhile(loop: Callable[..., Loop]) -> None:
    one = loop()
    one.active = 1
    with ThreadPoolExecutor(1) as arm:
        held: Future[None] = arm.submit(one.gate.hold, Policy.DRAIN)
        assert one.steps_on()
        assert not held.done()
        with one.wake:
            assert one.gate.draining
        one.active = 0
        held.result(10)
    one.gate.switch(lambda: None)
    with one.wake:
        assert not one.gate.draining


def test_a_drain_that_takes_too_long_ends_and_requests_begin_again(loop: Callable[..., Loop]) -> None:
    one = loop(drain_s=0.05)
    one.active = 1
    with pytest.raises(EngineUnavailable, match="drain"):
        one.gate.hold(Policy.DRAIN)
    with one.wake:
        assert not one.gate.draining
    assert one.steps_on()


def test_a_second_hold_takes_over_from_the_first(loop: Callable[..., Loop]) -> None:
    one = loop()
    one.gate.hold(Policy.KEEP)
    one.gate.hold(Policy.ABORT)
    one.gate.switch(lambda: None)
    assert [Policy.ABORT] == one.written
