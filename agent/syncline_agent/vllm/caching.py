"""Names in vLLM's prefix cache: keys and values that other weights computed are never found under the present ones.

Each write begins a new name, an undo too: requests that went on through the write before have left blocks of mixed weights
under the older one. A session's name stays, where the engine was told to leave it, until the engine goes back or weights were in
doubt: a caller accepts what older versions computed, not what one did that is served no more, or none. It changes requests only, and
only between steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from syncline_agent.lane.sessions import is_session
from syncline_agent.vllm.settings import KvPolicy

MANY = 8192
"""Requests that may be on their way to the scheduler at once."""
_BEHIND = 9
"""Characters that vLLM puts behind a client's id."""
CATCH_UP = 4
"""Waiting requests that are named anew before a step: to hash a long prompt takes about a millisecond."""


@dataclass(slots=True)
class _Named:
    """What the arm notes at a request of vLLM's."""

    salt: str | None
    """The user's own."""
    outside: str
    """The request's id as its client knows it; of one of several choices, with the choice's number before it."""
    session: bool
    turn: int
    """How many writes had been when it was named, of a session how often all sessions had ended."""
    skips: bool = False
    """Whether the request reads no prefix cache, as its client asked."""


class CacheNames:
    """The names of one engine's requests."""

    def __init__(self, kv: KvPolicy, engine: str) -> None:
        """`engine` is unlike every other engine's, started before or beside this one: caches outside may outlive both."""
        self._kv = kv
        self._engine = engine
        self._writes = self._ends = 0
        self._version = 0
        self._stale: dict[str, Any] = {}
        self._outside: dict[str, str] = {}
        """Names of requests outside by their ids, in the order in which they came; who hangs up leaves its own until a write."""

    def _salted(self, named: _Named) -> str:
        return f"{named.salt or ''}\x1fsyncline {self._engine} {named.turn}"

    def _turn(self, session: bool) -> int:
        return self._ends if session else self._writes

    def begin(self, request: Any) -> _Named:
        """Name a request that comes in, before vLLM hashes its prompt. From the thread that takes requests in."""
        session = self._kv is KvPolicy.SESSIONS and is_session(request.cache_salt)
        named = _Named(request.cache_salt, _outside(request), session, self._turn(session))
        self._outside[request.request_id] = named.outside
        if self._kv is not KvPolicy.RESET:
            request.cache_salt = self._salted(named)
        return named

    def outside(self, request: Any) -> str:
        """The request's id as its client knows it."""
        named: _Named | None = getattr(request, "syncline", None)
        return request.request_id if named is None else named.outside

    def forget(self, request_id: str) -> str:
        """A request has ended: its id as its client knows it."""
        return self._outside.pop(request_id, request_id)

    def _forget_lost(self, scheduler: Any) -> None:
        """Names of requests that are not there any more; the newest may not be there yet."""
        for request_id in list(islice(self._outside, max(len(self._outside) - MANY, 0))):
            if request_id not in scheduler.requests:
                self._outside.pop(request_id, None)

    def next(self, scheduler: Any) -> None:
        """Weights are written: what is computed from here on has another name. The loop stands."""
        self._writes += 1
        self._forget_lost(scheduler)
        if self._kv is KvPolicy.RESET:
            scheduler.reset_prefix_cache(reset_running_requests=True)
            return
        for request in scheduler.requests.values():
            named: _Named | None = getattr(request, "syncline", None)
            if named is None or request.is_finished() or request.num_computed_tokens:
                continue  # one that runs keeps its name: nobody else looks there any more
            if named.turn == self._turn(named.session):
                continue
            if request.request_id not in self._stale:
                named.skips = request.skip_reading_prefix_cache
            request.skip_reading_prefix_cache = True
            self._stale[request.request_id] = request

    def serve(self, version: int) -> None:
        """What is computed from here on is of this version. Before `next`."""
        if version < self._version:
            self._ends += 1  # what is gone back from may be a version that was found to be bad
        self._version = version

    def doubt(self) -> None:
        """Weights are not what any version says, or may not be: what they computed is no session's. All requests end now."""
        self._ends += 1

    def catch_up(self, scheduler: Any) -> None:
        """Name some requests anew that waited through a write and wait still."""
        for request_id in list(islice(self._stale, CATCH_UP)):
            request = self._stale.pop(request_id)
            if request.request_id in scheduler.requests and not request.num_computed_tokens:
                request.skip_reading_prefix_cache = request.syncline.skips
                self.freshen(request)

    def freshen(self, request: Any) -> None:
        """Name a request anew that was named before a write and has computed nothing since."""
        named: _Named | None = getattr(request, "syncline", None)
        if named is None or self._kv is KvPolicy.RESET or named.turn == (turn := self._turn(named.session)):
            return
        named.turn = turn
        request.cache_salt = self._salted(named)
        request.block_hashes.clear()
        request.update_block_hashes()


def _outside(request: Any) -> str:
    """vLLM puts `-` and eight characters of its own behind a client's id, and of `n` choices makes `n` requests, which have the
    client's id in common and `<number>_` before their own."""
    name, outside = request.request_id, request.external_req_id
    if outside is None:
        return name
    number, _, rest = name.partition("_")
    own = outside in (name, name[:-_BEHIND])
    return f"{number}_{outside}" if number.isdecimal() and outside in (rest, rest[:-_BEHIND]) and not own else outside
