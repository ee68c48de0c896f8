"""Deleting what nobody needs: mark, wait one lease period, look again, delete (DESIGN section 4).

Listing comes before reading the manifests, so an object whose manifest was committed meanwhile is seen to be needed.
Nothing younger than a lease period is marked, crashed attempts' orphans included, and marks live in memory: a restart
only delays. Manifests go before what they name, so a crash leaves orphans, which the next sweep takes, and never a
manifest whose chunks are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from syncline.chain import ChainReader
from syncline.errors import ChainBroken, Corrupt, LineageChanged
from syncline.metrics import Metrics
from syncline.store.base import ObjectInfo, WeightStore
from syncline.store.keys import ViewKeys
from syncline.wire.records import AnchorBody
from syncline_distributor.consumers import Readers, read_readers
from syncline_distributor.retention import ChainMap, Kept, keep, walk_down
from syncline_distributor.settings import RetentionSettings

log = structlog.get_logger()
_MANIFEST, _FILE, _CHUNK = range(3)
"""The order in which kinds of objects are deleted."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at the store found."""

    chain: ChainMap
    kept: Kept
    readers: Readers
    unneeded: Mapping[str, ObjectInfo]
    """Old enough and needed by nobody, in the order of deletion."""
    kept_bytes: int
    blocked: str | None
    """Why nothing may be deleted now."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did."""

    marked: int
    deleted: int
    deleted_bytes: int
    blocked: str | None


@dataclass(slots=True)
class Sweeper:
    """Retention of one view. `sweep` is called now and then; it never waits."""

    store: WeightStore
    reader: ChainReader
    settings: RetentionSettings
    metrics: Metrics
    _marks: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """Key -> store's time of the first sweep that found it unneeded."""

    def survey(self) -> Survey:
        """Look, decide, change nothing (but the clock object)."""
        keys = self.reader.keys
        lineage = self.reader.run_record().lineage
        listed = _List(self.store, keys)
        chain, blocked = self._chain(listed)
        readers = read_readers(self.store, keys, lineage)
        needs = readers.needs(self.settings.max_ttl_s)
        if needs is None:
            blocked = "a fresh heartbeat or lease cannot be read, so it is not known what its owner needs"
            needs = []
        if chain.bases and not any(v in chain.anchors for v in walk_down(chain)):
            blocked = blocked or "no anchor lies on the path to head; what is older may be all that is left"
        kept = keep(chain, needs, keep_anchors=self.settings.keep_anchors, keep_versions=self.settings.keep_versions)
        needed = _needed(self.reader, chain, kept)
        unneeded = {
            info.key: info
            for info in listed.collectable()
            if info.key not in needed and readers.store_now - info.modified > self.settings.lease_period_s
        }
        kept_bytes = sum(info.size for info in listed.collectable() if info.key not in unneeded)
        return Survey(chain, kept, readers, unneeded, kept_bytes, blocked)

    def sweep(self) -> Swept:
        """Mark what is unneeded now; delete what was marked a lease period ago and still is."""
        survey = self.survey()
        now = survey.readers.store_now
        self._marks = {key: self._marks.get(key, now) for key in survey.unneeded}
        names = (self.reader.keys.run, self.reader.keys.view)
        self.metrics.retained_bytes.labels(*names).set(survey.kept_bytes)
        if survey.blocked is not None:
            log.warning("nothing is deleted", reason=survey.blocked, run=names[0], view=names[1], phase="sweep")
            return Swept(len(self._marks), 0, 0, survey.blocked)
        due = [info for key, info in survey.unneeded.items() if now - self._marks[key] >= self.settings.lease_period_s]
        for info in due:
            self.store.delete(info.key)
            del self._marks[info.key]
        for key in survey.readers.forgotten(self.settings.forget_after_s):
            self.store.delete(key)
        self.metrics.collected.labels(*names).inc(len(due))
        if due:
            log.info(
                "collected",
                objects=len(due),
                bytes=sum(i.size for i in due),
                run=names[0],
                view=names[1],
                phase="sweep",
            )
        return Swept(len(self._marks), len(due), sum(i.size for i in due), None)

    def _chain(self, listed: _List) -> tuple[ChainMap, str | None]:
        blocked: str | None = None
        bases: dict[int, int | None] = {}
        for version in self.reader.versions():
            try:
                bases[version] = self.reader.manifest(version).base
            except LineageChanged:
                raise
            except (ChainBroken, Corrupt) as error:
                blocked = f"version {version} cannot be read ({error}); repair or remove it by hand"
        anchors = frozenset(v for v in self.reader.anchors() if v in bases)
        skips = frozenset((to, start) for to, starts in self.reader.skip_bases().items() for start in starts)
        return ChainMap(bases, anchors, skips, frozenset(self.reader.vetoes())), blocked


@dataclass(slots=True)
class _List:
    """Every object of the view that retention may delete, listed before any manifest is read."""

    store: WeightStore
    keys: ViewKeys
    _found: list[tuple[int, ObjectInfo]] = field(init=False)

    def __post_init__(self) -> None:
        found: list[tuple[int, ObjectInfo]] = [(_CHUNK, i) for i in self.store.list_after(self.keys.chunks)]
        for info in self.store.list_after(self.keys.anchors):
            own = info.key.endswith("/manifest.json") and info.key.count("/") == self.keys.anchors.count("/") + 1
            found.append((_MANIFEST if own else _FILE, info))
        for prefix in (self.keys.skips, self.keys.versions):
            found += [(_MANIFEST, i) for i in self.store.list_after(prefix)]
        self._found = sorted(found, key=lambda pair: (pair[0], pair[1].key))

    def collectable(self) -> Iterable[ObjectInfo]:
        """In the order of deletion."""
        return (info for _, info in self._found)


def _needed(reader: ChainReader, chain: ChainMap, kept: Kept) -> set[str]:
    """Keys of everything that the kept versions, anchors and skip deltas are made of.

    A manifest that cannot be read any more keeps itself; what it names is not known, and the sweep is blocked
    elsewhere.
    """
    keys = reader.keys
    needed: set[str] = set()
    for version in kept.versions:
        manifest = reader.manifest(version)
        needed |= {keys.version(version), keys.chunk(manifest.tensors.blake3)} | {
            keys.chunk(c.blake3) for c in manifest.chunks
        }
        if manifest.anchor is not None:
            needed |= _files(keys, version, manifest.anchor)
    for version in kept.anchors:
        if chain.bases.get(version) is None:
            continue
        needed.add(keys.anchor(version))
        try:
            needed |= _files(keys, version, reader.anchor(version).body)
        except (ChainBroken, Corrupt) as error:
            log.error("anchor cannot be read", version=version, error=str(error), phase="sweep")
    for to, start in kept.skips:
        needed.add(keys.skip(to, start))
        try:
            skip = reader.skip(to, start)
        except (ChainBroken, Corrupt) as error:
            log.error("skip delta cannot be read", version=to, error=str(error), phase="sweep")
            continue
        needed |= {keys.chunk(skip.tensors.blake3)} | {keys.chunk(c.blake3) for c in skip.chunks}
    return needed


def _files(keys: ViewKeys, version: int, body: AnchorBody) -> set[str]:
    return {keys.anchor_file(version, body.nonce, f.name) for f in body.files}
