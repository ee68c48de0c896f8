"""Which replica a request goes to, by what is known of all. Pure: no clock, no waiting; chance is handed in.

By version first; among those that can, a request with an affinity goes to its home (rendezvous hashing: a replica that comes or
goes moves the requests of its own share alone), any other to the less loaded of two drawn by chance.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

from syncline.route.replica import Replica, Seen
from syncline.route.wishes import Wish

STALE_S = 90.0
"""What was heard longer ago says nothing of now."""


class Able(Enum):
    """Whether a replica can take a request."""

    NOW = "now"
    SOON = "soon"
    """It serves, but not that version yet."""
    NO = "no"
    NEVER = "never"
    """And will not, as far as is known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one replica."""

    able: Able
    why: str
    away: int = 0
    """How many versions it is from what is wanted."""
    until: float | None = None
    """When to look at it again, where that is known."""


@dataclass(frozen=True, slots=True)
class Barred:
    """A replica refused this one request."""

    until: float
    why: str
    applied: int | None
    """What it served then: once it serves something else, it may be asked again."""
    final: bool = False
    """It said that asking again does not help."""


@dataclass(frozen=True, slots=True)
class Picked:
    """Where to send it."""

    replica: Replica
    able: Able


@dataclass(frozen=True, slots=True)
class Nobody:
    """Why not to any, by replica, and when to look again."""

    verdicts: Sequence[tuple[Replica, Verdict]]
    until: float | None
    hopeless: bool
    """Waiting does not help."""


def pick(
    replicas: Sequence[Replica],
    wish: Wish,
    now: float,
    *,
    randomness: random.Random,
    barred: Mapping[str, Barred] | None = None,
    run: str | None = None,
) -> Picked | Nobody:
    """`barred` by address; `run` None takes replicas of any."""
    judged = [(replica, judge(replica, wish, now, barred=barred, run=run)) for replica in replicas]
    able = [replica for replica, verdict in judged if verdict.able is Able.NOW]
    if able:
        return Picked(_one_of(able, wish, randomness), Able.NOW)
    soon = [(verdict.away, replica) for replica, verdict in judged if verdict.able is Able.SOON]
    if soon:
        nearest = min(away for away, _ in soon)
        return Picked(
            _one_of([replica for away, replica in soon if away == nearest], wish, randomness),
            Able.SOON,
        )
    times = [verdict.until for _, verdict in judged if verdict.until is not None]
    never = bool(judged) and all(verdict.able is Able.NEVER for _, verdict in judged)
    return Nobody(judged, min(times, default=None), never)


def judge(
    replica: Replica,
    wish: Wish,
    now: float,
    *,
    barred: Mapping[str, Barred] | None = None,
    run: str | None = None,
) -> Verdict:
    """Whether this replica can take it."""
    seen = replica.seen
    if now < replica.held_until:
        return Verdict(Able.NO, replica.held_why, until=replica.held_until)
    if seen is None:
        return Verdict(Able.NO, "nothing was heard of it yet")
    if now - seen.at > STALE_S:
        return Verdict(Able.NO, f"nothing was heard of it for {now - seen.at:.0f} s")
    if run is not None and seen.run is not None and seen.run != run:
        return Verdict(Able.NEVER, f"it serves run {seen.run}, not {run}")
    if not seen.ready or seen.applied is None:
        return Verdict(Able.NO, "nothing proven is served there")
    verdict = _by_version(wish, seen, seen.applied)
    bar = (barred or {}).get(replica.url)
    if bar is not None and bar.applied == seen.applied and verdict.able is not Able.NEVER:
        if bar.final:
            return Verdict(Able.NEVER, bar.why)
        if now < bar.until:
            return Verdict(Able.NO, bar.why, until=bar.until)
    return verdict


def _by_version(wish: Wish, seen: Seen, applied: int) -> Verdict:
    serves = f"it serves version {applied}"
    if wish.exact is not None and applied != wish.exact:
        if applied > wish.exact and seen.target != wish.exact:
            return Verdict(Able.NEVER, f"{serves}, and {wish.exact} is gone by")
        return Verdict(Able.SOON, f"{serves}, not {wish.exact}", abs(wish.exact - applied))
    if wish.min is not None and applied < wish.min:
        return Verdict(Able.SOON, f"{serves}, below {wish.min}", wish.min - applied)
    lag = 0 if seen.target is None else abs(seen.target - applied)
    if wish.max_lag is not None and lag > wish.max_lag:
        return Verdict(Able.SOON, f"{serves}, {lag} from its target {seen.target}", lag)
    return Verdict(Able.NOW, serves)


def _one_of(able: Sequence[Replica], wish: Wish, randomness: random.Random) -> Replica:
    if wish.affinity is not None:
        home = wish.affinity.encode(errors="surrogatepass")
        return max(able, key=lambda replica: blake2b(home + b"\0" + replica.url.encode()).digest())
    if len(able) == 1:
        return able[0]
    first, second = randomness.sample(able, 2)
    return second if second.load < first.load else first
