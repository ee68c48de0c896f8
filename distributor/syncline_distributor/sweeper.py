"""Deleting what nobody needs: mark, wait one lease period, look again, delete (DESIGN section 4).

Listing comes before reading the manifests, so an object whose manifest was committed meanwhile is seen to be needed.
Nothing younger than a lease period is marked, crashed attempts' orphans included, and marks live in memory: a restart
only delays. The files of one anchor attempt are as young as the youngest of them, so an upload in progress is not
taken from the back. Manifests go before what they name, so a crash leaves orphans, which the next sweep takes, and
never a manifest whose chunks are gone. An anchor counts as one only while its manifest can be read and all its files
are there: whoever starts from it must be able to.
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
    _joining: dict[str, int] = field(default_factory=dict[str, int], init=False)
    """Record of a joiner -> the oldest anchor that it may have chosen: what "now" meant when it was first seen."""

    def survey(self) -> Survey:
        """Look, decide, change nothing (but the clock object)."""
        keys = self.reader.keys
        lineage = self.reader.run_record().lineage
        listed = _List(self.store, keys)
        chain, named, blocked = self._chain(listed)
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
        needed = named | _needed(self.reader, kept)
        unneeded = {
            info.key: info
            for info, modified in listed.collectable()
            if info.key not in needed and readers.store_now - modified > self.settings.lease_period_s
        }
        kept_bytes = sum(info.size for info, _ in listed.collectable() if info.key not in unneeded)
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
        marked = [i for key, i in survey.unneeded.items() if now - self._marks[key] >= self.settings.lease_period_s]
        due: list[ObjectInfo] = []
        for at in range(0, len(marked), LOOK_EVERY):
            named = self._named_since(survey.chain.head or 0)
            for info in marked[at : at + LOOK_EVERY]:
                if info.key not in named:
                    self.store.delete(info.key)
                    due.append(info)
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
            named |= _version_keys(self.reader, newer)
        return named

    def _chain(self, listed: _List) -> tuple[ChainMap, set[str], str | None]:
        """The chain, what anchors name that were committed while it was looked at, and why nothing may be deleted."""
        blocked: str | None = None
        bases: dict[int, int | None] = {}
        for version in self.reader.versions():
            try:
                bases[version] = self.reader.manifest(version).base
            except LineageChanged:
                raise
            except (ChainBroken, Corrupt) as error:
                blocked = f"version {version} cannot be read ({error}); repair or remove it by hand"
        anchors: set[int] = set()
        named: set[str] = set()
        for version in self.reader.anchors():
            if version not in bases:
                continue
            try:
                body = self.reader.anchor(version).body
            except (ChainBroken, Corrupt) as error:
                log.error("anchor cannot be read", version=version, error=str(error), phase="sweep")
                continue
            if listed.holds(version, body):
                anchors.add(version)
            elif not listed.knows(self.reader.keys.anchor(version)):
                named |= _files(self.reader.keys, version, body)  # committed since the listing
        skips = frozenset((to, start) for to, starts in self.reader.skip_bases().items() for start in starts)
        return ChainMap(bases, frozenset(anchors), skips, frozenset(self.reader.vetoes())), named, blocked


@dataclass(slots=True)
class _List:
    """Every object of the view that retention may delete, listed before any manifest is read."""

    store: WeightStore
    keys: ViewKeys
    _found: list[tuple[int, ObjectInfo]] = field(init=False)
    _sizes: dict[str, int] = field(init=False)
    _attempts: dict[str, float] = field(init=False)
    """Newest modification time of each anchor attempt's files."""

    def __post_init__(self) -> None:
        found: list[tuple[int, ObjectInfo]] = [(_CHUNK, i) for i in self.store.list_after(self.keys.chunks)]
        for info in self.store.list_after(self.keys.anchors):
            own = info.key.endswith("/manifest.json") and info.key.count("/") == self.keys.anchors.count("/") + 1
            found.append((_MANIFEST if own else _FILE, info))
        for prefix in (self.keys.skips, self.keys.versions):
            found += [(_MANIFEST, i) for i in self.store.list_after(prefix)]
        self._found = sorted(found, key=lambda pair: (pair[0], pair[1].key))
        self._sizes = {info.key: info.size for _, info in self._found}
        self._attempts = {}
        for kind, info in self._found:
            if kind == _FILE:
                attempt = self._attempt(info.key)
                self._attempts[attempt] = max(info.modified, self._attempts.get(attempt, 0.0))

    def _attempt(self, key: str) -> str:
        """Folder of an anchor attempt: version and nonce."""
        return "/".join(key.split("/")[: self.keys.anchors.count("/") + 2])

    def knows(self, key: str) -> bool:
        return key in self._sizes

    def holds(self, version: int, body: AnchorBody) -> bool:
        """Whether every file of an anchor was there."""
        return all(self._sizes.get(self.keys.anchor_file(version, body.nonce, f.name)) == f.size for f in body.files)

    def collectable(self) -> Iterable[tuple[ObjectInfo, float]]:
        """In the order of deletion, each with the time from which its age counts."""
        for kind, info in self._found:
            yield info, self._attempts[self._attempt(info.key)] if kind == _FILE else info.modified


def _needed(reader: ChainReader, kept: Kept) -> set[str]:
    """Keys of everything that the kept versions, anchors and skip deltas are made of.

    A skip delta that cannot be read is none: it and its chunks go, if it stays so for a lease period.
    """
    keys = reader.keys
    needed: set[str] = set()
    for version in kept.versions:
        needed |= _version_keys(reader, version)
    for version in kept.anchors:
        # Read a moment ago; if it cannot be read now, this sweep ends here and the next one sees why.
        needed |= {keys.anchor(version)} | _files(keys, version, reader.anchor(version).body)
    for to, start in kept.skips:
        try:
            skip = reader.skip(to, start)
        except (ChainBroken, Corrupt) as error:
            log.error("skip delta cannot be read", version=to, error=str(error), phase="sweep")
            continue
        needed |= {keys.skip(to, start), keys.chunk(skip.tensors.blake3)} | {keys.chunk(c.blake3) for c in skip.chunks}
    return needed


def _version_keys(reader: ChainReader, version: int) -> set[str]:
    """Everything that a version is made of."""
    keys, manifest = reader.keys, reader.manifest(version)
    made_of = {keys.version(version), keys.chunk(manifest.tensors.blake3)}
    made_of |= {keys.chunk(c.blake3) for c in manifest.chunks}
    return made_of if manifest.anchor is None else made_of | _files(keys, version, manifest.anchor)


def _files(keys: ViewKeys, version: int, body: AnchorBody) -> set[str]:
    return {keys.anchor_file(version, body.nonce, f.name) for f in body.files}
