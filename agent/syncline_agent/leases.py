"""Leases: promises of the store that what a way needs is not collected while it is walked.

Held by whoever walks, renewed from the heart's thread, because a long download must not let one run out. A lease that
the store does not take is an error; one that it does not take again is said, and tried again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from syncline.clock import Clock
from syncline.errors import Retryable, StoreDenied, SynclineError
from syncline.store.base import WeightStore
from syncline.store.keys import ViewKeys
from syncline.wire.records import LeaseRecord

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class _Lease:
    """One that is held now."""

    key: str
    record: LeaseRecord
    written: float
    """When the store last took the record as it is (monotonic)."""


class Leases:
    """Those of one node. `hold` from the follower's thread, `renew` from the heart's."""

    def __init__(
        self,
        store: WeightStore,
        *,
        ttl_seconds: float,
        clock: Clock,
        random: random.Random,
        say: Callable[[str], None],
    ) -> None:
        """`say` hears what heartbeats are to be called from now on: off or late, and why."""
        self._store = store
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._random = random
        self._say = say
        self._held: dict[str, _Lease] = {}
        self._lock = threading.Lock()
        self._renewing = threading.Lock()

    @contextmanager
    def hold(self, keys: ViewKeys, lineage: str, *, owner: str, version: int | None) -> Iterator[Callable[[int], None]]:
        """Hold a lease while the body runs: it is in the store before the body lists anything. What it yields tells the
        store which version it is about, once the body has planned from which it starts.

        Retryable when the store does not take it now; with a read-only key the body runs without one, and that is
        said.
        """
        lease_id = f"{self._random.getrandbits(128):032x}"
        record = LeaseRecord(lineage=lineage, owner=owner, ttl_ms=int(self._ttl_seconds * 1000), version=version)
        key = keys.lease(lease_id)
        try:
            self._store.put(key, record.encode())
        except StoreDenied as error:
            self._say(f"off: {error}; joining without a lease")
            yield lambda version: None
            return
        with self._lock:
            self._held[lease_id] = _Lease(key, record, self._clock.monotonic())
        try:
            yield lambda version: self._about(lease_id, version)
        finally:
            with self._lock:
                lease = self._held.pop(lease_id)
            self._release(lease.key, lease.record)

    def _about(self, lease_id: str, version: int) -> None:
        """The lease is about `version`; told now, or with the next renewal if the store does not take it."""
        with self._lock:
            held = self._held[lease_id]
            record = held.record.model_copy(update={"version": version})
            self._held[lease_id] = _Lease(held.key, record, NEVER)
        self._renew(lease_id)

    def renew(self) -> None:
        """Write again what a third of its time has passed since; failures are said, never raised."""
        now = self._clock.monotonic()
        with self._lock:
            due = [i for i, held in self._held.items() if now - held.written >= self._ttl_seconds / 3]
        for lease_id in due:
            self._renew(lease_id)

    def _renew(self, lease_id: str) -> None:
        with self._renewing:  # or an older record could be written over a newer one
            with self._lock:
                held = self._held.get(lease_id)
            if held is None:
                return
            try:
                self._store.put(held.key, held.record.encode())
            except SynclineError as error:
                self._say(f"late: {error}")
                return
            with self._lock:
                now = self._held.get(lease_id)
                if now is held:
                    self._held[lease_id] = _Lease(held.key, held.record, self._clock.monotonic())
            if now is None:
                self._release(held.key, held.record)  # it was released while it was being renewed

    def _release(self, key: str, record: LeaseRecord) -> None:
        try:
            self._store.delete(key)
        except StoreDenied:
            # A key that may write but not delete: a lease of no length has the same effect.
            try:
                self._store.put(key, record.model_copy(update={"ttl_ms": 0}).encode())
            except SynclineError:
                pass  # it runs out by itself
        except Retryable:
            pass  # it runs out by itself
