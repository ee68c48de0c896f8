"""Who reads the run: heartbeats and leases, read from the store and judged by the store's own clock.

A record that cannot be read but is recent blocks collection: somebody is there and it is not known what they need.
Clocks of nodes play no part; an object's age is its modification time against that of an object just written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from syncline.errors import FormatInvalid, NotFound, StoreMisused
from syncline.store.base import ObjectInfo, WeightStore
from syncline.store.keys import ViewKeys
from syncline.wire.limits import RECORD_MAX_BYTES
from syncline.wire.records import ConsumerRecord, LeaseRecord
from syncline_distributor.retention import needs_of


@dataclass(frozen=True, slots=True)
class Seen:
    """One heartbeat or lease as found."""

    key: str
    age_s: float
    record: ConsumerRecord | LeaseRecord | None
    """None when the object cannot be read."""
    error: str | None = None

    def fresh(self, max_ttl_s: float) -> bool:
        """Whether its owner is there. What cannot be read counts as long as any record may."""
        if self.record is None:
            return self.age_s <= max_ttl_s
        if isinstance(self.record, ConsumerRecord) and self.record.leaving:
            return False
        return self.age_s <= min(self.record.ttl_ms / 1000, max_ttl_s)


@dataclass(frozen=True, slots=True)
class Readers:
    """All heartbeats and leases of one lineage at one moment of the store's clock."""

    store_now: float
    heartbeats: Sequence[Seen]
    leases: Sequence[Seen]

    def needs(self, max_ttl_s: float) -> list[tuple[str, int | None]] | None:
        """What fresh readers need, by their records' keys, for retention; None when a fresh record is unreadable and
        nothing may be deleted."""
        needs: list[tuple[str, int | None]] = []
        for seen in (*self.heartbeats, *self.leases):
            if not seen.fresh(max_ttl_s):
                continue
            match seen.record:
                case None:
                    return None
                case ConsumerRecord(applied=applied, pinned=pinned, boot=boot, target=target):
                    needs += [(seen.key, need) for need in needs_of(applied, pinned, boot, target)]
                case LeaseRecord(version=version):
                    needs.append((seen.key, version))
        return needs

    def forgotten(self, after_s: float) -> list[str]:
        """Keys of records so old that their owners will not come back."""
        return [seen.key for seen in (*self.heartbeats, *self.leases) if seen.age_s > after_s]


def store_now(store: WeightStore, keys: ViewKeys) -> float:
    """What time the store thinks it is: the modification time of an object written now."""
    store.put(keys.store_clock, b"syncline")
    return store.head(keys.store_clock).modified


def read_readers(store: WeightStore, keys: ViewKeys, lineage: str) -> Readers:
    """List and read every heartbeat and lease. Records of another lineage are left out: their needs are of another
    run."""
    now = store_now(store, keys)
    beats = [_see(store, info, now, ConsumerRecord) for info in store.list_after(keys.consumers)]
    leases = [_see(store, info, now, LeaseRecord) for info in store.list_after(keys.leases)]
    return Readers(now, _of(lineage, beats), _of(lineage, leases))


def _see(
    store: WeightStore, info: ObjectInfo, now: float, kind: type[ConsumerRecord] | type[LeaseRecord]
) -> Seen | None:
    try:
        found = store.get(info.key, max_bytes=RECORD_MAX_BYTES)
    except NotFound:
        return None  # its owner said goodbye between listing and reading
    except StoreMisused as error:
        return Seen(info.key, now - info.modified, None, str(error))
    assert found is not None
    age = now - found.modified
    try:
        return Seen(info.key, age, kind.parse(found.data, what=info.key))
    except FormatInvalid as error:
        return Seen(info.key, age, None, str(error))


def _of(lineage: str, seen: Iterable[Seen | None]) -> list[Seen]:
    return [s for s in seen if s is not None and (s.record is None or s.record.lineage == lineage)]


def summarize(readers: Readers, head: int | None, max_ttl_s: float) -> list[dict[str, Any]]:
    """What `/status` says of consumers: one entry a pool, bounded by the number of pools and versions in use."""
    pools: dict[tuple[str, str, str], list[tuple[Seen, ConsumerRecord]]] = {}
    for seen in readers.heartbeats:
        if isinstance(seen.record, ConsumerRecord):
            pools.setdefault((seen.record.cluster, seen.record.namespace, seen.record.pool), []).append(
                (seen, seen.record)
            )
    now = readers.store_now
    return [_pool(name, nodes, head, max_ttl_s, now) for name, nodes in sorted(pools.items())]


def _pool(
    name: tuple[str, str, str], nodes: list[tuple[Seen, ConsumerRecord]], head: int | None, max_ttl_s: float, now: float
) -> dict[str, Any]:
    fresh = [record for seen, record in nodes if seen.fresh(max_ttl_s)]
    versions = Counter(r.applied for r in fresh if r.applied is not None)
    behind = [head - r.applied for r in fresh if head is not None and r.applied is not None]
    lags = [r.lag_ms for r in fresh if r.lag_ms is not None]
    return {
        "cluster": name[0],
        "namespace": name[1],
        "pool": name[2],
        "nodes": len(fresh),
        "stale": len(nodes) - len(fresh),
        "proven": sum(r.proven for r in fresh),
        "versions": {str(v): n for v, n in sorted(versions.items())},
        "empty": sum(r.applied is None for r in fresh),
        "lag_versions_max": max(behind, default=None),
        "lag_seconds_max": max(lags) / 1000 if lags else None,
        "apply_paths": dict(sorted(Counter(r.apply_path for r in fresh).items())),
        "errors": dict(Counter(r.error for r in fresh if r.error).most_common(5)),
        "last_heartbeat": now - min(seen.age_s for seen, _ in nodes),
    }
