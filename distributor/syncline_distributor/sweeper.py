"""Deleting what nobody needs: mark, wait one lease period, look again, delete (DESIGN section 4).

Nothing younger than a lease period is marked, crashed attempts' orphans included, and marks live in memory: a restart
only delays. Manifests go before what they name, so a crash leaves orphans, which a later sweep takes, and never a
manifest whose chunks are gone. An anchor counts as one only while its manifest can be read and all its files are there,
a skip delta while its chunks are: whoever starts from one must be able to.

No clock makes a delete safe: this process may stand still between its last look and the delete, and a writer between
its upload and its commit. What a writer may still name is therefore fenced by version numbers. An attempt knows head
when it begins, so a chunk that lies in the store while head is h can be named by no version above h + 1; and its nonce
keeps it from being named by another attempt. So a chunk that no manifest names is deleted only after a version was
committed since it was marked: that version took the slot, and the attempt is dead whenever its writer wakes up. Files
of an anchor below a number above head wait for that version in the same way. Tensor tables have no nonce and any later
version may name them again: they are never deleted (a run has few, and each is small).

Readers and the keeper need no fence, only time. A reader that meets a hole plans again; an anchor or skip delta whose
files were taken while it was being written counts as none, is collected, and is written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from syncline.chain import ChainReader
from syncline.errors import ChainBroken, Corrupt, LineageChanged, NotFound, StoreMisused
from syncline.metrics import Metrics
from syncline.store.base import ObjectInfo, WeightStore
from syncline.wire.records import AnchorBody, SkipManifest
from syncline_distributor.consumers import Readers, read_readers, store_now
from syncline_distributor.listing import Kind, Listing, anchor_files, skip_keys, version_keys
from syncline_distributor.retention import ChainMap, Kept, keep, walk_down
from syncline_distributor.settings import RetentionSettings

log = structlog.get_logger()
TABLE_BEGINS = b"{"
"""First byte of a tensor table; a chunk begins with its magic."""
LOOK_EVERY = 64
"""Objects deleted before it is looked again at what was committed meanwhile."""
JOINERS_CHOICE = 2
"""Newest anchors that a joiner may have found, depending on which of two listings came first."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at the store found."""

    chain: ChainMap
    kept: Kept
    readers: Readers
    unneeded: Mapping[str, ObjectInfo]
    """Old enough and needed by nobody, in the order of deletion."""
    orphans: frozenset[str]
    """Those among them that no manifest names: a publish on its way may be about to."""
    kept_bytes: int
    blocked: str | None
    """Why nothing may be deleted now."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did."""

    marked: int
    held: int
    """Marked for long enough, but a publish that is on its way may still name them."""
    deleted: int
    deleted_bytes: int
    blocked: str | None


@dataclass(frozen=True, slots=True)
class _Mark:
    """When the first sweep found an object unneeded."""

    at: float
    """By the store's clock."""
    head: int
    """Newest version after that sweep had listed the object."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What manifests say."""

    chain: ChainMap
    anchors: Mapping[int, AnchorBody]
    """Of anchors that are whole."""
    skips: Mapping[tuple[int, int], SkipManifest]
    """Those that can be used."""
    named: frozenset[str]
    """By any manifest that is there."""
    newborn: frozenset[str]
    """By anchors that were committed after the listing."""
    tables: frozenset[str]
    blocked: str | None


