"""A gate that nobody has proven, or whose weights are in doubt: nothing is served, and what it refuses is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline.clock import ManualClock
from syncline.versions import Policy
from syncline_agent.testing.cores import Core, Request, write
from syncline_agent.vllm.gate import CoreGate

Make = Callable[..., tuple[Core, CoreGate]]


def test_the_log_says_at_most_once_a_minute_that_requests_are_refused(make: Make) -> None:
    clock = ManualClock()
    core, _gate = make(failed="nobody has proven it", clock=clock)
    with capture_logs() as lines:
        for number, passed in enumerate([0.0, 1.0, 58.0, 1.0, 1.0]):
            clock.advance(passed)
            core.ask(f"r{number}", 1)
            assert (1, "error") == core.told(f"r{number}")
    refused = "requests are answered with an error: not proven (nobody has proven it); see the agent's /readyz"
    assert [refused, refused] == [line["event"] for line in lines]


@pytest.mark.parametrize("hands_out", [lambda request: request, lambda r: (r.request_id, r.client_index)])
def test_a_failed_gate_ends_what_runs_and_what_had_ended_unseen_and_refuses_what_comes(
    make: Make, hands_out: Callable[[Request], Any]
) -> None:
    core, gate = make(hands_out=hands_out)
    write(gate, 2)
    core.ask("ended", 1)
    core.ask("runs", 10_000)
    while "ended" in core.scheduler.requests or "runs" not in core.scheduler.requests:
        core.pace.wait(0.001)
    gate.fail("bits in doubt")
    assert {(1, "error")} == {core.told(name) for name in ("ended", "runs")}
    core.ask("late", 1)
    assert (1, "error") == core.told("late")
    gate.prove(2)
    core.ask("well", 2)
    assert (2, "length") == core.told("well")
    core.ask("next", 100_000)
    while "next" not in core.scheduler.requests or core.output_queue.empty():
        core.pace.wait(0.001)
    write(gate, 3, Policy.ABORT)
    gate.publish()
    assert "abort" == core.told("next")[1]


def test_a_gate_that_nobody_proved_serves_nothing_and_one_that_fails_while_it_stands_goes_on(make: Make) -> None:
    core, gate = make(failed="not proven yet")
    core.ask("early", 1)
    assert (1, "error") == core.told("early")
    gate.prove(1)
    gate.hold(Policy.KEEP)
    gate.write()
    gate.fail("the agent went away")
    assert "the agent went away" == gate.error
    write(gate, 2)
    gate.prove(2)
    core.ask("well", 2)
    assert (2, "length") == core.told("well")


def test_weights_in_doubt_end_requests_without_being_told_to(make: Make) -> None:
    doubts: list[str] = []
    core, _ = make(unfit=lambda: doubts[0] if doubts else None)
    core.ask("a", 100_000)
    while core.output_queue.empty():
        core.pace.wait(0.001)
    doubts.append("a bit was flipped")
    assert "error" == core.told("a")[1]


def test_nothing_that_was_kept_inside_leaves_while_weights_are_in_doubt(make: Make) -> None:
    doubts: list[str] = []
    core, gate = make(unfit=lambda: doubts[0] if doubts else None)
    write(gate, 2)
    core.ask("a", 1)
    while not core.input_queue.empty() or core.scheduler.requests:
        core.pace.wait(0.001)
    doubts.append("reads back wrong")
    gate.publish()
    assert (1, "error") == core.told("a")


def test_what_a_rank_elsewhere_doubts_is_not_served(make: Make) -> None:
    core, gate = make()
    gate.heed([None, None])
    core.ask("a", 2)
    assert (2, "length") == core.told("a")
    gate.heed([None, "the weights are others"])
    core.ask("b", 2)
    assert (1, "error") == core.told("b")
    assert "the weights are others" == gate.error


def test_a_gate_that_waits_in_vain_for_a_proof_is_opened_and_says_no_version(make: Make) -> None:
    core, gate = make(failed="not proven yet")
    core.ask("early", 1)
    assert (1, "error") == core.told("early")
    gate.open()
    core.ask("late", 3)
    assert (3, "length") == core.told("late")
    assert "default" == core.weight_version
