"""Heartbeats and leases: what this node tells the store, so that retention keeps its path (DESIGN section 4).

A state machine of its own, beside the follower: a long download must not let a lease run out. It reads the follower's
`Status`, writes this node's consumer record and renews its leases (leases.py), nothing else. With a key that may only
read, heartbeats are off and `/status` says so.

The store's clock judges age, so this node's own time appears in no record; writing the heartbeat is also how the node
learns what time the store thinks it is.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import NotFound, StoreDenied, SynclineError
from syncline.logs import logger
from syncline.store.base import WeightStore
from syncline.store.keys import ViewKeys
from syncline.wire.records import ConsumerRecord, GatewayPart
from syncline_agent.lane.advertised import Advertised
from syncline_agent.leases import Leases
from syncline_agent.status import Status

DENIED_RETRY_SECONDS = 600.0
CLOCK_SECONDS = 120.0
"""How often the store's clock is looked at."""
STEP_SECONDS = 1.0
"""A store may say when an object was modified in whole seconds, rounded down."""
TEXT_MAX = 1000
POD_MAX = 253
UNWRITTEN = "not written yet"
LOOK_SECONDS = 60.0
"""How often it is looked whether another agent writes this node's heartbeat."""
LOOK_TOLERANCE_SECONDS = 3.0
"""How far this node's idea of the store's clock may lag behind it."""


@dataclass(frozen=True, slots=True)
class HeartSettings:
    """How often, and for how long it counts."""

    every_seconds: float = 15.0
    at_least_seconds: float = 2.0
    """A changed applied version is told sooner, but no more often than this."""
    ttl_seconds: float = 90.0
    lease_ttl_seconds: float = 120.0


class StoreTime:
    """The store's clock, as far as this node has seen it; never the node's own wall clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: float | None = None
        self._most: float | None = None

    def saw(self, modified: float, *, since: float) -> None:
        """An object was modified just now, and not before `since` (monotonic), at `modified` by the store's clock."""
        self._offset = modified - self._clock.monotonic()
        self._most = modified + STEP_SECONDS - since

    def now(self) -> float | None:
        """Seconds since the epoch by the store's clock; None before the first sight of it."""
        return None if self._offset is None else self._clock.monotonic() + self._offset

    def latest(self) -> float | None:
        """It is no later than that by the store's clock, however long the store took to answer; None as for `now`."""
        return None if self._most is None else self._clock.monotonic() + self._most


@dataclass(frozen=True, slots=True)
class _Written:
    """A heartbeat as the store took it."""

    key: str
    etag: str
    at: float | None
    """The store's time when it had it, as far as it is known."""


