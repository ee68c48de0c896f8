"""Everything that anybody reads from a view of a run: head, manifests, tables, anchors, skip deltas, vetoes, chunks.

A reader is bound to the lineage that it meets first. Objects that never change are remembered in bounded memory; what
does change (head, listings) is asked for each time. Every object is checked against its key, its lineage and its hash
before it is handed on, and where several sources are read as one, a copy that fails a check is looked for in the next:
LinkMissing for what is gone, LineageChanged for a run name that was used again, Corrupt for bytes that must not be
used. Never writes, never waits, never retries; safe to use from several threads, except
`head`, which one thread at a time polls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from blake3 import blake3

from syncline.chain.marks import Marks
from syncline.chain.recent import Recent
from syncline.chain.steps import Anchor
from syncline.chain.vetoed import Vetoes
from syncline.errors import ChunkCorrupt, Corrupt, FormatInvalid, LineageChanged, LinkMissing, NotFound, StoreMisused
from syncline.store.base import WeightStore
from syncline.store.first_of import first_good
from syncline.store.keys import RunKeys, ViewKeys
from syncline.wire.limits import MANIFEST_MAX_BYTES, RECORD_MAX_BYTES
from syncline.wire.records import (
    AnchorManifest,
    ChunkRef,
    HeadRecord,
    Manifest,
    ObjectRef,
    RunRecord,
    SkipManifest,
    VersionManifest,
)
from syncline.wire.tensors import TensorTable, digests_for

REMEMBERED_BYTES = 64 << 20
"""Encoded bytes of manifests and tables that a reader keeps."""
LIST_EVERY = 10
"""Polls that find head unchanged, after which one lists the versions instead: a writer may have died between manifest
and head."""

M = TypeVar("M", bound=Manifest)


class ChainReader:
    """One view of one run."""

    def __init__(
        self,
        store: WeightStore,
        run: str,
        view: str = "main",
        *,
        list_every: int = LIST_EVERY,
        remembered_bytes: int = REMEMBERED_BYTES,
    ) -> None:
        self.store = store
        self.keys: ViewKeys = RunKeys(run).view(view)
        self._list_every = list_every
        self._run_record: RunRecord | None = None
        self._versions: Recent[int, VersionManifest] = Recent(remembered_bytes // 2)
        self._tables: Recent[str, TensorTable] = Recent(remembered_bytes // 2)
        self._marks = Marks(store, self.keys)
        self._head_etag: str | None = None
        self._head: int | None = None
        self._idle_polls = 0

    def run_record(self) -> RunRecord:
        """The run; read once. NotFound when nothing was ever published."""
        if self._run_record is None:
            self._run_record = self._read_run_record()
        return self._run_record

    def head(self) -> VersionManifest | None:
        """The newest committed version; None when there is none yet.

        An idle poll costs one request: the head object by its etag or, every so often, a listing of the versions
        after the last one known. The head object is only a hint: when it is missing, behind, ahead, garbage or of
        another lineage, the listing decides. LineageChanged when the run was created again, NotFound when there is no
        run.
        """
        if self._head is not None:
            self._idle_polls += 1
            if self._idle_polls >= self._list_every:
                return self.listed_head()
        try:
            fetched = self.store.get(self.keys.head, max_bytes=RECORD_MAX_BYTES, if_none_match=self._head_etag)
        except (NotFound, StoreMisused):
            return self._head_without_hint()
        if fetched is None and self._head is not None:
            return self.manifest(self._head)
        hint = None if fetched is None else self._hinted(fetched.data)
        if fetched is None or hint is None:
            return self._head_without_hint()
        head = self.listed_head(after=hint)
        self._head_etag = fetched.etag
        return head

    def listed_head(self, *, after: int = 0) -> VersionManifest | None:
        """The newest committed version by listing, whatever the head object says; `after` is a version to look from."""
        self._idle_polls = 0
        known = max(after, self._head or 0)
        newest = max(self.versions(after=known), default=None)
        if newest is None and known > 0:
            try:
                return self._remembered(self.manifest(known))
            except LinkMissing:
                # The hint was ahead of the truth, or retention has passed us by: look at everything that is there.
                newest = max(self.versions(), default=None)
        if newest is None:
            self.run_record()
            return None
        return self._remembered(self.manifest(newest))

    def _remembered(self, manifest: VersionManifest) -> VersionManifest:
        self._head = manifest.version
        return manifest

    def _hinted(self, data: bytes) -> int | None:
        """The version that the head object names; None when it cannot be believed."""
        try:
            record = HeadRecord.parse(data, what=self.keys.head)
        except FormatInvalid:
            return None
        return record.version if record.lineage == self.run_record().lineage else None

    def _head_without_hint(self) -> VersionManifest | None:
        self._head_etag = None
        if self._head is not None:
            self._check_same_run()
        return self.listed_head()

    def _read_run_record(self) -> RunRecord:
        key = RunKeys(self.keys.run).run_json

        def read(source: WeightStore) -> RunRecord:
            fetched = source.get(key, max_bytes=RECORD_MAX_BYTES)
            assert fetched is not None
            record = RunRecord.parse(fetched.data, what=key)
            if record.run != self.keys.run:
                raise FormatInvalid(f"{key} describes run {record.run}; it was copied to where it does not belong")
            return record

        return first_good(self.store, read)

    def _check_same_run(self) -> None:
        """LineageChanged when run.json is no longer the one that this reader is bound to."""
        bound = self.run_record()
        now = self._read_run_record()
        if now.lineage != bound.lineage:
            raise self._lineage_changed(now.lineage)

    def _lineage_changed(self, found: str) -> LineageChanged:
        return LineageChanged(
            f"run {self.keys.run} now belongs to lineage {found}, this reader follows {self.run_record().lineage}: "
            "the run name was reused; start afresh to follow the new run, or publish it under a name of its own"
        )

    def versions(self, *, after: int = 0) -> list[int]:
        """Committed versions above `after`, ascending, by listing."""
        last = self.keys.version(after) if after > 0 else ""
        pattern = re.compile(re.escape(self.keys.versions) + r"(\d{12})\.json")
        matches = (pattern.fullmatch(info.key) for info in self.store.list_after(self.keys.versions, after=last))
        return [int(m[1]) for m in matches if m is not None and int(m[1]) > 0]

    def manifest(self, version: int) -> VersionManifest:
        """A version's manifest, checked against its key. LinkMissing, LineageChanged, FormatInvalid."""
        known = self._versions.get(version)
        if known is None:
            key = self.keys.version(version)
            known, size = self._read(VersionManifest, key, version, check=VersionManifest.digests)
            self._versions.keep(version, known, size)
        return known

    def table(self, manifest: VersionManifest | SkipManifest | ObjectRef) -> TensorTable:
        """The tensor table that a manifest names. FormatInvalid when a version has other than one digest a tensor of it."""
        ref = manifest if isinstance(manifest, ObjectRef) else manifest.tensors
        known = self._tables.get(ref.blake3)
        if known is None:
            data = self.chunk(ref)
            known = TensorTable.parse(data, what=self.keys.chunk(ref.blake3))
            self._tables.keep(ref.blake3, known, len(data))
        if isinstance(manifest, VersionManifest):
            digests_for(known, manifest)
        return known

    def _read(
        self, kind: type[M], key: str, version: int, *, check: Callable[[M], object] = lambda manifest: None
    ) -> tuple[M, int]:
        """A manifest and its size from the nearest source that has it right; `check` raises where it is not."""

        def read(source: WeightStore) -> tuple[M, int]:
            try:
                fetched = source.get(key, max_bytes=MANIFEST_MAX_BYTES)
            except StoreMisused as error:
                raise FormatInvalid(f"{key} is larger than any manifest may be: {error}") from error
            assert fetched is not None
            manifest = kind.parse(fetched.data, what=key)
            if (manifest.run, manifest.view, manifest.version) != (self.keys.run, self.keys.view, version):
                raise FormatInvalid(
                    f"{key} describes {manifest.run}/{manifest.view} version {manifest.version}; "
                    "it does not belong there"
                )
            if manifest.lineage != (bound := self.run_record().lineage):
                raise LineageChanged(f"{key} belongs to lineage {manifest.lineage}, the run to {bound}; do not use it")
            check(manifest)
            return manifest, len(fetched.data)

        try:
            return first_good(self.store, read)
        except NotFound as error:
            raise LinkMissing(
                f"{key} is gone: it was collected, or never committed; plan again from an anchor"
            ) from error
        except LineageChanged:
            self._check_same_run()
            raise

    def anchors(self) -> list[int]:
        """Versions whose whole weights are in the store, ascending: with an anchor beside them, or anchor-only. One
        listing."""
        written: set[int] = set()
        nonces: dict[int, set[str]] = {}
        pattern = re.compile(re.escape(self.keys.anchors) + r"(\d{12})/(manifest\.json|([0-9a-f]{32})/.+)")
        for info in self.store.list_after(self.keys.anchors):
            match = pattern.fullmatch(info.key)
            if match is None:
                continue
            if match[3] is None:
                written.add(int(match[1]))
            else:
                nonces.setdefault(int(match[1]), set()).add(match[3])
        for version in nonces.keys() - written:
            if self._is_anchor_only(version, nonces[version]):
                written.add(version)
        return sorted(written)

    def _is_anchor_only(self, version: int, nonces: set[str]) -> bool:
        """Files without an anchor manifest: an anchor-only version's own, or an attempt that is not committed (yet)."""
        try:
            body = self.manifest(version).anchor
        except (LinkMissing, LineageChanged, Corrupt):
            return False
        return body is not None and body.nonce in nonces

    def anchor(self, version: int) -> Anchor:
        """The anchor of a version, checked against the version's manifest."""
        manifest = self.manifest(version)
        if manifest.anchor is not None:
            return Anchor(version, manifest.digest, manifest.anchor)
        key = self.keys.anchor(version)

        def check(anchor: AnchorManifest) -> None:
            if anchor.manifest != manifest.identity() or anchor.digest != manifest.digest:
                raise FormatInvalid(f"{key} does not belong to the version's manifest; use another anchor")

        anchor, _ = self._read(AnchorManifest, key, version, check=check)
        return Anchor(version, anchor.digest, anchor.anchor)

    def anchor_file(self, anchor: Anchor, name: str) -> str:
        """Key of a file of an anchor."""
        return self.keys.anchor_file(anchor.version, anchor.body.nonce, name)

    def skip_bases(self) -> Mapping[int, Sequence[int]]:
        """Bases of the skip deltas that lead to each version. One listing."""
        return self._listed_skips(self.keys.skips)

    def skips(self, version: int) -> list[SkipManifest]:
        """The skip deltas that lead to a version, shortest first."""
        bases = self._listed_skips(self.keys.skip(version, 1).rpartition("/")[0] + "/").get(version, [])
        return [self.skip(version, base) for base in sorted(bases, reverse=True)]

    def skip(self, version: int, base: int) -> SkipManifest:
        """The skip delta from `base` to `version`, checked against the version's manifest."""
        key = self.keys.skip(version, base)
        manifest = self.manifest(version)

        def check(skip: SkipManifest) -> None:
            if skip.base != base or base >= version:
                raise FormatInvalid(f"{key} says that its base is {skip.base}")
            if (skip.manifest, skip.digest, skip.tensors) != (manifest.identity(), manifest.digest, manifest.tensors):
                raise FormatInvalid(f"{key} does not belong to the version's manifest; use the deltas instead")

        skip, _ = self._read(SkipManifest, key, version, check=check)
        try:
            base_digest = self.manifest(base).digest
        except LinkMissing:
            return skip  # whoever holds the base knows its digest
        if skip.base_digest != base_digest:
            raise FormatInvalid(f"{key} starts from other bits than version {base}; use the deltas instead")
        return skip

    def _listed_skips(self, prefix: str) -> dict[int, list[int]]:
        pattern = re.compile(re.escape(self.keys.skips) + r"(\d{12})/(\d{12})\.json")
        found: dict[int, list[int]] = {}
        for info in self.store.list_after(prefix):
            match = pattern.fullmatch(info.key)
            if match is not None and 0 < int(match[2]) < int(match[1]):
                found.setdefault(int(match[1]), []).append(int(match[2]))
        return found

    def vetoes(self) -> Vetoes:
        """Versions that were marked bad, and those that change nothing on one of them. One listing, and one request for
        each veto that is new.

        A veto that cannot be read still counts: whoever wrote it wanted the version gone. One of another lineage does
        not.
        """
        return Vetoes(self._marks.read(lambda: self.run_record().lineage), self.manifest)

    def chunk(self, ref: ChunkRef | ObjectRef) -> bytes:
        """The bytes of a chunk or table, whose size and BLAKE3 are those of `ref`. LinkMissing, ChunkCorrupt."""
        key = self.keys.chunk(ref.blake3)

        def read(source: WeightStore) -> bytes:
            buffer = bytearray(ref.size)
            try:
                source.get_range_into(key, 0, buffer)
            except StoreMisused as error:
                raise ChunkCorrupt(f"{key} is shorter than the {ref.size} bytes of its manifest: {error}") from error
            if blake3(buffer).hexdigest() != ref.blake3:
                raise ChunkCorrupt(f"{key} does not hash to its name; fetch it again or from another source")
            return bytes(buffer)

        try:
            return first_good(self.store, read)
        except NotFound as error:
            raise LinkMissing(f"{key} is gone: it was collected; plan again from an anchor") from error
