"""vLLM's engine core as the arm's gate: stands between two steps with none in flight, keeps outputs inside until they are
proven, and is out of service when told so.

The arm's thread calls what `Gate` has; the loop's thread calls the rest, around each step. It knows the engine core, its
scheduler and its queues, and no weights: what is wrong with those it is told, or asks `unfit`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import EngineUnavailable
from syncline.versions import Policy
from syncline_agent.arm.stepgate import DEFAULT_PATIENCE, Patience, StepGate
from syncline_agent.arm.turns import short_turns, uncollected
from syncline_agent.vllm.caching import CacheNames
from syncline_agent.vllm.hooks import look_up

REFUSAL_EVERY_S = 60.0
ASLEEP = "the engine sleeps, and its weights are not in memory; nothing was written: wake it, and it follows"
Outputs = Mapping[int, Any]
"""Of one step: by client, what vLLM sends to it."""


class _Waking(threading.Condition):
    """A condition that wakes a loop asleep on its input queue, too."""

    def __init__(self, poke: Callable[[], None]) -> None:
        super().__init__(threading.RLock())
        self._poke = poke

    def notify_all(self) -> None:
        super().notify_all()
        self._poke()


@dataclass(frozen=True, slots=True)
class Terms:
    """Values of vLLM's own enumerations."""

    wakeup: Any
    """What wakes a core that waits for requests."""
    paused_new: Any
    paused_all: Any
    running: Any
    aborted: Any
    failed: Any

    @classmethod
    def of_vllm(cls) -> Self:
        pauses = look_up("vllm.v1.core.sched.interface", "PauseState")
        statuses = look_up("vllm.v1.request", "RequestStatus")
        return cls(
            (look_up("vllm.v1.engine", "EngineCoreRequestType").WAKEUP, None),
            pauses.PAUSED_NEW,
            pauses.PAUSED_ALL,
            statuses.RUNNING,
            statuses.FINISHED_ABORTED,
            statuses.FINISHED_ERROR,
        )


