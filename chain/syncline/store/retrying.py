"""Retries: the wrapper that makes a store that is down, slow or throttling look merely slow.

Only StoreUnavailable is tried again, after a wait drawn evenly between nothing and a bound that doubles (full jitter),
until a deadline. A conditional write whose reply was lost may have been done: when a later try finds the condition
gone, the object is read back, and the same bytes mean that it was this call's own earlier try. Different bytes are
somebody else's, and the caller hears of it. So what must have one winner says in its bytes who wrote it (a manifest
carries its writer's nonce): two writers of the same bytes would both be told that they won.

Whoever waits for a store should know it: a call that is tried again for more than a moment says so in the log, once an
outage, however many calls meet it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeVar, cast

import structlog
from structlog.typing import FilteringBoundLogger
from typing_extensions import Buffer

from syncline.clock import Clock
from syncline.errors import AlreadyExists, HeadMoved, NotFound, StoreMisused, StoreUnavailable, SynclineError
from syncline.metrics import Metrics
from syncline.store.base import Fetched, ObjectInfo, WeightStore
from syncline.store.buffers import flat_view, holds_same_bytes, open_source

T = TypeVar("T")
SAID_AFTER_S = 3.0
"""A call that waits longer than this for its store says so."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait between tries, and for how long to try."""

    first_s: float = 0.05
    most_s: float = 5.0
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.most_s or self.deadline_s < 0:
            raise ValueError(f"{self}: needs 0 < first_s <= most_s and deadline_s >= 0")


class RetryingStore:
    """Tries calls of another store again."""

    def __init__(
        self,
        inner: WeightStore,
        *,
        clock: Clock,
        rng: random.Random,
        policy: RetryPolicy | None = None,
        metrics: Metrics | None = None,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._rng = rng
        self._policy = policy or RetryPolicy()
        self._metrics = metrics
        self._outage = _Outage(inner.url, log or cast(FilteringBoundLogger, structlog.get_logger()))

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        return self._call("get", lambda _: self._inner.get(key, max_bytes=max_bytes, if_none_match=if_none_match))

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        self._call("get_range_into", lambda _: self._inner.get_range_into(key, offset, buffer))

    def put_if_absent(self, key: str, data: Buffer) -> str:
        def attempt(in_doubt: bool) -> str:
            try:
                return self._inner.put_if_absent(key, data)
            except AlreadyExists:
                if in_doubt and (etag := self._etag_if_mine(key, data)) is not None:
                    return etag
                raise

        return self._call("put_if_absent", attempt)

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        def attempt(in_doubt: bool) -> str:
            try:
                return self._inner.compare_and_put(key, data, etag=etag)
            except HeadMoved:
                if in_doubt and (mine := self._etag_if_mine(key, data)) is not None:
                    return mine
                raise

        return self._call("compare_and_put", attempt)

    def put(self, key: str, data: Buffer) -> str:
        return self._call("put", lambda _: self._inner.put(key, data))

    def put_large(self, key: str, source: Path | Buffer) -> str:
        def attempt(in_doubt: bool) -> str:
            try:
                return self._inner.put_large(key, source)
            except AlreadyExists:
                if not in_doubt:
                    raise
                etag = self._inner.head(key).etag
                with open_source(source) as parts:
                    if holds_same_bytes(self._inner, key, parts):
                        return etag
                raise

        return self._call("put_large", attempt)

    def head(self, key: str) -> ObjectInfo:
        return self._call("head", lambda _: self._inner.head(key))

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        """A listing that breaks goes on after the last object that it gave."""
        tries = self._tries("list_after")
        given = 0
        while True:
            left = None if limit is None else limit - given
            try:
                for info in self._inner.list_after(prefix, after=after, limit=left):
                    self._outage.over()
                    yield info
                    after, given = info.key, given + 1
                    tries = self._tries("list_after")
                self._outage.over()
                return
            except StoreUnavailable as error:
                tries.wait_after(error)

    def delete(self, key: str) -> None:
        self._call("delete", lambda _: self._inner.delete(key))

    def _call(self, operation: str, attempt: Callable[[bool], T]) -> T:
        """`attempt` is told whether an earlier try may have been carried out."""
        tries = self._tries(operation)
        while True:
            try:
                done = attempt(tries.count > 0)
            except StoreUnavailable as error:
                tries.wait_after(error)
            except SynclineError:
                self._outage.over()  # a refusal is an answer too
                raise
            else:
                self._outage.over()
                return done

    def _tries(self, operation: str) -> _Tries:
        return _Tries(
            operation=operation,
            policy=self._policy,
            clock=self._clock,
            rng=self._rng,
            metrics=self._metrics,
            outage=self._outage,
        )

    def _etag_if_mine(self, key: str, data: Buffer) -> str | None:
        view = flat_view(data)
        try:
            found = self._inner.get(key, max_bytes=view.nbytes)
        except (NotFound, StoreMisused):
            return None  # gone again, or larger: not these bytes
        return found.etag if found is not None and bytes(view) == found.data else None


class _Outage:
    """What the log was told of a store that does not answer: once until it answers again."""

    def __init__(self, url: str, log: FilteringBoundLogger) -> None:
        self._url = url
        self._log = log
        self._lock = Lock()
        self._said = False

    def say(self, operation: str, error: StoreUnavailable, *, waited_s: float, deadline_s: float) -> None:
        with self._lock:
            if self._said:
                return
            self._said = True
        self._log.warning(
            "retrying",
            store=self._url,
            operation=operation,
            error=str(error),
            waited_seconds=round(waited_s, 1),
            gives_up_after_seconds=deadline_s,
            phase="store",
        )

    def over(self) -> None:
        self._said = False


class _Tries:
    """The failed tries of one call."""

    def __init__(
        self,
        *,
        operation: str,
        policy: RetryPolicy,
        clock: Clock,
        rng: random.Random,
        metrics: Metrics | None,
        outage: _Outage,
    ) -> None:
        self._operation = operation
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._outage = outage
        self._began = clock.monotonic()
        self._said = False
        self.count = 0

    def wait_after(self, error: StoreUnavailable) -> None:
        """Wait for the next try, or raise the error when the time is over."""
        self.count += 1
        bound = min(self._policy.most_s, self._policy.first_s * 2.0 ** min(self.count - 1, 60))
        pause = self._rng.uniform(0, bound)
        spent = self._clock.monotonic() - self._began
        if spent + pause > self._policy.deadline_s:
            raise StoreUnavailable(f"{error} (gave up after {self.count} tries in {spent:.1f} s)") from error
        if self._metrics is not None:
            self._metrics.store_retries.labels(self._operation).inc()
        if spent + pause > SAID_AFTER_S and not self._said:
            self._said = True
            self._outage.say(self._operation, error, waited_s=spent, deadline_s=self._policy.deadline_s)
        self._clock.sleep(pause)
