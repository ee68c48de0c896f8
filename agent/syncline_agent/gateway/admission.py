"""Whether a request may go to the engine now, by what is served, what it accepts and what its pool allows. Pure: no clock, no
waiting.

Nothing is let in while nothing proven is in service, whatever the request accepts. A pool's bounds hold for every request,
and a request's own beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from syncline_agent.engine import Applied
from syncline_agent.gateway.agent import State
from syncline_agent.gateway.bounds import NO_BOUNDS, UNKNOWN_LAG, Bounds, Lag
from syncline_agent.gateway.wanted import Wanted

SOON_S = 1.0
"""A version that the agent is bringing, or an engine that is about to come."""
LATER_S = 5.0
"""A version that is not published, where nobody knows how often one is."""
MOST_LATER_S = 60.0
HEAD_KNOWN_S = 30.0
"""A head that was not read for longer is not known: how many versions are missing cannot be told then."""


class Reason(Enum):
    """Why a request was not let in, in one word for metrics and clients."""

    NEVER_PROVEN = "never_proven"
    OUT_OF_SERVICE = "out_of_service"
    AGENT_AWAY = "agent_away"
    NO_POLICY = "no_policy"
    """The pool's bounds were never read."""
    NOT_YET = "not_yet"
    """Older than what is accepted."""
    GONE_BY = "gone_by"
    """Newer than the one that is accepted."""
    LAG_VERSIONS = "lag_versions"
    """More versions behind than the request or its pool accepts."""
    LAG_SECONDS = "lag_seconds"
    """Behind for longer."""
    LAG_UNKNOWN = "lag_unknown"
    """Perhaps further behind: head was not read for too long."""
    BUSY = "busy"
    """Too many wait already."""


UNAVAILABLE = frozenset({Reason.NEVER_PROVEN, Reason.OUT_OF_SERVICE, Reason.AGENT_AWAY, Reason.NO_POLICY, Reason.BUSY})
"""503 and not 409: it is not the version that stands in the way."""


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
    lag: Lag = UNKNOWN_LAG


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

    @property
    def status(self) -> int:
        return 503 if self.reason in UNAVAILABLE else 409


Verdict = Admitted | Refused
ADMITTED = Admitted()


def judge(wanted: Wanted, seen: Seen, pool: Bounds | None = NO_BOUNDS) -> Verdict:
    """Admitted, or why not. `pool` None: nobody knows what the pool's bounds are."""
    state, applied = seen.state, seen.applied
    if state is None or not seen.was_proven:
        why = seen.silence or (state.error if state is not None else None) or "the engine has not come"
        return _unavailable(Reason.NEVER_PROVEN, f"no version was proven here yet: {why}")
    if pool is None:
        return _unavailable(Reason.NO_POLICY, "the target file was never read, so the pool's bounds are not known")
    if seen.silence is not None:
        # An engine serves on by itself; that nobody can say what it serves is of no matter to who did not ask.
        free = wanted.anything and not pool.any and state.in_service
        return ADMITTED if free else _unavailable(Reason.AGENT_AWAY, seen.silence)
    if applied is None or not state.in_service:
        return _unavailable(
            Reason.OUT_OF_SERVICE, f"the engine is out of service: {state.error or 'it is being proven'}"
        )
    if wanted.exact is not None:
        verdict = _exactly(wanted.exact, applied.version, state, seen)
    elif wanted.min is not None and applied.version < wanted.min:
        verdict = _behind(wanted.min, applied.version, state, seen)
    else:
        verdict = ADMITTED
    if isinstance(verdict, Refused):
        return verdict
    return _lagging(wanted, pool, applied.version, state, seen.lag)


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
        return _suspended(f"version {applied} is served, {version} is asked for")
    if state.pinned and state.target is not None and state.target < version:
        message = f"version {applied} is served and the target is pinned to {state.target}, below {version}"
        return Refused(Reason.NOT_YET, message, retry=False, after_s=0.0)
    if state.target is not None and state.target >= version:
        return _brought(version, applied)
    newest = state.head if state.head is not None else applied
    pace = LATER_S if seen.pace is None else min(max(seen.pace * max(version - newest, 1), SOON_S), MOST_LATER_S)
    message = f"version {applied} is served, {version} is asked for, and the newest is {newest}"
    return Refused(Reason.NOT_YET, message, retry=True, after_s=pace, waiting_helps=True)


def _lagging(wanted: Wanted, pool: Bounds, applied: int, state: State, lag: Lag) -> Verdict:
    most = wanted.bounds.stricter(pool)
    if most.versions is not None and lag.versions is not None and lag.versions > most.versions:
        far = f"version {applied} is served, {lag.versions} from its target {state.target}; {_at_most(most, pool)}"
        return _too_far(Reason.LAG_VERSIONS, far, wanted, state)
    if most.seconds is not None and lag.versions and lag.seconds is not None and lag.seconds > most.seconds:
        far = f"version {applied} is served, and may be {lag.seconds:.1f} s behind; {_at_most(most, pool)}"
        return _too_far(Reason.LAG_SECONDS, far, wanted, state)
    return _shown(most, pool, applied, state, lag)


def _shown(most: Bounds, pool: Bounds, applied: int, state: State, lag: Lag) -> Verdict:
    """Whether the bounds, which nothing that is known breaks, can be shown to hold."""
    known = lag.versions is not None and lag.head_age is not None and lag.head_age <= HEAD_KNOWN_S
    versions = most.versions is None or known
    seconds = most.seconds is None or (lag.seconds is not None and lag.seconds <= most.seconds)
    if versions and seconds:
        return ADMITTED
    age = "was never read" if lag.head_age is None else f"was last read {lag.head_age:.1f} s ago"
    message = (
        f"version {applied} is served, and nobody can tell how far behind: the run's head {age}"
        f"{f' ({state.error})' if state.error else ''}; {_at_most(most, pool)}"
    )
    after = SOON_S if lag.head_age is not None and lag.head_age < LATER_S else LATER_S
    return Refused(Reason.LAG_UNKNOWN, message, retry=True, after_s=after, waiting_helps=True)


def _too_far(reason: Reason, far: str, wanted: Wanted, state: State) -> Refused:
    if wanted.exact is not None:
        return Refused(reason, far, retry=False, after_s=0.0)  # the version that comes is not the one that is asked for
    if state.suspended:
        return _suspended(far, reason)
    return Refused(reason, far, retry=True, after_s=SOON_S, waiting_helps=True)


def _at_most(most: Bounds, pool: Bounds) -> str:
    said = [
        f"{'the pool' if bound == of_pool else 'the request'} accepts at most {bound} {what}"
        for bound, of_pool, what in (
            (most.versions, pool.versions, "versions"),
            (most.seconds, pool.seconds, "seconds"),
        )
        if bound is not None
    ]
    return " and ".join(said)


def _brought(version: int, applied: int) -> Verdict:
    message = f"version {applied} is served, and {version} is on its way"
    return Refused(Reason.NOT_YET, message, retry=True, after_s=SOON_S, waiting_helps=True)


def _suspended(message: str, reason: Reason = Reason.NOT_YET) -> Refused:
    return Refused(reason, f"{message}, and following is suspended", retry=True, after_s=LATER_S)


def _unavailable(reason: Reason, message: str) -> Refused:
    return Refused(reason, message, retry=True, after_s=SOON_S)
