"""Whether a request may go to the engine now, by what is served and what it accepts. Pure: no clock, no waiting.

Nothing is let in while nothing proven is in service, whatever the request accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from syncline_agent.engine import Applied
from syncline_agent.gateway.agent import State
from syncline_agent.gateway.wanted import Wanted

SOON_S = 1.0
"""A version that the agent is bringing, or an engine that is about to come."""
LATER_S = 5.0
"""A version that is not published, where nobody knows how often one is."""
MOST_LATER_S = 60.0


class Reason(Enum):
    """Why a request was not let in, in one word for metrics and clients."""

    NEVER_PROVEN = "never_proven"
    OUT_OF_SERVICE = "out_of_service"
    AGENT_AWAY = "agent_away"
    NOT_YET = "not_yet"
    """Older than what is accepted."""
    GONE_BY = "gone_by"
    """Newer than the one that is accepted."""
    BUSY = "busy"
    """Too many wait already."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the gateway knows of the moment."""

    state: State | None
    applied: Applied | None
    """By the log of commits, which is ahead of `state`."""
    silence: str | None
    """Why the agent cannot be asked; None when it can."""
    was_proven: bool
    pace: float | None
    """Seconds between commits."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may go."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request may not go now."""

    reason: Reason
    message: str
    retry: bool
    """Whether asking again can help."""
    after_s: float
    """Then, after how long."""
    waiting_helps: bool = False
    """Whether the request may as well wait here."""
    status: int = 409


Verdict = Admitted | Refused
ADMITTED = Admitted()


def judge(wanted: Wanted, seen: Seen) -> Verdict:
    """Admitted, or why not."""
    state, applied = seen.state, seen.applied
    if state is None or not seen.was_proven:
        why = seen.silence or (state.error if state is not None else None) or "the engine has not come"
        return _unavailable(Reason.NEVER_PROVEN, f"no version was proven here yet: {why}")
    if seen.silence is not None:
        # An engine serves on by itself; that nobody can say what it serves is of no matter to who did not ask.
        return ADMITTED if wanted.anything and state.in_service else _unavailable(Reason.AGENT_AWAY, seen.silence)
    if applied is None or not state.in_service:
        return _unavailable(
            Reason.OUT_OF_SERVICE, f"the engine is out of service: {state.error or 'it is being proven'}"
        )
    if wanted.exact is not None:
        return _exactly(wanted.exact, applied.version, state, seen)
    if wanted.min is not None and applied.version < wanted.min:
        return _behind(wanted.min, applied.version, state, seen)
    if wanted.max_lag is not None and state.target is not None and abs(state.target - applied.version) > wanted.max_lag:
        return _lagging(wanted.max_lag, applied.version, state.target, state)
    return ADMITTED


def _exactly(version: int, applied: int, state: State, seen: Seen) -> Verdict:
    if applied == version:
        return ADMITTED
    if applied < version:
        return _behind(version, applied, state, seen)
    if state.target == version and not state.suspended:
        return _brought(version, applied)
    message = f"version {applied} is served and {version} is gone by; its target is {state.target}"
    return Refused(Reason.GONE_BY, message, retry=False, after_s=0.0)


def _behind(version: int, applied: int, state: State, seen: Seen) -> Verdict:
    if state.suspended:
        return _suspended(version, applied)
    if state.pinned and state.target is not None and state.target < version:
        message = f"version {applied} is served and the target is pinned to {state.target}, below {version}"
        return Refused(Reason.NOT_YET, message, retry=False, after_s=0.0)
    if state.target is not None and state.target >= version:
        return _brought(version, applied)
    newest = state.head if state.head is not None else applied
    pace = LATER_S if seen.pace is None else min(max(seen.pace * max(version - newest, 1), SOON_S), MOST_LATER_S)
    message = f"version {applied} is served, {version} is asked for, and the newest is {newest}"
    return Refused(Reason.NOT_YET, message, retry=True, after_s=pace, waiting_helps=True)


def _lagging(most: int, applied: int, target: int, state: State) -> Verdict:
    if state.suspended:
        return _suspended(target, applied)
    message = (
        f"version {applied} is served, {abs(target - applied)} from its target {target}; at most {most} is accepted"
    )
    return Refused(Reason.NOT_YET, message, retry=True, after_s=SOON_S, waiting_helps=True)


def _brought(version: int, applied: int) -> Verdict:
    message = f"version {applied} is served, and {version} is on its way"
    return Refused(Reason.NOT_YET, message, retry=True, after_s=SOON_S, waiting_helps=True)


def _suspended(version: int, applied: int) -> Verdict:
    message = f"version {applied} is served, {version} is asked for, and following is suspended"
    return Refused(Reason.NOT_YET, message, retry=True, after_s=LATER_S)


def _unavailable(reason: Reason, message: str) -> Refused:
    return Refused(reason, message, retry=True, after_s=SOON_S, status=503)
