"""The gate around a loop that works as vLLM's core does: queues, a batch in flight, a scheduler that pauses."""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, auto
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline.clock import ManualClock, SystemClock
from syncline.errors import EngineUnavailable
from syncline.logs import logger
from syncline.versions import Policy
from syncline_agent.arm.stepgate import Patience
from syncline_agent.engine import Applied, Crossing
from syncline_agent.lane.reading import TokenSpan, token_spans
from syncline_agent.vllm.caching import MANY, CacheNames
from syncline_agent.vllm.gate import CoreGate, Terms
from syncline_agent.vllm.settings import KvPolicy


class Status(IntEnum):
    WAITING = auto()
    RUNNING = auto()
    ABORTED = auto()
    FAILED = auto()


TERMS = Terms("wake", paused_new=1, paused_all=2, running=Status.RUNNING, aborted=Status.ABORTED, failed=Status.FAILED)
BLOCK = 4


@dataclass(eq=False)
class Request:
    """What of vLLM's request the arm touches."""

    request_id: str
    tokens_wanted: int
    cache_salt: str | None = None
    external_req_id: str | None = None
    client_index: int = 0
    prompt: tuple[int, ...] = tuple(range(8))
    status: Status = Status.WAITING
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    skip_reading_prefix_cache: bool = False
    block_hashes: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    syncline: Any = None

    def is_finished(self) -> bool:
        return self.status in (Status.ABORTED, Status.FAILED)

    def update_block_hashes(self) -> None:
        for low in range(len(self.block_hashes) * BLOCK, len(self.prompt), BLOCK):
            self.block_hashes.append((self.cache_salt if low == 0 else None, *self.prompt[low : low + BLOCK]))


@dataclass(frozen=True)
class HungUp:
    """The frontend wants no more of these requests."""

    names: Collection[str]


class Scheduler:
    """Runs everything that it has, a token a step, unless paused."""

    def __init__(self, hands_out: Callable[[Request], Any]) -> None:
        """`hands_out`: what it says of a request that it ended."""
        self.requests: dict[str, Request] = {}
        self.hands_out = hands_out
        self.pause_state = 0
        self.resets: list[bool] = []

    def set_pause_state(self, state: int) -> None:
        self.pause_state = state

    def runs(self) -> list[Request]:
        if self.pause_state == 2:
            return []
        return [r for r in self.requests.values() if self.pause_state == 0 or r.status == Status.RUNNING]

    def get_num_unfinished_requests(self) -> int:
        return len(self.runs())

    def finish_requests(self, names: Collection[str] | None, status: Status) -> list[Any]:
        ended = [request for name, request in self.requests.items() if names is None or name in names]
        self.requests = {name: request for name, request in self.requests.items() if request not in ended}
        for request in ended:
            request.status = status
        return list(map(self.hands_out, ended))

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        self.resets.append(reset_running_requests)
        return True


class Core:
    """The loop of an engine core with a batch in flight."""

    def __init__(self, hands_out: Callable[[Request], Any]) -> None:
        self.input_queue: queue.Queue[Any] = queue.Queue()
        self.output_queue: queue.Queue[tuple[int, Any]] = queue.Queue()
        self.scheduler = Scheduler(hands_out)
        self.batch_queue: deque[list[Request]] = deque()
        self.weight_version = "default"
        self.stood_with_batch = False
        self.pace = threading.Event()
        self.gate: CoreGate | None = None
        self.stopping = False
        self.heard: dict[str, list[str | None]] = {}
        self.thread = threading.Thread(target=self._run, daemon=True)

    def set_weight_version(self, version: str) -> None:
        self.weight_version = version

    def _send_error_outputs_to_client(self, names: list[str], client: int) -> None:
        self._send(names, client, "error")

    def _send_abort_outputs(self, ended: list[Any]) -> None:
        for one in ended:
            name, client = one if isinstance(one, tuple) else (one.request_id, one.client_index)
            self._send([name], client, "abort")

    def _send(self, names: list[str], client: int, finish: str) -> None:
        outputs = [SimpleNamespace(request_id=name, finish_reason=finish) for name in names]
        self.output_queue.put((client, SimpleNamespace(outputs=outputs)))

    def _run(self) -> None:
        gate = self.gate
        assert gate is not None
        gate.hear_of_ends()
        while not self.stopping:
            while not (self.scheduler.runs() or self.batch_queue or gate.wanted) and not self.stopping:
                self._take(self.input_queue.get())
            while not self.input_queue.empty():
                self._take(self.input_queue.get_nowait())
            gate.between_steps()
            outputs = gate.let_out(self._step())
            for output in (outputs or {}).items():
                self.output_queue.put(output)

    def _take(self, item: Any) -> None:
        assert self.gate is not None
        if isinstance(item, HungUp):
            self.scheduler.finish_requests(item.names, Status.ABORTED)
        if isinstance(item, Request) and self.gate.admit(item):
            self.scheduler.requests[item.request_id] = item

    def _step(self) -> dict[int, Any] | None:
        """Begin a batch, or end the one in flight: every second step has none to show."""
        running = self.scheduler.runs()
        for request in running:
            request.status = Status.RUNNING
            request.num_computed_tokens += 1
        if running and not self.batch_queue:
            self.batch_queue.append(running)
            return None
        if not self.batch_queue:
            return {}
        self.pace.wait(0.001)
        told: dict[int, Any] = {}
        for request in self.batch_queue.popleft():
            request.num_output_tokens += 1
            last = request.num_output_tokens >= request.tokens_wanted
            if last:
                self.scheduler.requests.pop(request.request_id, None)
            output = SimpleNamespace(request_id=request.request_id, finish_reason="length" if last else None)
            told.setdefault(request.client_index, SimpleNamespace(outputs=[])).outputs.append(output)
        return told

    def ask(self, name: str, tokens: int, **more: Any) -> Request:
        assert self.gate is not None
        request = Request(name, tokens, **more)
        request.syncline = self.gate.names.begin(request)
        request.update_block_hashes()
        self.input_queue.put(request)
        return request

    def told(self, name: str) -> tuple[int, str]:
        """How many outputs of a request came until its last, and how it ended."""
        heard = self.heard.setdefault(name, [])
        while not heard or heard[-1] is None:
            _, outputs = self.output_queue.get(timeout=10)
            for output in outputs.outputs:
                self.heard.setdefault(output.request_id, []).append(output.finish_reason)
        return len(heard), str(heard[-1])


