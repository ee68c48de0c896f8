"""What `/status` says, and the observer that learns it: head, anchors and consumers, read from the store now and then.

    {"run", "view", "lineage",
     "waits_for": what must be there before there is anything to look after, or null
     "head": {"version", "epoch", "step", "parent", "base", "digest", "age_seconds",
              "committed_at": seconds since 1970 by its writer's clock, "bytes": of its delta, "changed": share of all units}
             or null,
     "chain": {"anchor", "skip", "length", "bytes", "full_bytes"} or null      newest anchor and what follows it
     "anchors": [version, …],  "vetoes": {"version": "reason"},
     "writer": {"epoch", "fenced"} or null                                    null when a trainer publishes itself
     "source": {"phase", "waits_for", "listable", "published", "published_count", "pending", "waiting", "refused",
                "refused_as", "newest_refused", "error", "error_kind"} or null
     "retention": {"marked", "deleted", "blocked"} or null                    since the process started
     "store": {"url", "conditional_writes"},
     "consumers": [{"cluster", "namespace", "pool", "nodes", "stale", "proven", "versions": {"version": nodes}, "empty",
                    "lag_versions_max", "lag_seconds_max", "apply_paths": {"path": nodes}, "errors": {"error": nodes},
                    "last_heartbeat": seconds since 1970 by the store's clock}],
     "loops": {"name": null or "what its last tick raised"},
     "faults": {"name": "class of that error"}}                               loops that fail only

Numbers a key, never a list a node: the answer is bounded by pools and versions in use. Versions are JSON numbers, and
strings where they are keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog

from syncline.chain import ChainReader, marked_bad
from syncline.chain.runs import runs_held
from syncline.clock import Clock
from syncline.errors import NotFound
from syncline.metrics import Metrics
from syncline.wire.records import VersionManifest
from syncline_distributor.consumers import read_readers, summarize
from syncline_distributor.keeper import Keeper
from syncline_distributor.loops import Loop
from syncline_distributor.publisher import Publisher
from syncline_distributor.sweeper import Swept
from syncline_distributor.watch import Watch

log = structlog.get_logger()


@dataclass(slots=True)
class Observer:
    """Looks at the store: head every tick, the rest every few."""

    reader: ChainReader
    clock: Clock
    metrics: Metrics
    poll_s: float = 1.0
    consumers_every: int = 5
    max_ttl_s: float = 3600.0
    head: VersionManifest | None = None
    consumers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    anchors: list[int] = field(default_factory=list[int])
    vetoes: dict[int, str] = field(default_factory=dict[int, str])
    looked: bool = False
    """Whether the store answered at least once."""
    waits_for: str | None = None
    """Why there is no head to look for: the run is not there, and another process has to create it."""
    creates: bool = False
    """This process creates the run itself, once its source holds something."""
    on_head: Callable[[VersionManifest], None] | None = None
    """Called from the observer's thread when head moved."""
    _ticks: int = 0

    def tick(self) -> float:
        try:
            head = self.reader.head()
        except NotFound:
            self._miss()
            self.looked = True
            return self.poll_s
        self.looked, self.waits_for = True, None
        if head is not None and (self.head is None or head.version != self.head.version):
            self.seen(head)
        if self._ticks % self.consumers_every == 0:
            self._look_around()
        self._ticks += 1
        return self.poll_s

    def _miss(self) -> None:
        """The run is not there. Said once: the trainer may be about to create it, or the name may be wrong."""
        if self.waits_for is not None or self.creates:
            return
        run, store = self.reader.keys.run, self.reader.store
        self.waits_for = f"run {run} does not exist in {store.url} yet; {runs_held(store)}; check --run"
        log.warning("waiting", waits_for=self.waits_for, run=run, phase="observe")

    def seen(self, head: VersionManifest) -> None:
        """A version is known to be committed: from the store, or from the publisher of this very process."""
        if self.head is not None and head.version <= self.head.version and head.lineage == self.head.lineage:
            return
        self.head = head
        self.metrics.head_version.labels(self.reader.keys.run, self.reader.keys.view).set(head.version)
        if self.on_head is not None:
            self.on_head(head)

    def _look_around(self) -> None:
        readers = read_readers(self.reader.store, self.reader.keys, self.reader.run_record().lineage)
        self.consumers = summarize(readers, self.head.version if self.head else None, self.max_ttl_s)
        self.anchors = self.reader.anchors()
        marks = self.reader.vetoes()
        self.vetoes = {v: r.reason if r.version == v else marked_bad(v, marks) for v, r in marks.items()}


@dataclass(slots=True)
class Reporter:
    """Puts the answer together from what the parts know."""

    observer: Observer
    keeper: Keeper | None
    publisher: Publisher | None
    watch: Watch | None
    loops: list[Loop]
    conditional_writes: bool | None
    """None before the store was probed, or when nobody asked."""
    swept: Swept | None = None
    deleted: int = 0

    def status(self) -> dict[str, Any]:
        """The document of the module's docstring."""
        o, keys = self.observer, self.observer.reader.keys
        return {
            "run": keys.run,
            "view": keys.view,
            "lineage": o.head.lineage if o.head is not None else None,
            "waits_for": o.waits_for,
            "head": _head(o.head, o.clock.now()),
            "chain": self._chain(),
            "anchors": o.anchors,
            "vetoes": {str(v): reason for v, reason in o.vetoes.items()},
            "writer": None
            if self.publisher is None
            else {"epoch": self.publisher.epoch, "fenced": self.publisher.fenced},
            "source": None if self.watch is None else asdict(self.watch.state),
            "retention": None
            if self.swept is None
            else {"marked": self.swept.marked, "deleted": self.deleted, "blocked": self.swept.blocked},
            "store": {"url": o.reader.store.url, "conditional_writes": self.conditional_writes},
            "consumers": o.consumers,
            "loops": {loop.name: loop.error for loop in self.loops},
            "faults": {loop.name: loop.kind for loop in self.loops if loop.kind is not None},
        }

    def _chain(self) -> dict[str, Any] | None:
        standing = self.keeper.standing if self.keeper is not None else None
        if standing is None:
            return None
        return {
            "anchor": standing.anchor,
            "skip": standing.skip,
            "length": standing.head - (standing.anchor or 0),
            "bytes": standing.chain_bytes,
            "full_bytes": standing.full_bytes,
        }

    def alive(self) -> bool:
        """No loop met an error that nobody foresaw."""
        return not any(loop.broken for loop in self.loops)

    def unready(self) -> str | None:
        """Why not to rely on this process; None when it is ready: the store answered, and a process that was started to
        publish may, and has a source to publish from."""
        if self.publisher is not None and self.publisher.fenced is not None:
            return self.publisher.fenced
        if not self.observer.looked:
            observing = next((loop.error for loop in self.loops if loop.name == "observe"), None)
            return observing or "the store has not answered yet"
        if self.watch is not None and not self.watch.state.listable:
            return self.watch.state.waits_for or "the source was not looked at yet"
        return None


def _head(head: VersionManifest | None, now: float) -> dict[str, Any] | None:
    if head is None:
        return None
    return {
        "version": head.version,
        "epoch": head.epoch,
        "step": head.step,
        "parent": head.parent,
        "base": head.base,
        "digest": head.digest,
        "age_seconds": round(max(0.0, now - head.created_ms / 1000), 3),
        "committed_at": head.created_ms / 1000,
        "bytes": head.statistics.payload_bytes,
        "changed": head.statistics.changed_units / max(1, head.statistics.units),
    }
