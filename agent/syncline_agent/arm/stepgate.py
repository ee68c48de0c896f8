"""Between two forward steps: where the arm makes the engine's loop stand still while ranks write.

The arm's thread asks (`hold`, `write`, `resume`, `release`), the loop's thread passes through `pass_between_steps` before
every step and stands there. It stands no longer than its patience before a write is announced: an agent that dies before
costs a pause, never the engine. After it the loop stands until it is told to go on, and whoever asked sees to that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from syncline.clock import Clock
from syncline.errors import EngineUnavailable
from syncline.versions import Policy
from syncline_agent.arm.turns import uncollected


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each side waits for the other."""

    held_s: float = 10.0
    """The loop, for the write after a hold."""
    step_s: float = 20.0
    """The arm, for the step in flight to end."""
    drain_s: float = 600.0
    """The arm, for requests in flight to end."""


DEFAULT_PATIENCE = Patience()

MOST_ENDED = 65_536
MOST_ENDED_CHARS = 4 << 20
"""Of the ids of requests that ended between two writes, in all: a message to the agent must hold them."""


class _State(Enum):
    FREE = auto()
    WANTED = auto()
    HELD = auto()
    WRITING = auto()


class StepGate:
    """The meeting place of one loop and one arm. `wake` is the loop's own condition: a hold wakes it from idleness."""

    def __init__(self, wake: threading.Condition, clock: Clock, patience: Patience = DEFAULT_PATIENCE) -> None:
        self._wake = wake
        self._clock = clock
        self._patience = patience
        self._state = _State.FREE
        self._policy = Policy.KEEP
        self._held_at = 0.0
        self._spans: Mapping[str, int] = {}
        self._ended: list[str] = []
        self._ended_chars = 0

    # --- the arm's thread ------------------------------------------------------------------------------------------

    def hold(self, policy: Policy) -> Mapping[str, int]:
        """As `Gate.hold`."""
        patience_s = self._patience.drain_s if policy is Policy.DRAIN else self._patience.step_s
        with self._wake:
            self._state, self._policy = _State.WANTED, policy
            self._wake.notify_all()
            if not self._wake.wait_for(lambda: self._state is not _State.WANTED, patience_s):
                self._state = _State.FREE
                raise EngineUnavailable(f"no pause between steps within {patience_s:g} s (policy {policy}); try again")
            if self._state is not _State.HELD:
                raise EngineUnavailable("the hold was released; try again")
            return self._spans

    def ended(self) -> Sequence[str] | None:
        """As `Gate.ended`."""
        with self._wake:
            too_many = len(self._ended) > MOST_ENDED or self._ended_chars > MOST_ENDED_CHARS
            return None if too_many else tuple(self._ended)

    def write(self) -> None:
        """As `Gate.write`."""
        with self._wake:
            if self._state is not _State.HELD:
                raise EngineUnavailable(
                    "the engine's loop went on before the write came; nothing was written, try again"
                )
            self._state = _State.WRITING
            self._wake.notify_all()

    def resume(self, written: Callable[[Policy], None]) -> float:
        """As `Gate.resume`; `written` is called while the loop still stands, with `wake` held."""
        with self._wake:
            if self._state is not _State.WRITING:
                raise EngineUnavailable("the engine does not stand for a write; there is nothing to go on from")
            try:
                written(self._policy)
                self._ended, self._ended_chars = [], 0
            finally:
                self._let_go()
            return self._clock.monotonic() - self._held_at

    def release(self) -> None:
        """As `Gate.release`; harmless when nothing is held."""
        with self._wake:
            if self._state in (_State.WANTED, _State.HELD):
                self._let_go()

    def end(self) -> None:
        """Let the loop go whatever was going on: the engine is out of service, or stops."""
        with self._wake:
            self._let_go()

    def _let_go(self) -> None:
        self._state = _State.FREE
        self._wake.notify_all()

    # --- the loop's thread -----------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """The loop must come by soon. The caller holds `wake`."""
        return self._state is _State.WANTED

    @property
    def draining(self) -> bool:
        """No request may begin, so that those in flight can end. The caller holds `wake`."""
        return self._state is _State.WANTED and self._policy is Policy.DRAIN

    def note_end(self, request_id: str) -> None:
        """A request is over, however it ended."""
        with self._wake:
            if len(self._ended) <= MOST_ENDED and self._ended_chars <= MOST_ENDED_CHARS:
                self._ended.append(request_id)
                self._ended_chars += len(request_id)

    def pass_between_steps(self, active: int, spans: Callable[[], Mapping[str, int]]) -> None:
        """Come by with `active` sequences in flight and no step running. Returns at once, or after a hold ended; calls
        `spans` when one begins."""
        with self._wake:
            if not self.wanted or (self.draining and active):
                return
            with uncollected():  # a full collection takes longer than a commit
                self._held_at, self._spans = self._clock.monotonic(), spans()
                self._state = _State.HELD
                self._wake.notify_all()
                if not self._wake.wait_for(lambda: self._state is not _State.HELD, self._patience.held_s):
                    self._state = _State.FREE
                self._wake.wait_for(lambda: self._state is not _State.WRITING)
