"""Which keys and values of an engine's cache a request may find: those computed at its own place in the log of commits, or,
where the pool allows it and the caller asks, those of its session.

The name is of the place and not of the version: a request that goes on through a commit leaves keys and values of mixed
weights under the name that it came with, and a later undo makes the version current again, but no place. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from syncline_agent.engine import Crossing
from syncline_agent.gateway.members import with_member
from syncline_agent.gateway.mirror import Place
from syncline_agent.gateway.routes import Kind, Shape
from syncline_agent.lane.sessions import SESSION

PREFIX = "syncline-"
MOST_GIVEN = 4096
"""Names of a batch: each is hashed here, and grows."""
_ELSEWHERE = ("kv_transfer_params", "bootstrap_host", "bootstrap_room", "kv_router_hint", "session_params")
"""By these an engine takes keys and values from where no name of ours keeps them apart."""


class KvReuse(StrEnum):
    """What a pool allows of keys and values that older versions computed."""

    NEVER = "never"
    SESSIONS = "sessions"
    """A caller may ask that those of its session are found after a commit, too."""


class Kv(StrEnum):
    """Over whose keys and values an answer was drawn."""

    OWN = "own"
    """Its own version's, and no other's."""
    IN_FLIGHT = "in_flight"
    """A commit came while it was computed: what came after may have been drawn over those of the versions before."""
    SESSION = "session"
    """Those of any version that its session has seen may be among them."""


class BadName(ValueError):
    """The caller's own name for keys and values cannot be one; `param` is its field."""

    def __init__(self, param: str, what: str) -> None:
        super().__init__(f"{param} must be {what}")
        self.param = param


@dataclass(frozen=True, slots=True)
class Named:
    """What a request says of names, and where the engine looks for one."""

    field: str | None = None
    """None where the engine's route knows none."""
    given: str | Sequence[str] | None = None
    """The caller's own, of a batch one for each."""
    apart: bool = True
    """Whether nothing in the body has keys and values come from elsewhere, and the engine can be asked to keep them apart."""


UNNAMED = Named()


def read_named(fields: Mapping[str, Any], kind: Kind, shape: Shape) -> Named:
    """BadName for what no engine takes, so that a name that says nothing does not come to mean one."""
    sampling = fields.get("sampling_params")
    extra = isinstance(sampling, dict) and sampling.get("extra_args") is not None  # as vLLM passes them on within
    apart = not extra and all(fields.get(name) is None for name in _ELSEWHERE)
    if kind is Kind.REFERENCE:
        return Named(apart=apart)  # it keeps none beyond a request
    if kind is Kind.VLLM:
        salt = fields.get("cache_salt")
        if salt is not None and (not isinstance(salt, str) or not salt):
            raise BadName("cache_salt", "a string that is not empty")
        return Named("cache_salt", salt, apart)
    if shape is Shape.EMBEDDINGS:
        return Named(apart=False)
    key = fields.get("extra_key")
    if isinstance(key, list):
        if len(key) > MOST_GIVEN:
            raise BadName("extra_key", f"at most {MOST_GIVEN} strings")
        keys: list[str] = [each for each in key if isinstance(each, str)]
        if len(keys) < len(key):
            raise BadName("extra_key", "a string, or one for each of a batch")
        return Named("extra_key", keys, apart)
    if key is not None and not isinstance(key, str):
        raise BadName("extra_key", "a string, or one for each of a batch")
    return Named("extra_key", key or None, apart)


def name_body(body: bytes, named: Named, place: Place, *, session: str | None, request_id: str) -> bytes:
    """The request as it is sent from this place. The caller's own name must not be in it any more."""
    if named.field is None:
        return body
    if named.given is None or isinstance(named.given, str):
        return with_member(body, named.field, name_of(place, named.given, session=session, request_id=request_id))
    names = [name_of(place, each or None, session=session, request_id=request_id) for each in named.given]
    return with_member(body, named.field, names)


def name_of(place: Place, given: str | None, *, session: str | None, request_id: str) -> str:
    """The name of what a request computes. Another caller's cannot be met or guessed by choosing one's own."""
    if not place.log or place.applied is None:
        return PREFIX + _digest("alone", request_id)  # nobody knows what is served: nothing is shared with anybody
    lineage = place.applied.lineage
    if session is not None:
        return SESSION + _digest("session", lineage, session, given)
    return PREFIX + _digest("place", lineage, place.log, str(place.seq), given)


def kv_of(
    named: Named, session: str | None, names: Sequence[str] | None, crossed: Sequence[Crossing] | None
) -> Kv | None:
    """Of an answer to a request that the engine calls `names` and that crossed these commits; None where nobody can tell."""
    if session is not None:
        return Kv.SESSION
    if not named.apart or crossed is None:
        return None
    if not crossed:
        return Kv.OWN
    spans = [crossing.spans for crossing in crossed]
    if names is None or any(told is None or not told.keys().isdisjoint(names) for told in spans):
        return Kv.IN_FLIGHT
    return Kv.OWN  # it had ended before, or not begun: the arms name anew what waits through a commit


def _digest(*parts: str | None) -> str:
    """One text can be no other's: each part goes with its length, and none is not empty."""
    digest = blake2b(digest_size=16, person=b"syncline kv")
    for part in parts:
        told = b"" if part is None else part.encode(errors="surrogatepass")  # a lone surrogate is no fault of JSON's
        digest.update(f"{'-' if part is None else len(told)}:".encode())
        digest.update(told)
    return digest.hexdigest()
