"""Names of requests at the gate: under which their blocks are cached, and by which their clients know them at a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from syncline.versions import Policy
from syncline_agent.engine import Applied, Crossing
from syncline_agent.lane.reading import TokenSpan, token_spans
from syncline_agent.lane.sessions import SESSION
from syncline_agent.testing.cores import Core, HungUp, Request, Status, write
from syncline_agent.vllm.caching import MANY
from syncline_agent.vllm.gate import CoreGate
from syncline_agent.vllm.settings import KvPolicy

Make = Callable[..., tuple[Core, CoreGate]]


def _version(number: int) -> Applied:
    return Applied("run", "main", number, f"d{number}", True)


def test_prompts_that_waited_through_a_write_are_named_anew_and_those_that_ran_keep_theirs(make: Make) -> None:
    core, gate = make()
    core.scheduler.set_pause_state(1)  # nothing new runs
    waiting = core.ask("w", 3, cache_salt="mine")
    while "w" not in core.scheduler.requests:
        core.pace.wait(0.001)
    before = list(waiting.block_hashes)
    write(gate, 2)
    gate.publish()
    core.scheduler.set_pause_state(0)
    core.input_queue.put("wake")
    assert (3, "length") == core.told("w")
    fresh = core.ask("n", 100_000, cache_salt="mine")
    assert before != waiting.block_hashes
    assert fresh.block_hashes == waiting.block_hashes
    assert not waiting.skip_reading_prefix_cache
    while not fresh.num_computed_tokens:
        core.pace.wait(0.001)
    named = list(fresh.block_hashes)
    write(gate, 2)  # an undo to 2, say: what lies under the older name of 2 may be of mixed weights
    gate.publish()
    assert named == fresh.block_hashes
    assert named != core.ask("m", 1, cache_salt="mine").block_hashes
    assert core.ask("o", 1, cache_salt="other").block_hashes != core.ask("p", 1, cache_salt="mine").block_hashes


def test_the_prefix_cache_is_emptied_at_each_write_where_that_is_wanted(make: Make) -> None:
    core, gate = make(kv=KvPolicy.RESET)
    assert "mine" == core.ask("a", 1, cache_salt="mine").cache_salt
    write(gate, 2)
    assert [True] == core.scheduler.resets


def test_a_session_keeps_its_name_through_a_write_where_that_is_wanted_and_nobody_else_does(make: Make) -> None:
    core, gate = make(kv=KvPolicy.SESSIONS)
    asked = [("s", SESSION + "s"), ("m", "mine"), ("n", None)]

    def hashes(turn: int) -> list[Any]:
        requests = [core.ask(f"{name}-{turn}", 1, cache_salt=salt) for name, salt in asked]
        assert {(1, "length")} == {core.told(request.request_id) for request in requests}
        return [request.block_hashes for request in requests]

    before = hashes(1)
    assert before == hashes(2)
    core.scheduler.set_pause_state(1)  # nothing new runs
    waiting = core.ask("w", 1, cache_salt=SESSION + "s")
    while "w" not in core.scheduler.requests:
        core.pace.wait(0.001)
    write(gate, 2)
    gate.publish()
    assert not waiting.skip_reading_prefix_cache
    core.scheduler.set_pause_state(0)
    core.input_queue.put("wake")
    assert (1, "length") == core.told("w")
    after = hashes(3)
    assert [True, False, False] == [old == new for old, new in zip(before, after, strict=True)]
    assert before[0] == waiting.block_hashes
    assert 3 == len({tuple(each) for each in after})


@pytest.mark.parametrize("kv", [KvPolicy.SALT, KvPolicy.RESET])
def test_a_session_is_nothing_to_an_engine_that_was_not_told_of_sessions(make: Make, kv: KvPolicy) -> None:
    core, gate = make(kv=kv)
    before = core.ask("a", 1, cache_salt=SESSION + "s")
    assert (1, "length") == core.told("a")
    write(gate, 2)
    gate.publish()
    after = core.ask("b", 1, cache_salt=SESSION + "s")
    assert (1, "length") == core.told("b")
    assert (kv is KvPolicy.RESET) == (before.block_hashes == after.block_hashes)
    assert ([True] if kv is KvPolicy.RESET else []) == core.scheduler.resets


def test_sessions_end_where_an_engine_goes_back_for_those_too_that_wait_meanwhile(make: Make) -> None:
    core, gate = make(kv=KvPolicy.SESSIONS)
    for number in (2, 3):
        write(gate, number)
        gate.publish()
    before = core.ask("a", 1, cache_salt=SESSION + "s")
    assert (1, "length") == core.told("a")
    core.scheduler.set_pause_state(1)
    waiting = core.ask("w", 1, cache_salt=SESSION + "s")
    while "w" not in core.scheduler.requests:
        core.pace.wait(0.001)
    assert before.block_hashes == waiting.block_hashes
    write(gate, 2)
    gate.publish()
    core.scheduler.set_pause_state(0)
    core.input_queue.put("wake")
    assert (1, "length") == core.told("w")
    after = core.ask("b", 1, cache_salt=SESSION + "s")
    assert (1, "length") == core.told("b")
    assert before.block_hashes != after.block_hashes == waiting.block_hashes


def test_what_weights_in_doubt_computed_is_found_by_no_session(make: Make) -> None:
    unfit: list[str] = []
    core, gate = make(kv=KvPolicy.SESSIONS, unfit=lambda: unfit[0] if unfit else None)

    def named() -> tuple[Any, ...]:
        core.input_queue.put("wake")
        while gate.wanted:
            core.pace.wait(0.001)
        name = str(len(found))
        request = core.ask(name, 1, cache_salt=SESSION + "s")
        assert (1, "length") == core.told(name)
        return tuple(request.block_hashes)

    found: list[tuple[Any, ...]] = []
    found.append(named())
    gate.fail("bits in doubt")
    gate.prove(2)
    found.append(named())
    write(gate, 3)  # which nobody reads back
    write(gate, 4)
    gate.publish()
    found.append(named())
    unfit.append("a sweep found other bits")  # while nothing runs
    gate.hold(Policy.KEEP)
    gate.write()
    unfit.clear()
    gate.resume(4)
    gate.prove(4)
    found.append(named())
    assert len(found) == len(set(found))


def test_requests_that_ended_since_the_last_write_are_named_as_their_clients_know_them(make: Make) -> None:
    core, gate = make()
    core.ask("a-77", 3, external_req_id="A")
    assert (3, "length") == core.told("a-77")
    core.ask("b-78", 400, external_req_id="B")
    while core.output_queue.empty():
        core.pace.wait(0.001)
    assert {"B"} == set(gate.hold(Policy.KEEP))
    assert ("A",) == gate.ended()
    gate.write()
    gate.resume(2)
    gate.publish()
    assert (400, "length") == core.told("b-78")
    assert {} == gate.hold(Policy.KEEP)
    assert ("B",) == gate.ended()
    gate.release()


@pytest.mark.parametrize("hands_out", [lambda request: request, lambda r: (r.request_id, r.client_index)])
def test_a_request_that_the_frontend_ended_is_told_as_ended_and_not_as_one_that_never_began(
    make: Make, hands_out: Callable[[Request], Any]
) -> None:
    core, gate = make(hands_out=hands_out)
    core.ask("a-77", 10**6, external_req_id="A")
    while core.output_queue.empty():
        core.pace.wait(0.001)
    core.input_queue.put(HungUp(["a-77"]))
    while "a-77" in core.scheduler.requests:
        core.pace.wait(0.001)
    spans = gate.hold(Policy.KEEP)
    ended = gate.ended()
    gate.release()
    assert ({}, ("A",)) == (spans, ended)
    crossing = Crossing(_version(1), _version(2), spans, ended)
    assert [TokenSpan(0, 3, 1)] == token_spans("A", 3, 1, [crossing])


def test_the_choices_of_a_request_are_counted_each_by_its_own_name(make: Make) -> None:
    core, gate = make()
    core.ask("0_A-12345678", 1, external_req_id="A")
    assert (1, "length") == core.told("0_A-12345678")
    core.ask("1_A-12345678", 10**6, external_req_id="A")
    core.ask("12_B", 10**6, external_req_id="B")  # without what vLLM puts behind
    core.ask("3_C-12345678", 10**6, external_req_id="3_C")  # the client's own number
    core.ask("3_3_C-12345678", 10**6, external_req_id="3_C")
    while {r.status for r in core.scheduler.requests.values()} != {Status.RUNNING} or len(core.scheduler.requests) < 4:
        core.pace.wait(0.001)
    assert {"1_A", "12_B", "3_C", "3_3_C"} == set(gate.hold(Policy.KEEP))
    assert ("0_A",) == gate.ended()
    gate.release()


def test_names_of_requests_whose_clients_hung_up_are_not_kept_for_ever(make: Make) -> None:
    core, gate = make()
    names = gate.names
    lost = [core.ask(f"lost-{i}", 1).request_id for i in range(3)]
    for name in lost:
        core.told(name)
    names.begin(Request("hung up", 1, external_req_id="H"))
    running = core.ask("runs", 10**6, external_req_id="R")
    for i in range(MANY):
        names.begin(Request(f"on its way {i}", 1, external_req_id=f"W{i}"))
    while running.status != Status.RUNNING:
        core.pace.wait(0.001)
    write(gate, 2)
    assert ("hung up", "R", "W0") == (names.forget("hung up"), names.forget("runs"), names.forget("on its way 0"))
