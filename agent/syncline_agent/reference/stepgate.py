"""Between two forward steps: where the arm makes the engine's loop stand still and writes.

The arm's thread asks (`hold`, `switch`, `release`), the loop's thread passes through `pass_between_steps` before every
step and there waits, or runs the write. The loop waits no longer than its patience: an agent that dies between its two
calls costs a pause, never the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from syncline.clock import Clock
from syncline.errors import EngineUnavailable
from syncline.versions import Policy
from syncline_agent.arm.gate import Switched


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


class _State(Enum):
    FREE = auto()
    WANTED = auto()
    HELD = auto()
    WRITING = auto()
    WRITTEN = auto()


class StepGate:
    """The meeting place of one loop and one arm. `wake` is the loop's own condition: a hold wakes it from idleness."""

    def __init__(self, wake: threading.Condition, clock: Clock, patience: Patience = DEFAULT_PATIENCE) -> None:
        self._wake = wake
        self._clock = clock
        self._patience = patience
        self._state = _State.FREE
        self._policy = Policy.KEEP
        self._write: Callable[[], None] | None = None
        self._outcome: Switched | Exception | None = None

    # --- the arm's thread ------------------------------------------------------------------------------------------

    def hold(self, policy: Policy) -> None:
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

    def switch(self, write: Callable[[], None]) -> Switched:
        """As `Gate.switch`."""
        with self._wake:
            if self._state is not _State.HELD:
                raise EngineUnavailable(
                    "the engine's loop went on before the write came; nothing was written, try again"
                )
            self._state, self._write, self._outcome = _State.WRITING, write, None
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._state is _State.WRITTEN)  # the write itself bounds this
            self._state, outcome = _State.FREE, self._outcome
        assert outcome is not None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def release(self) -> None:
        """As `Gate.release`; harmless when nothing is held."""
        with self._wake:
            if self._state in (_State.WANTED, _State.HELD):
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

    def pass_between_steps(
        self,
        active: int,
        spans: Callable[[], Mapping[str, int]],
        written: Callable[[Policy], None],
    ) -> None:
        """Come by with `active` sequences in flight and no step running. Returns at once, or after a hold ended; calls
        `spans` before a write, and `written` (with `wake` held) right after one that succeeded."""
        with self._wake:
            if not self.wanted or (self.draining and active):
                return
            began = self._clock.monotonic()
            self._state = _State.HELD
            self._wake.notify_all()
            if not self._wake.wait_for(lambda: self._state is not _State.HELD, self._patience.held_s):
                self._state = _State.FREE
            if self._state is not _State.WRITING:
                return
            write = self._write
        assert write is not None
        met = spans()
        outcome: Switched | Exception
        try:
            write()
            outcome = Switched(self._clock.monotonic() - began, met)
        except Exception as error:  # answered by the arm, which also knows whether anything was written
            outcome = error
        with self._wake:
            if isinstance(outcome, Switched):
                written(self._policy)
            self._outcome, self._write, self._state = outcome, None, _State.WRITTEN
            self._wake.notify_all()
