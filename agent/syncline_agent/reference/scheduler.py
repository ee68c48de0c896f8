"""Continuous batching: one loop that feeds a mix of sequences through the decoder, a token each, and stamps every token
with the version that produced it.

It owns the decoder's slots and the queue, and is the engine's side of the arm's `Gate`. Nothing computed after a write
leaves before the write was read back (`publish`), and nothing at all while the live weights are not proven: then the
loop waits, or, when they or the gate are out of service, fails what it has. Keys and values of a sequence stay in its own
slot and end with it, so those of older weights reach no other request.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch
from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import EngineUnavailable
from syncline.logs import logger
from syncline.metrics import Metrics
from syncline.versions import Policy
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.stepgate import DEFAULT_PATIENCE, Patience, StepGate
from syncline_agent.reference.choices import Choice, Finish, Output
from syncline_agent.reference.model import Decoder
from syncline_agent.reference.sampling import sample

PREFILL_ROWS = 512
"""Prompt tokens that one step takes in beside the running sequences; a longer prompt goes alone."""
RECHECK_S = 0.05


class Scheduler:
    """The generation loop over live weights. It is the arm's `Gate`."""

    def __init__(
        self,
        decoder: Decoder,
        live: LiveWeights,
        *,
        clock: Clock,
        metrics: Metrics,
        patience: Patience = DEFAULT_PATIENCE,
        waiting_max: int = 1024,
        doubt: Callable[[], str | None] = lambda: None,
        failed: str | None = None,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        """`doubt`: why what other ranks hold must not be computed with; `failed`: why nothing is served before `prove`."""
        self._decoder = decoder
        self._live = live
        self._metrics = metrics
        self._waiting_max = waiting_max
        self._log = log or logger("generation")
        self._wake = threading.Condition(threading.RLock())
        self._gate = StepGate(self._wake, clock, patience)
        self._waiting: deque[Choice] = deque()
        self._active: list[Choice] = []
        self._free = list(reversed(range(decoder.slots)))
        self._aborted: set[Choice] = set()
        self._held: list[tuple[Choice, Output]] | None = None
        """What was computed since a write, until `publish`."""
        self._doubt = doubt
        self._failed = failed
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the loop; what is in flight is aborted."""
        with self._wake:
            self._stopping = True
            self._gate.end()
        self._thread.join()

    @property
    def error(self) -> str | None:
        """Why nothing is served, in words."""
        return self._live.error or self._doubt() or self._failed

    @property
    def load(self) -> tuple[int, int]:
        """Sequences in flight, and waiting."""
        with self._wake:
            return len(self._active), len(self._waiting)

    @property
    def max_len(self) -> int:
        """Prompt and output tokens that fit in a slot."""
        return self._decoder.max_len

    def submit(self, choices: Sequence[Choice]) -> None:
        """Queue all, or none: EngineUnavailable when the replica is out of service or the queue is full."""
        with self._wake:
            if self.error is not None or self._stopping:
                raise EngineUnavailable(f"the replica is out of service: {self.error or 'it stops'}")
            if len(self._waiting) + len(choices) > self._waiting_max:
                raise EngineUnavailable(f"{len(self._waiting)} sequences wait already, at most {self._waiting_max} may")
            self._waiting.extend(choices)
            self._wake.notify_all()

    def abort(self, choices: Sequence[Choice]) -> None:
        """End these before the next step, if they still run; nothing more of them is delivered."""
        with self._wake:
            self._aborted.update(choices)
            self._wake.notify_all()

    # --- Gate, called by the arm -----------------------------------------------------------------------------------

    def hold(self, policy: Policy) -> Mapping[str, int]:
        return self._gate.hold(policy)

    def ended(self) -> Sequence[str] | None:
        return self._gate.ended()

    def write(self) -> None:
        self._gate.write()

    def resume(self, version: int) -> float:
        return self._gate.resume(self._written)

    def release(self) -> None:
        self._gate.release()

    def publish(self) -> None:
        with self._wake:
            held, self._held = self._held, None
            for choice, output in held or ():
                choice.deliver(output)
            self._wake.notify_all()

    def fail(self, reason: str) -> None:
        with self._wake:
            self._failed = reason
            self._finish_all(None, error=reason)
            self._gate.end()

    def prove(self, version: int) -> None:
        with self._wake:
            self._failed = None
            self.publish()

    def open(self) -> None:
        pass  # what is not proven is never served here

    # --- the loop --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._gate.pass_between_steps(len(self._active), self._spans)
            with self._wake:
                if self._stopping:
                    self._finish_all(Finish.ABORT, error=None)
                    return
                self._drop_aborted()
                if self.error is not None:
                    self._finish_all(None, error=self.error)
                self._admit()
                if self._gate.wanted and not (self._gate.draining and self._active):
                    continue
                if not self._active or not self._in_service:
                    self._wake.wait(RECHECK_S if self._active or self._waiting or self._held is not None else None)
                    continue
            try:
                self._step()
            except Exception as error:  # one bad step must not end generation for ever
                self._log.exception("a forward step failed")
                with self._wake:
                    self._finish_all(None, error=f"a forward step failed: {error}")

    @property
    def _in_service(self) -> bool:
        return self._live.in_service and self._failed is None and self._doubt() is None

    def _spans(self) -> Mapping[str, int]:
        return {choice.request_id: len(choice.tokens) for choice in self._active}

    def _written(self, policy: Policy) -> None:
        if self._held is not None:
            # The write before this one was never read back, and this one came before the loop saw it fail.
            self._finish_all(None, error=self.error or "a write could not be read back; ask again")
        if policy is Policy.ABORT:
            for choice in list(self._active):
                self._end(choice, Output(choice.number, spans=tuple(choice.spans), finish=Finish.ABORT))
        self._held = []

    def _drop_aborted(self) -> None:
        if self._aborted:
            for choice in [c for c in self._active if c in self._aborted]:
                self._leave(choice)
            self._waiting = deque(c for c in self._waiting if c not in self._aborted)
            self._aborted.clear()

    def _admit(self) -> None:
        if self._gate.draining or not self._in_service:
            return
        rows = 0
        while self._waiting and self._free:
            rows += len(self._waiting[0].prompt)
            if rows > PREFILL_ROWS and rows > len(self._waiting[0].prompt):
                return
            choice = self._waiting.popleft()
            choice.slot = self._free.pop()
            self._active.append(choice)

    def _step(self) -> None:
        """Feed every active sequence what it has not been fed: its prompt, or its newest token."""
        stepping = list(self._active)  # `fail` may end them meanwhile
        tokens: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        ends: list[int] = []
        for choice in stepping:
            fed = choice.tokens[-1:] or choice.prompt
            start = len(choice.prompt) + len(choice.tokens) - len(fed)
            tokens += fed
            slots += [choice.slot] * len(fed)
            positions += range(start, start + len(fed))
            ends.append(len(tokens) - 1)
        version = self._live.version
        assert version is not None
        logits = self._decoder.forward(tokens, slots, positions)[ends]
        drawn = sample(logits, [c.params for c in stepping], [len(c.tokens) for c in stepping])
        tops = _tops(logits, stepping)
        self._metrics.tokens.inc(len(drawn))
        with self._wake:
            for choice, one, top in zip(stepping, drawn, tops, strict=True):
                if choice not in self._active:
                    continue
                text, finish = choice.add(one.token, version)
                spans = tuple(choice.spans) if finish else ()
                output = Output(choice.number, text, one.token, one.logprob, top, spans, finish)
                if finish:
                    self._end(choice, output)
                else:
                    self._emit(choice, output)

    def _emit(self, choice: Choice, output: Output) -> None:
        if choice in self._aborted:
            return
        if self._held is not None:
            self._held.append((choice, output))
        else:
            choice.deliver(output)

    def _end(self, choice: Choice, output: Output) -> None:
        self._leave(choice)
        self._emit(choice, output)

    def _leave(self, choice: Choice) -> None:
        self._active.remove(choice)
        self._gate.note_end(choice.request_id)
        self._free.append(choice.slot)

    def _finish_all(self, finish: Finish | None, *, error: str | None) -> None:
        """End everything. What is held back was computed with bits that were not read back: it is dropped, and the
        choices it belongs to fail even if they had ended."""
        ended = [choice for choice, output in self._held or () if output.is_last]
        self._held = None
        for choice in ended:
            choice.deliver(Output(choice.number, finish=finish, error=error))
        for choice in list(self._active):
            self._end(choice, Output(choice.number, spans=tuple(choice.spans), finish=finish, error=error))
        while self._waiting:
            choice = self._waiting.popleft()
            choice.deliver(Output(choice.number, finish=finish, error=error))


def _tops(logits: torch.Tensor, choices: Sequence[Choice]) -> list[Mapping[int, float] | None]:
    """The likeliest tokens of each row under the distribution that its logprob is taken from, where asked for."""
    tops: list[Mapping[int, float] | None] = []
    for row, choice in zip(logits, choices, strict=True):
        if choice.top == 0:
            tops.append(None)
            continue
        spread = torch.log_softmax(row.float() / (choice.params.temperature or 1.0), dim=-1)
        values, places = spread.topk(min(choice.top, spread.numel()))
        tops.append(dict(zip(places.tolist(), values.tolist(), strict=True)))
    return tops
