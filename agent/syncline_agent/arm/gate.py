"""What an arm asks of the engine around it: stand still between two forward steps, and let it write there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from syncline.clock import Clock
from syncline.versions import Policy


@dataclass(frozen=True, slots=True)
class Switched:
    """What a write between two steps cost, and whom it met."""

    pause_seconds: float
    """From the last step before to the moment that the next one may begin."""
    spans: Mapping[str, int] = field(default_factory=dict[str, int])
    """Request id -> output tokens so far, when the write began."""


class Gate(Protocol):
    """The engine's side. Calls come in the order hold, then switch and publish, or release; a release may come from
    another thread at any time."""

    def hold(self, policy: Policy) -> None:
        """Return when no step is in flight; none begins before `switch` or `release`, or before the engine's patience
        ends. EngineUnavailable when requests did not end in time (drain) or the loop did not answer."""
        ...

    def switch(self, write: Callable[[], None]) -> Switched:
        """Run `write` where no step runs, then let steps go on; what they produce stays inside until `publish`.
        Re-raises what `write` raises. EngineUnavailable, with `write` never called, when the hold has ended."""
        ...

    def publish(self) -> None:
        """What was computed since `switch` may leave the engine."""
        ...

    def release(self) -> None:
        """End a hold without a switch."""
        ...


class OpenGate:
    """The gate of an engine that never steps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def hold(self, policy: Policy) -> None:
        pass

    def switch(self, write: Callable[[], None]) -> Switched:
        started = self._clock.monotonic()
        write()
        return Switched(self._clock.monotonic() - started)

    def publish(self) -> None:
        pass

    def release(self) -> None:
        pass
