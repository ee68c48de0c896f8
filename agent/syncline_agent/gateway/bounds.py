"""How far behind its target what is served may be when a request is let in, and how far it may be by now. Pure.

What is not known counts as the most that it can be, and where that has no end it is None: never as no lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from syncline_agent.engine import Applied
from syncline_agent.gateway.agent import State

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is accepted. Nothing set: any lag."""

    versions: int | None = None
    seconds: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is a bound."""
        return self.versions is not None or self.seconds is not None

    def stricter(self, other: Bounds) -> Bounds:
        """What holds both."""
        return Bounds(_least(self.versions, other.versions), _least(self.seconds, other.seconds))


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Lag:
    """How far what is served may be from its target now."""

    versions: int | None = None
    """By the target as the agent knows it, or what it saw of a newer one; None while it has none."""
    seconds: float | None = None
    """No more than these, whatever was committed since head was read; None where nobody can tell."""
    head_age: float | None = None
    """Seconds since head was read: after that versions may have come that nobody here has heard of."""


UNKNOWN_LAG = Lag()


def lag_of(state: State | None, applied: Applied | None, passed: float) -> Lag:
    """Of what the log of commits says is applied, `passed` seconds after the state was asked for."""
    if state is None or applied is None:
        return UNKNOWN_LAG
    if state.target is None:
        return Lag(None, None, _later(state.head_age, passed))
    versions = abs(state.target - applied.version)
    if state.newest is not None and not state.pinned:
        versions = max(versions, state.newest - applied.version)
    if state.pinned and not versions:
        return Lag(0, 0.0, 0.0)  # what a pin names is the target, whatever the store holds by now
    head_age = _later(state.head_age, passed)
    behind = _later(state.lag_most, passed)
    if state.applied is None or state.applied.version != applied.version:
        behind = None if versions else head_age  # the log is ahead of the state, and on its target again
    return Lag(versions, behind, head_age)


def _later(seconds: float | None, passed: float) -> float | None:
    return None if seconds is None else seconds + passed


def _least(one: Number | None, other: Number | None) -> Number | None:
    return other if one is None else one if other is None else min(one, other)