def version(number: int) -> Applied:
    return Applied("run", "main", number, f"d{number}", True)


Make = Callable[..., tuple[Core, CoreGate]]


@pytest.fixture
def make() -> Iterator[Make]:
    cores: list[Core] = []

    def start(kv: KvPolicy = KvPolicy.SALT, failed: str | None = None, **more: Any) -> tuple[Core, CoreGate]:
        core = Core(more.pop("hands_out", lambda request: request))

        def still() -> None:
            core.stood_with_batch = core.stood_with_batch or bool(core.batch_queue)

        unfit, asleep = more.pop("unfit", lambda: None), more.pop("asleep", lambda: False)
        names, log = CacheNames(kv, "e"), logger("gate")
        gate = CoreGate(
            core,
            names,
            TERMS,
            clock=more.pop("clock", SystemClock()),
            unfit=unfit,
            asleep=asleep,
            still=still,
            failed=failed,
            log=log,
            **more,
        )
        core.gate = gate
        core.thread.start()
        cores.append(core)
        return core, gate

    yield start
    for core in cores:
        core.stopping = True
        core.input_queue.put("wake")
        core.thread.join(10)
        assert not core.thread.is_alive()
        assert core.gate is not None
        core.gate.fail("the test is over")  # whatever it left under way


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


def write(gate: CoreGate, number: int, policy: Policy = Policy.KEEP) -> None:
    gate.hold(policy)
    gate.write()
    gate.resume(number)


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
def test_the_interpreter_takes_short_turns_from_a_hold_until_what_was_written_leaves(make: Make, end: str) -> None:
    _, gate = make()
    found = sys.getswitchinterval()
    gate.hold(Policy.KEEP)
    assert sys.getswitchinterval() < found
    if end != "release":
        gate.write()
        gate.resume(2)
        gate.release()  # of a hold that its write has ended
        assert sys.getswitchinterval() < found
    {"publish": gate.publish, "release": gate.release, "fail": lambda: gate.fail("in doubt")}[end]()
    assert found == pytest.approx(sys.getswitchinterval())


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


def test_what_a_rank_elsewhere_doubts_is_not_served(make: Make) -> None:
    core, gate = make()
    gate.heed([None, None])
    core.ask("a", 2)
    assert (2, "length") == core.told("a")
    gate.heed([None, "the weights are others"])
    core.ask("b", 2)
    assert (1, "error") == core.told("b")
    assert "the weights are others" == gate.error


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


def test_a_gate_that_waits_in_vain_for_a_proof_is_opened_and_says_no_version(make: Make) -> None:
    core, gate = make(failed="not proven yet")
    core.ask("early", 1)
    assert (1, "error") == core.told("early")
    gate.open()
    core.ask("late", 3)
    assert (3, "length") == core.told("late")
    assert "default" == core.weight_version


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
    crossing = Crossing(version(1), version(2), spans, ended)
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
