"""The gate around a loop that works as vLLM's core does: how it holds, is written under, and lets out what was computed."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable

import pytest

from syncline.errors import EngineUnavailable
from syncline.versions import Policy
from syncline_agent.arm.stepgate import Patience
from syncline_agent.testing.cores import Core, write
from syncline_agent.vllm.gate import CoreGate

Make = Callable[..., tuple[Core, CoreGate]]


def test_an_idle_core_is_woken_and_a_busy_one_ends_what_is_in_flight(make: Make) -> None:
    core, gate = make()
    assert {} == gate.hold(Policy.KEEP)
    gate.release()
    core.ask("a", 200, external_req_id="A")
    while core.output_queue.empty():
        core.pace.wait(0.001)
    spans = gate.hold(Policy.KEEP)
    assert not core.stood_with_batch
    assert {"A"} == set(spans)
    held = core.scheduler.requests["a"].num_output_tokens
    core.pace.wait(0.05)
    assert held == spans["A"] == core.scheduler.requests["a"].num_output_tokens
    gate.write()
    gate.resume(7)
    gate.publish()
    assert (200, "length") == core.told("a")
    assert ("7", 0) == (core.weight_version, core.scheduler.pause_state)


def test_what_is_computed_after_a_write_leaves_only_when_published(make: Make) -> None:
    core, gate = make()
    write(gate, 2)
    core.ask("a", 3)
    while core.scheduler.requests or not core.input_queue.empty():
        core.pace.wait(0.001)
    core.pace.wait(0.05)
    assert core.output_queue.empty()
    gate.publish()
    assert (3, "length") == core.told("a")


def test_draining_waits_for_requests_in_flight_and_aborting_ends_them(make: Make) -> None:
    core, gate = make()
    core.ask("first", 50)
    while core.output_queue.empty():
        core.pace.wait(0.001)
    holding = threading.Thread(target=lambda: write(gate, 2, Policy.DRAIN))
    holding.start()
    while core.scheduler.pause_state == 0 and holding.is_alive():
        core.pace.wait(0.001)
    core.ask("second", 5)
    holding.join(20)
    assert (50, "length") == core.told("first")
    gate.publish()
    assert (5, "length") == core.told("second")
    core.ask("third", 100_000)
    while core.output_queue.empty():
        core.pace.wait(0.001)
    write(gate, 3, Policy.ABORT)
    gate.publish()
    assert "abort" == core.told("third")[1]


def test_a_hold_that_nobody_writes_under_ends_by_itself_and_a_pause_of_others_stays(make: Make) -> None:
    core, gate = make(patience=Patience(held_s=0.05))
    core.scheduler.set_pause_state(2)
    gate.hold(Policy.KEEP)
    core.pace.wait(0.2)
    with pytest.raises(EngineUnavailable):
        gate.write()
    assert 2 == core.scheduler.pause_state


@pytest.mark.parametrize("end", ["publish", "release", "fail"])
def test_the_interpreter_takes_short_turns_and_collects_nothing_from_a_hold_until_what_was_written_leaves(
    make: Make, end: str
) -> None:
    _, gate = make()
    found = sys.getswitchinterval()
    gate.hold(Policy.KEEP)
    assert (True, False) == (sys.getswitchinterval() < found, gc.isenabled())
    if end != "release":
        gate.write()
        gate.resume(2)
        gate.release()  # of a hold that its write has ended
        assert (True, False) == (sys.getswitchinterval() < found, gc.isenabled())
    {"publish": gate.publish, "release": gate.release, "fail": lambda: gate.fail("in doubt")}[end]()
    assert found == pytest.approx(sys.getswitchinterval())
    for _ in range(1000):  # the loop that stood lets go a moment later
        if gc.isenabled():
            break
        threading.Event().wait(0.01)
    assert gc.isenabled()


def test_an_engine_that_sleeps_is_not_held_and_goes_on_when_it_wakes(make: Make) -> None:
    sleeps = [True]
    core, gate = make(asleep=lambda: sleeps[0])
    with pytest.raises(EngineUnavailable, match="sleeps"):
        gate.hold(Policy.KEEP)
    with pytest.raises(EngineUnavailable):
        gate.write()  # nobody stands
    sleeps[0] = False
    write(gate, 2)
    gate.publish()
    core.ask("a", 2)
    assert (2, "length") == core.told("a")
