"""The pause between two steps: who waits for whom, for how long, and what happens when the other does not come."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from syncline.clock import SystemClock
from syncline.errors import EngineUnavailable
from syncline.versions import Policy
from syncline_agent.arm.stepgate import MOST_ENDED, MOST_ENDED_CHARS, Patience, StepGate


class Loop:
    """A generation loop that only counts its steps."""

    def __init__(self, patience: Patience) -> None:
        self.wake = threading.Condition(threading.RLock())
        self.gate = StepGate(self.wake, SystemClock(), patience)
        self.steps = 0
        self.active = 0
        self.written: list[tuple[Policy, int]] = []
        self.stopping = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stopping:
            self.gate.pass_between_steps(self.active, lambda: {"r": self.steps})
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


def test_a_write_comes_while_no_step_runs_and_spans_are_those_of_the_hold(loop: Callable[..., Loop]) -> None:
    one = loop(held_s=0.2)
    spans = one.gate.hold(Policy.KEEP)
    held_at = one.steps
    assert {"r": held_at} == spans
    one.gate.write()
    threading.Event().wait(0.4)  # longer than a hold without a write may last
    assert held_at == one.steps
    pause_seconds = one.gate.resume(lambda policy: one.written.append((policy, one.steps)))
    assert [(Policy.KEEP, held_at)] == one.written
    assert pause_seconds >= 0.4
    assert one.steps_on()


def test_nothing_is_collected_while_the_loop_stands(loop: Callable[..., Loop]) -> None:
    one = loop(held_s=0.2)
    for _ in range(2):  # the second time no write comes
        one.gate.hold(Policy.KEEP)
        assert not gc.isenabled()
        if not one.written:
            one.gate.write()
            one.gate.resume(lambda policy: one.written.append((policy, one.steps)))
        assert one.steps_on()
        assert gc.isenabled()


def test_a_loop_whose_write_fails_goes_on_when_told_that_it_ends(loop: Callable[..., Loop]) -> None:
    one = loop()
    one.gate.hold(Policy.ABORT)
    one.gate.write()
    one.gate.release()  # comes too late: something may have been written
    held_at = one.steps
    threading.Event().wait(0.05)
    assert held_at == one.steps
    one.gate.end()
    assert one.steps_on()
    with pytest.raises(EngineUnavailable, match="does not stand"):
        one.gate.resume(lambda _: None)


def test_a_released_hold_lets_steps_go_on_and_no_write_in(loop: Callable[..., Loop]) -> None:
    one = loop()
    one.gate.hold(Policy.KEEP)
    one.gate.release()
    assert one.steps_on()
    with pytest.raises(EngineUnavailable, match="nothing was written"):
        one.gate.write()


def test_a_held_loop_goes_on_by_itself_when_no_write_comes(loop: Callable[..., Loop]) -> None:
    one = loop(held_s=0.05)
    one.gate.hold(Policy.KEEP)
    assert one.steps_on()
    with pytest.raises(EngineUnavailable, match="went on"):
        one.gate.write()
    one.gate.hold(Policy.KEEP)  # and can be held again
    one.gate.write()
    one.gate.resume(lambda _: None)


def test_a_loop_that_hangs_in_a_step_is_not_waited_for_for_ever() -> None:
    gate = StepGate(threading.Condition(threading.RLock()), SystemClock(), Patience(step_s=0.05))
    with pytest.raises(EngineUnavailable, match=r"within 0\.05 s"):
        gate.hold(Policy.KEEP)
    gate.pass_between_steps(0, dict)  # what was asked for is forgotten


def test_draining_waits_for_the_last_request_and_says_so_meanwhile(loop: Callable[..., Loop]) -> None:
    one = loop()
    one.active = 1
    with ThreadPoolExecutor(1) as arm:
        held: Future[Mapping[str, int]] = arm.submit(one.gate.hold, Policy.DRAIN)
        assert one.steps_on()
        assert not held.done()
        with one.wake:
            assert one.gate.draining
        one.active = 0
        held.result(10)
    one.gate.write()
    one.gate.resume(lambda _: None)
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
    one.gate.write()
    one.gate.resume(lambda policy: one.written.append((policy, one.steps)))
    assert [Policy.ABORT] == [policy for policy, _ in one.written]


def test_requests_that_ended_are_named_until_a_write_has_been(loop: Callable[..., Loop]) -> None:
    one = loop()
    one.gate.note_end("a")
    one.gate.hold(Policy.KEEP)
    one.gate.release()
    one.gate.note_end("b")
    one.gate.hold(Policy.KEEP)
    assert ("a", "b") == one.gate.ended()
    one.gate.write()
    one.gate.resume(lambda _: one.gate.note_end("aborted by the write, so counted at the hold"))
    one.gate.note_end("c")
    assert ("c",) == one.gate.ended()


@pytest.mark.parametrize(("number", "length"), [(MOST_ENDED + 1, 1), (3, MOST_ENDED_CHARS // 2)])
def test_more_ends_than_a_message_holds_are_not_named_at_all(
    loop: Callable[..., Loop], number: int, length: int
) -> None:
    one = loop()
    for _ in range(number - 1):
        one.gate.note_end("r" * length)
    assert one.gate.ended() is not None
    for _ in range(2):
        one.gate.note_end("r" * length)
    assert one.gate.ended() is None
    one.gate.hold(Policy.KEEP)
    one.gate.write()
    one.gate.resume(lambda _: None)
    assert () == one.gate.ended()
