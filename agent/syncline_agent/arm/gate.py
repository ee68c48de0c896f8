"""What an arm asks of the engine around it: stand between two forward steps while ranks write, and keep inside what was
computed with bits that nobody has read back.

A gate knows requests and steps, and no weights. Where it lives in one process with weights, they are asked apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from syncline.clock import Clock
from syncline.versions import Policy


class Gate(Protocol):
    """The engine's side: in service, or failed. A change of version comes as hold, write, resume and publish; a failure may
    come after any of them, and a release at any time before the write and from another thread.

    A gate whose process does not hold all weights itself begins failed: nothing is served before the first `prove`. A
    failed gate can be held, written under and resumed like any other.
    """

    def hold(self, policy: Policy) -> Mapping[str, int]:
        """Return when no step is in flight, on any rank; none begins before `resume` or `release`, or before the engine's
        patience ends. Under `drain` that is when requests in flight have ended, and none begins meanwhile. Returns how
        many output tokens each request in flight has, those of a step that just ended counted.

        EngineUnavailable when requests did not end in time or the engine did not answer."""
        ...

    def ended(self) -> Sequence[str] | None:
        """Ids of the requests that have ended since the last write, as `hold` names requests; asked while the engine stands.
        None where nobody counts, or more ended than could be kept."""
        ...

    def write(self) -> None:
        """From here on wait for `resume` or `fail` without patience: ranks are about to write. EngineUnavailable, and
        nothing may be written, when the hold had ended."""
        ...

    def resume(self, version: int) -> float:
        """End requests in flight if the policy of the hold was `abort`, then let steps go on, with what they produce
        stamped with `version` and kept inside until `publish` or `prove`. Returns the seconds in which no step could run.
        """
        ...

    def publish(self) -> None:
        """What was kept inside may leave the engine."""
        ...

    def release(self) -> None:
        """End a hold before its write; harmless when nothing is held, and after the write."""
        ...

    def fail(self, reason: str) -> None:
        """Out of service, whatever was going on: a hold ends, requests in flight fail, and so does what was kept inside.
        Nothing is served until `prove`."""
        ...

    def prove(self, version: int) -> None:
        """All ranks hold `version`: in service, and what was kept inside may leave."""
        ...

    def open(self) -> None:
        """Nobody will change these weights in place, and nobody has: serve as without an agent, with tokens of no version.
        Nothing to do for a gate that serves only what is proven."""
        ...


class OpenGate:
    """The gate of an engine that never steps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held_at = 0.0

    def hold(self, policy: Policy) -> Mapping[str, int]:
        self._held_at = self._clock.monotonic()
        return {}

    def ended(self) -> Sequence[str] | None:
        return ()

    def write(self) -> None:
        pass

    def resume(self, version: int) -> float:
        return self._clock.monotonic() - self._held_at

    def publish(self) -> None:
        pass

    def release(self) -> None:
        pass

    def fail(self, reason: str) -> None:
        pass

    def prove(self, version: int) -> None:
        pass

    def open(self) -> None:
        pass