class CoreGate:
    """The gate of one `EngineCoreProc`."""

    def __init__(
        self,
        core: Any,
        names: CacheNames,
        terms: Terms,
        *,
        clock: Clock,
        unfit: Callable[[], str | None],
        asleep: Callable[[], bool],
        still: Callable[[], object],
        failed: str | None,
        log: FilteringBoundLogger,
        patience: Patience = DEFAULT_PATIENCE,
    ) -> None:
        """`core` is vLLM's; `unfit` says why weights in this process must not serve; `asleep` whether the engine took them out
        of memory; `still` waits until no device works any more; `failed` is why the gate begins out of service, None when it
        begins in service."""
        self._core = core
        self.names = names
        self._unfit = unfit
        self._asleep = asleep
        self._failed = failed
        self._terms = terms
        self._log = log
        self._clock = clock
        self._refusal_told: float | None = None
        """When the log last said that requests are refused."""
        self._still = still
        self._wake = _Waking(lambda: core.input_queue.put_nowait(terms.wakeup))
        self._gate = StepGate(self._wake, clock, patience)
        self._withheld: list[Outputs] | None = None
        self._dropped: list[Outputs] = []
        """Outputs that must not leave: what ended in them must be told."""
        self._ending = False
        """All requests are to fail."""
        self._frozen: tuple[Any, Any] | None = None
        """The scheduler's state of pause that was found, and the one that was set."""
        self._turns: ExitStack | None = None
        """Short turns of the interpreter, which the arm's threads share with the loop, and no collection: from a hold until what was
        computed after the write has left, so that none of the calls between waits for either."""

    @property
    def error(self) -> str | None:
        """Why nothing is served."""
        return self._failed or self._unfit()

    # --- Gate: the arm's thread ------------------------------------------------------------------------------------

    def hold(self, policy: Policy) -> Mapping[str, int]:
        spans = self._gate.hold(policy)
        if self._asleep():  # the loop stands, so it neither falls asleep nor wakes now
            self._gate.release()
            raise EngineUnavailable(ASLEEP)
        with self._wake:
            if self.error is not None:
                self.names.doubt()  # what is written now mends what nothing ran on since
            if self._turns is None:
                self._turns = ExitStack()
                self._turns.enter_context(short_turns())
                self._turns.enter_context(uncollected())
        return spans

    def ended(self) -> Sequence[str] | None:
        return self._gate.ended()

    def write(self) -> None:
        self._gate.write()

    def resume(self, version: int) -> float:
        return self._gate.resume(lambda policy: self._written(version, policy))

    def publish(self) -> None:
        with self._wake:
            self._send()

    def release(self) -> None:
        self._gate.release()
        with self._wake:
            if self._withheld is None:
                self._end_turns()

    def fail(self, reason: str) -> None:
        with self._wake:
            self._failed = reason
            self._end_all()
            self._end_turns()
            self._gate.end()
        self._log.error("out of service", reason=reason)

    def prove(self, version: int) -> None:
        with self._wake:
            self.stamp(version)
            self._failed = None
            self._send()
        self._log.info("in service", version=version)

    def open(self) -> None:
        with self._wake:
            self._failed = None
            self._send()
        self._log.warning("in service without Syncline: the agent cannot follow this engine in place")

    def heed(self, doubts: Iterable[str | None]) -> None:
        """What ranks elsewhere say of their weights, before anything else is served. The loop's thread."""
        doubt = next((why for why in doubts if why is not None), None)
        if doubt is not None:
            self.fail(doubt)

    def _written(self, version: int, policy: Policy) -> None:
        """The loop stands: its scheduler may be touched from here."""
        if self._withheld is not None:
            self._end_all()  # the write before this one was never read back
        if policy is Policy.ABORT:
            ended = self._core.scheduler.finish_requests(None, self._terms.aborted)
            self._core._send_abort_outputs(ended)
        self.stamp(version)
        self.names.next(self._core.scheduler)
        self._withheld = []

    def stamp(self, version: int) -> None:
        """What vLLM says of tokens from here on, in answers and by its routes."""
        self.names.serve(version)
        if hasattr(self._core, "set_weight_version"):
            self._core.set_weight_version(str(version))

    def _send(self) -> None:
        self._end_turns()
        if self.error is not None:
            self._end_all()
            return
        held, self._withheld = self._withheld, None
        for outputs in held or ():
            for output in outputs.items():
                self._core.output_queue.put_nowait(output)

    def _end_turns(self) -> None:
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.close()

    def _end_all(self) -> None:
        self._dropped += self._withheld or []
        self._withheld = None
        self._ending = True
        self.names.doubt()
        self._wake.notify_all()

    # --- the loop's thread -----------------------------------------------------------------------------------------

    def hear_of_ends(self) -> None:
        """Before the loop begins: be told of requests that end otherwise than by a step's outputs. The frontend ends those whose
        clients hung up, and those whose text came to a stop string: of them no output says that they are over."""
        scheduler = self._core.scheduler
        finish = scheduler.finish_requests

        def heard(*arguments: Any, **named: Any) -> Any:
            finished = finish(*arguments, **named)
            for ended in finished:
                self._gate.note_end(self.names.forget(_told_of(ended)[0]))
            return finished

        scheduler.finish_requests = heard

    @property
    def wanted(self) -> bool:
        """The loop must come by, whether it has work or not."""
        with self._wake:
            return self._gate.wanted or self._ending or self._frozen is not None

    def between_steps(self) -> None:
        """Come by before a step."""
        with self._wake:
            if self._unfit() is not None and self._core.scheduler.get_num_unfinished_requests():
                self._end_all()
            if self._ending:
                self._fail_requests()
            wanted, draining = self._gate.wanted, self._gate.draining
        if wanted:
            self._freeze(self._terms.paused_new if draining else self._terms.paused_all)
            if self._core.batch_queue:
                return  # what is in flight ends in the steps that follow
            if draining and self._core.scheduler.get_num_unfinished_requests():
                return
            self._still()
            self._gate.pass_between_steps(0, self._spans)
        self._thaw()
        self.names.catch_up(self._core.scheduler)

    def let_out(self, outputs: Outputs | None) -> Outputs | None:
        """What of a step's outputs may leave now."""
        if not outputs:
            return outputs
        for ended in outputs.values():
            for output in ended.outputs:
                if output.finish_reason is not None:
                    self._gate.note_end(self.names.forget(output.request_id))
        with self._wake:
            if self.error is not None:
                self._dropped.append(outputs)
                self._ending = True
                return {}
            if self._withheld is not None:
                self._withheld.append(outputs)
                return {}
            return outputs

    def admit(self, request: Any) -> bool:
        """Whether a request may begin; one that may not is answered with an error."""
        reason = self.error
        if reason is None:
            self.names.freshen(request)
            return True
        now = self._clock.monotonic()
        if self._refusal_told is None or now - self._refusal_told >= REFUSAL_EVERY_S:
            self._refusal_told = now
            self._log.warning(f"requests are answered with an error: not proven ({reason}); see the agent's /readyz")
        self._core._send_error_outputs_to_client([request.request_id], request.client_index)
        return False

    def _freeze(self, state: Any) -> None:
        scheduler = self._core.scheduler
        if self._frozen is None:
            self._frozen = scheduler.pause_state, state
            if scheduler.pause_state < state:
                scheduler.set_pause_state(state)

    def _thaw(self) -> None:
        if self._frozen is not None:
            found, state = self._frozen
            self._frozen = None
            if self._core.scheduler.pause_state == state and found != state:  # else somebody paused it meanwhile
                self._core.scheduler.set_pause_state(found)

    def _spans(self) -> Mapping[str, int]:
        spans: dict[str, int] = {}
        for request in self._core.scheduler.requests.values():
            if not request.is_finished() and (request.num_output_tokens or request.status == self._terms.running):
                name = self.names.outside(request)
                spans[request.request_id if name in spans else name] = request.num_output_tokens
        return spans

    def _fail_requests(self) -> None:
        """All requests end with an error, those too whose end was kept inside. The caller holds `wake`."""
        self._ending = False
        failed: defaultdict[int, list[str]] = defaultdict(list)
        for outputs in self._dropped:
            for client, ended in outputs.items():
                failed[client] += [output.request_id for output in ended.outputs if output.finish_reason is not None]
        self._dropped = []
        for ended in self._core.scheduler.finish_requests(None, self._terms.failed):
            name, client = _told_of(ended)
            failed[client].append(name)
        for client, names in failed.items():
            if names:
                self._core._send_error_outputs_to_client(names, client)


def _told_of(ended: Any) -> tuple[str, int]:
    """The id and the client of a request that a scheduler ended: older releases hand out these, newer ones requests."""
    if isinstance(ended, tuple):
        name, client = ended
        return name, client
    return ended.request_id, ended.client_index