@dataclass(slots=True)
class Sweeper:
    """Retention of one view. `sweep` is called now and then; it never waits."""

    store: WeightStore
    reader: ChainReader
    settings: RetentionSettings
    metrics: Metrics
    _marks: dict[str, _Mark] = field(default_factory=dict[str, _Mark], init=False)
    _joining: dict[str, int] = field(default_factory=dict[str, int], init=False)
    """Record of a joiner -> the oldest anchor that it may have chosen: what "now" meant when it was first seen."""

    def survey(self) -> Survey:
        """Look, decide, change nothing (but the clock object)."""
        keys = self.reader.keys
        lineage = self.reader.run_record().lineage
        listed = Listing(self.store, keys)
        found = self._read(listed)
        chain, blocked = found.chain, found.blocked
        readers = read_readers(self.store, keys, lineage)
        needs = readers.needs(self.settings.max_ttl_s)
        if needs is None:
            blocked = "a fresh heartbeat or lease cannot be read, so it is not known what its owner needs"
            needs = []
        if chain.bases and not any(v in chain.anchors for v in walk_down(chain)):
            blocked = blocked or "no anchor lies on the path to head; what is older may be all that is left"
        kept = keep(
            chain,
            self._since_they_came(needs, chain),
            keep_anchors=self.settings.keep_anchors,
            keep_versions=self.settings.keep_versions,
        )
        needed = found.newborn | self._needed(kept, found)
        unneeded: dict[str, ObjectInfo] = {}
        orphans: set[str] = set()
        kept_bytes = 0
        for kind, info, modified in listed.collectable():
            old = readers.store_now - modified > self.settings.lease_period_s
            if not old or info.key in needed or self._awaited(kind, info.key, listed, chain):
                kept_bytes += info.size
                continue
            unneeded[info.key] = info
            if kind is Kind.CHUNK and info.key not in found.named:
                orphans.add(info.key)
        return Survey(chain, kept, readers, unneeded, frozenset(orphans), kept_bytes, blocked)

    def sweep(self) -> Swept:
        """Mark what is unneeded now; delete what was marked a lease period ago, still is, and can be named by
        nobody."""
        survey = self.survey()
        now, head = survey.readers.store_now, survey.chain.head or 0
        self._marks = {key: self._marks.get(key, _Mark(now, head)) for key in survey.unneeded}
        names = (self.reader.keys.run, self.reader.keys.view)
        self.metrics.retained_bytes.labels(*names).set(survey.kept_bytes)
        if survey.blocked is not None:
            log.warning("nothing is deleted", reason=survey.blocked, run=names[0], view=names[1], phase="sweep")
            return Swept(len(self._marks), 0, 0, 0, survey.blocked)
        ripe = [i for key, i in survey.unneeded.items() if now - self._marks[key].at >= self.settings.lease_period_s]
        due = [i for i in ripe if i.key not in survey.orphans or self._dead(i.key, head)]
        deleted = self._delete(due, survey)
        for key in survey.readers.forgotten(self.settings.forget_after_s):
            self.store.delete(key)
        self.metrics.collected.labels(*names).inc(len(deleted))
        freed = sum(i.size for i in deleted)
        if deleted:
            log.info("collected", objects=len(deleted), bytes=freed, run=names[0], view=names[1], phase="sweep")
        return Swept(len(self._marks), len(ripe) - len(due), len(deleted), freed, None)

    def _delete(self, due: list[ObjectInfo], survey: Survey) -> list[ObjectInfo]:
        """Delete what no version names that was committed meanwhile. Ends early when this took so long that others have
        looked, marked and deleted since: what they rely on is not known here."""
        deleted: list[ObjectInfo] = []
        for at in range(0, len(due), LOOK_EVERY):
            named = self._named_since(survey.chain.head or 0)
            held_up_s = store_now(self.store, self.reader.keys) - survey.readers.store_now
            if held_up_s > self.settings.lease_period_s:
                log.warning("held up since the look; looking again before more is deleted", phase="sweep")
                break
            for info in due[at : at + LOOK_EVERY]:
                if info.key not in named:
                    self.store.delete(info.key)
                    deleted.append(info)
                del self._marks[info.key]
        return deleted

    def _dead(self, key: str, head: int) -> bool:
        """Whether no writer, however long it slept, can commit a version that names this chunk."""
        if self.settings.nobody_writes:
            return True
        if head <= self._marks[key].head:
            return False
        first = bytearray(1)
        try:
            self.store.get_range_into(key, 0, first)
        except (NotFound, StoreMisused):
            return True  # gone, or empty: no chunk and no table
        return first != TABLE_BEGINS

    def _awaited(self, kind: Kind, key: str, listed: Listing, chain: ChainMap) -> bool:
        """Whether the object is of a version that is there or may yet be, though nothing names it."""
        head = chain.head or 0
        if kind is Kind.FILE and not self.settings.nobody_writes:
            return (listed.version_of_file(key) or 0) > head
        vetoed = listed.version_of_veto(key) if kind is Kind.REST else None
        if vetoed is None:
            return False
        bars = any(chain.bases[v] == vetoed for v in chain.vetoed)  # a version without changes outlives its base
        return vetoed in chain.bases or vetoed > head or bars

    def _since_they_came(self, needs: list[tuple[str, int | None]], chain: ChainMap) -> list[int | None]:
        """A joiner needs what was newest when it began, however many anchors appear while it downloads one."""
        usable = [v for v in walk_down(chain) if v in chain.anchors and v not in chain.vetoed][:JOINERS_CHOICE]
        joining = {key for key, need in needs if need is None}
        self._joining = {key: at for key, at in self._joining.items() if key in joining}
        for key in joining if usable else ():
            self._joining.setdefault(key, usable[-1])
        return [need if need is not None else self._joining.get(key) for key, need in needs]

    def _named_since(self, version: int) -> set[str]:
        """What versions name that were committed after the survey: their writer may have slept for long."""
        named: set[str] = set()
        for newer in self.reader.versions(after=version):
            named |= version_keys(self.reader, newer)
        return named

    def _needed(self, kept: Kept, found: _Found) -> set[str]:
        """Keys of everything that the kept versions, anchors and skip deltas are made of, and every table."""
        keys = self.reader.keys
        needed: set[str] = set() if self.settings.nobody_writes else set(found.tables)
        for version in kept.versions:
            needed |= version_keys(self.reader, version)
        for version in kept.anchors & found.anchors.keys():  # files of a version of its own are among its keys
            needed |= {keys.anchor(version)} | anchor_files(keys, version, found.anchors[version])
        for skip in kept.skips:
            needed |= skip_keys(keys, found.skips[skip])
        return needed

    def _read(self, listed: Listing) -> _Found:
        """Every manifest of the view."""
        keys = self.reader.keys
        blocked: str | None = None
        vetoes, vetoed = self.reader.vetoes(), set[int]()
        bases: dict[int, int | None] = {}
        named: set[str] = set()
        tables: set[str] = set()
        for version in self.reader.versions():
            try:
                manifest = self.reader.manifest(version)
            except LineageChanged:
                raise
            except (ChainBroken, Corrupt) as error:
                blocked = f"version {version} cannot be read ({error}); repair or remove it by hand"
                continue
            bases[version] = manifest.base
            if version in vetoes:
                vetoed.add(version)
            named |= version_keys(self.reader, version)
            tables.add(keys.chunk(manifest.tensors.blake3))
        anchors: dict[int, AnchorBody] = {}
        newborn: set[str] = set()
        for version in self.reader.anchors():
            if version not in bases:
                continue
            try:
                body = self.reader.anchor(version).body
            except (ChainBroken, Corrupt) as error:
                log.error("anchor cannot be read", version=version, error=str(error), phase="sweep")
                continue
            named |= anchor_files(keys, version, body)
            if listed.holds(version, body):
                anchors[version] = body
            elif not listed.knows(keys.anchor(version)):
                newborn |= anchor_files(keys, version, body)
        skips = self._skips(listed)
        named.update(*(skip_keys(keys, skip) for skip in skips.values()))
        chain = ChainMap(bases, frozenset(anchors), frozenset(skips), frozenset(vetoed))
        return _Found(chain, anchors, skips, frozenset(named), frozenset(newborn), frozenset(tables), blocked)

    def _skips(self, listed: Listing) -> dict[tuple[int, int], SkipManifest]:
        """Those that can be used. The others, their chunks included, go if they stay so for a lease period."""
        skips: dict[tuple[int, int], SkipManifest] = {}
        for to, starts in self.reader.skip_bases().items():
            for start in starts:
                try:
                    skip = self.reader.skip(to, start)
                except (ChainBroken, Corrupt) as error:
                    log.error("skip delta cannot be read", version=to, error=str(error), phase="sweep")
                    continue
                if listed.knows(self.reader.keys.skip(to, start)) and not listed.holds_chunks(skip):
                    log.error("skip delta lacks a chunk", version=to, base=start, phase="sweep")
                    continue
                skips[(to, start)] = skip
        return skips