class Heart:
    """One node's records in one store. `tick` from one thread; `lease` from the follower's."""

    def __init__(
        self,
        store: WeightStore,
        status: Callable[[], Status],
        *,
        settings: HeartSettings,
        clock: Clock,
        random: random.Random,
        log: FilteringBoundLogger | None = None,
        gateway: Callable[[], Advertised | None] = lambda: None,
    ) -> None:
        """`gateway` is where trainers reach the engine, and its load."""
        self._store = store
        self._gateway = gateway
        self._log = log or logger("agent")
        self._status = status
        self._settings = settings
        self._clock = clock
        self._random = random
        self.time = StoreTime(clock)
        self.state = UNWRITTEN
        """`on`, or why heartbeats are off, late, or shared with another agent."""
        self._due = clock.monotonic()
        self._told: tuple[object, ...] = ()
        self._told_at = clock.monotonic() - settings.every_seconds
        self._leases = Leases(store, ttl_seconds=settings.lease_ttl_seconds, clock=clock, random=random, say=self._say)
        self._beating = threading.Lock()
        self._clock_seen: float | None = None
        self._written: _Written | None = None
        """The last heartbeat that the store took."""
        self._looked_at = clock.monotonic()
        self._another = False

    def tick(self) -> float:
        """Write what is due; returns the seconds until the next call."""
        self._leases.renew()
        status = self._status()
        now = self._clock.monotonic()
        changed = self._signature(status) != self._told and now - self._told_at >= self._settings.at_least_seconds
        if now >= self._due or changed:
            self.beat(status)
        return min(1.0, self._settings.every_seconds, self._settings.lease_ttl_seconds / 6)

    def beat(self, status: Status, *, leaving: bool = False) -> None:
        """Write the consumer record; failures are kept in `state`, never raised."""
        if status.run is None or status.lineage is None:
            return
        with self._beating:
            self._beat(status, leaving)

    def _beat(self, status: Status, leaving: bool) -> None:
        assert status.run is not None
        keys = ViewKeys(status.run, status.view)
        key = keys.consumer(*_path(status))
        wait = self._settings.every_seconds * self._random.uniform(0.9, 1.1)
        try:
            self._look_for_another(key)
            began = self._clock.monotonic()
            self._written = None  # whatever comes of the next line
            etag = self._store.put(key, self._record(status, leaving).encode())
            self._told, self._told_at = self._signature(status), self._clock.monotonic()
            self._look_at_the_clock(key, began)
            self._written = _Written(key, etag, self.time.now())
            self._say(
                f"shared: another agent writes {key} too; give each agent its own --node" if self._another else "on"
            )
        except StoreDenied as error:
            self._say(f"off: {error}; give the agent a key that may write {keys.consumers} and {keys.leases}")
            wait = DENIED_RETRY_SECONDS
        except SynclineError as error:
            self._say(f"late: {error}")
        self._due = self._clock.monotonic() + wait

    def _look_for_another(self, key: str) -> None:
        """Whether somebody wrote this record after this agent did: two nodes of one name keep only one path.

        Their records may be equal to the byte, so the time counts too. Seldom: it is one request more.
        """
        now, written = self._clock.monotonic(), self._written
        if written is None or written.key != key or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            found = self._store.head(key)
        except (NotFound, StoreDenied):
            self._another = False
            return
        late = written.at is not None and found.modified > written.at + LOOK_TOLERANCE_SECONDS
        self._another = found.etag != written.etag or late

    def _look_at_the_clock(self, key: str, began: float) -> None:
        """The object was written just now, and not before `began`, so its age is nought. Seldom: it is one request more."""
        now = self._clock.monotonic()
        if self._clock_seen is None or now - self._clock_seen >= CLOCK_SECONDS:
            self.time.saw(self._store.head(key).modified, since=began)
            self._clock_seen = now

    def _say(self, state: str) -> None:
        """Keep why, and log it when it is of another kind than before."""
        (kind, _, reason), before = state.partition(": "), self.state.partition(": ")[0]
        self.state = state
        if kind != before and kind != "on":
            self._log.warning(f"heartbeats {kind}", reason=reason)
        elif kind != before and before != UNWRITTEN:
            self._log.info("heartbeats on")

    def lease(
        self, keys: ViewKeys, lineage: str, *, owner: str, version: int | None
    ) -> AbstractContextManager[Callable[[int], None]]:
        """A lease that this heart keeps alive while it is held: `Leases.hold`."""
        return self._leases.hold(keys, lineage, owner=owner, version=version)

    def _record(self, status: Status, leaving: bool) -> ConsumerRecord:
        identity = status.identity
        assert status.lineage is not None
        # An engine that serves another lineage is no consumer of this run's versions.
        applied = status.applied if status.applied and status.applied.lineage == status.lineage else None
        return ConsumerRecord(
            lineage=status.lineage,
            cluster=identity.cluster,
            namespace=identity.namespace,
            pool=identity.pool,
            node=identity.node,
            ttl_ms=int(self._settings.ttl_seconds * 1000),
            applied=applied.version if applied else None,
            applied_digest=applied.digest if applied else None,
            proven=status.in_service and applied is not None,
            target=status.target,
            pinned=status.pinned,
            boot=status.boot,
            lag_ms=None if applied is None else int(status.lag_seconds * 1000),
            phase=status.phase.value,
            apply_path=status.apply_path.value if status.apply_path else "none",
            error=status.error[:TEXT_MAX] if status.error else None,
            leaving=leaving,
            gateway=self._beside(status),
        )

    def _beside(self, status: Status) -> GatewayPart | None:
        said, engine = self._gateway(), status.engine
        if said is None:
            return None
        pod = None if engine is None or engine.pod is None else engine.pod[:POD_MAX]
        return GatewayPart(url=said.url, pod=pod, waiting=said.waiting, at_engine=said.at_engine)

    def _signature(self, status: Status) -> tuple[object, ...]:
        """What other parts act on, and so should hear of soon."""
        applied, said = status.applied, self._gateway()
        return (
            status.run,
            status.view,
            applied and (applied.version, applied.lineage),
            status.in_service,
            status.boot,
            status.pinned,
            said and said.url,
        )


def _path(status: Status) -> tuple[str, str, str, str]:
    identity = status.identity
    return identity.cluster, identity.namespace, identity.pool, identity.node
