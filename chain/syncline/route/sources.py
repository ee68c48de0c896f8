"""Where replicas come from: heartbeats in the run's store, or addresses that were given. Reads only.

A heartbeat finds a replica and says early what it serves; whether it can be reached, its gateway says itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from syncline.clock import Clock
from syncline.errors import FormatInvalid, NotFound, Rejected, StoreMisused
from syncline.route.replica import Member, Seen
from syncline.store.base import ObjectInfo, WeightStore
from syncline.store.keys import RunKeys
from syncline.wire.limits import RECORD_MAX_BYTES
from syncline.wire.records import ConsumerRecord, RunRecord, is_gateway_url

MOST_READS = 16
"""Heartbeats that are read at once."""


class Source(Protocol):
    """Names the replicas there are. Also the place for a cluster's EndpointSlices."""

    async def members(self) -> Sequence[Member]:
        """All of them, each time. Errors of `syncline.errors`."""
        ...


class Listed:
    """Gateways whose addresses are known."""

    def __init__(self, urls: Collection[str]) -> None:
        """Rejected for what is no address."""
        for url in urls:
            if not is_gateway_url(url.rstrip("/")):
                raise Rejected(f"{url!r} is no address of a gateway; give http://host:port")
        self._members = [Member(url, url) for url in dict.fromkeys(url.rstrip("/") for url in urls)]

    async def members(self) -> Sequence[Member]:
        return self._members


class Heartbeats:
    """Gateways that the heartbeats of a run's nodes name.

    How old a heartbeat is, is judged by the store's clock as far as it is seen in what others write there: a key that may only
    read is enough.
    """

    def __init__(
        self,
        store: WeightStore,
        run: str,
        view: str = "main",
        *,
        clock: Clock,
        wanted: Callable[[ConsumerRecord], bool] = lambda _: True,
    ) -> None:
        """`wanted`: of which pools, clusters or nodes."""
        self._store = store
        self._run = run
        self._keys = RunKeys(run).view(view)
        self._clock = clock
        self._wanted = wanted
        self._read: dict[str, tuple[str, ConsumerRecord | None]] = {}
        self._ahead: float | None = None
        """The store's clock, as far as it was seen, less this machine's monotonic one."""

    async def members(self) -> Sequence[Member]:
        """NotFound while the run does not exist."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> Sequence[Member]:
        lineage = self._lineage()
        infos = list(self._store.list_after(self._keys.consumers))
        now = self._clock.monotonic()
        newest = max((info.modified for info in infos), default=None)
        if newest is not None:
            self._ahead = max(newest - now, newest - now if self._ahead is None else self._ahead)
        known, self._read = self._read, {}
        told = [info for info in infos if info.key not in known or known[info.key][0] != info.etag]
        with ThreadPoolExecutor(MOST_READS) as readers:
            new = dict(zip([info.key for info in told], readers.map(self._get, told), strict=True))
        for info in infos:
            self._read[info.key] = (info.etag, new[info.key]) if info.key in new else known[info.key]
        found: list[Member] = []
        for info in infos:
            record = self._read[info.key][1]
            if record is not None and record.lineage == lineage and self._wanted(record):
                found += self._member(record, info.modified - (self._ahead or 0.0), now)
        return found

    def _lineage(self) -> str:
        """Asked each time: a run name that is used again is another training."""
        key = RunKeys(self._run).run_json
        fetched = self._store.get(key, max_bytes=RECORD_MAX_BYTES)
        assert fetched is not None
        return RunRecord.parse(fetched.data, what=key).lineage

    def _get(self, info: ObjectInfo) -> ConsumerRecord | None:
        """None for what went away meanwhile, and for what cannot be read: retention says so, and it names no replica."""
        try:
            fetched = self._store.get(info.key, max_bytes=RECORD_MAX_BYTES)
            return None if fetched is None else ConsumerRecord.parse(fetched.data, what=info.key)
        except (NotFound, FormatInvalid, StoreMisused):
            return None

    def _member(self, record: ConsumerRecord, at: float, now: float) -> list[Member]:
        gateway = record.gateway
        if gateway is None or record.leaving or now - at > record.ttl_ms / 1000:
            return []
        name = "/".join((record.cluster, record.namespace, record.pool, record.node))
        load = gateway.waiting + gateway.at_engine
        seen = Seen(min(at, now), record.proven, record.applied, record.target, load, self._run)
        return [Member(gateway.url, name, seen)]
