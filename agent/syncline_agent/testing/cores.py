"""A loop that works as vLLM's core does, with the arm's gate around it: queues, a batch in flight, a scheduler that pauses.

For tests of the gate. It draws no tokens, and what is in it is only what the gate touches.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import IntEnum, auto
from types import SimpleNamespace
from typing import Any

from syncline.clock import Clock, SystemClock
from syncline.logs import logger
from syncline.versions import Policy
from syncline_agent.vllm.caching import CacheNames
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


class Cores:
    """Cores that run, each with its gate, until they are ended together."""

    def __init__(self) -> None:
        self._started: list[Core] = []

    def start(
        self,
        kv: KvPolicy = KvPolicy.SALT,
        *,
        failed: str | None = None,
        clock: Clock | None = None,
        unfit: Callable[[], str | None] = lambda: None,
        asleep: Callable[[], bool] = lambda: False,
        hands_out: Callable[[Request], Any] = lambda request: request,
        **more: Any,
    ) -> tuple[Core, CoreGate]:
        core = Core(hands_out)

        def still() -> None:
            core.stood_with_batch = core.stood_with_batch or bool(core.batch_queue)

        gate = CoreGate(
            core,
            CacheNames(kv, "e"),
            TERMS,
            clock=clock or SystemClock(),
            unfit=unfit,
            asleep=asleep,
            still=still,
            failed=failed,
            log=logger("gate"),
            **more,
        )
        core.gate = gate
        core.thread.start()
        self._started.append(core)
        return core, gate

    def end(self) -> None:
        for core in self._started:
            core.stopping = True
            core.input_queue.put("wake")
            core.thread.join(10)
            assert not core.thread.is_alive()
            assert core.gate is not None
            core.gate.fail("the test is over")  # whatever it left under way


def write(gate: CoreGate, number: int, policy: Policy = Policy.KEEP) -> None:
    """A version written, which nobody has read back yet."""
    gate.hold(policy)
    gate.write()
    gate.resume(number)
