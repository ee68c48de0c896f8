"""Recomputing what a store claims about a view: every manifest, sum, hash and frame, and that nothing is missing between them.

Finds what is wrong and goes on. Only what speaks of the stored bytes is a finding: a store that is down (Retryable) ends the audit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from blake3 import blake3

from syncline.chain import PUT_BACK, ChainReader, StepKey, plan
from syncline.checkpoint import Progress, materialize
from syncline.delta import Delta
from syncline.errors import (
    ChainBroken,
    ChunkCorrupt,
    Corrupt,
    DigestMismatch,
    LinkMissing,
    NotFound,
    Rejected,
    SynclineError,
)
from syncline.versions import Link, check_successor
from syncline.wire.digest import total
from syncline.wire.records import ChunkRef, ObjectRef, SkipManifest, VersionManifest

PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    version: int
    problem: str
    step: StepKey | None = None
    """The step that nobody can take because of an object that is damaged or gone."""


class Audit:
    """One pass over the listed versions of a view, their anchors and their skip deltas."""

    def __init__(self, reader: ChainReader, versions: list[int]) -> None:
        self._reader = reader
        self._versions = versions
        self._seen: dict[str, int] = {}
        """Bytes of each object that was read, by its key."""
        self.anchors = 0
        self.skips = 0
        self._failures: dict[StepKey, SynclineError] = {}
        """Steps that cannot be taken, and why."""

    @property
    def objects(self) -> int:
        """Objects that were read."""
        return len(self._seen)

    @property
    def size_bytes(self) -> int:
        """Their bytes."""
        return sum(self._seen.values())

    def findings(self, *, checked: Callable[[], None]) -> Iterator[Finding]:
        """Check everything, newest version first. `checked` is called once a version."""
        reader, versions = self._reader, self._versions
        anchors, skips = set(reader.anchors()), reader.skip_bases()
        yield from _gaps(versions, anchors)
        newer: Link | None = None
        for version in reversed(versions):
            try:
                manifest = reader.manifest(version)
                self._saw(reader.keys.version(version), len(manifest.encode()))
                here = Link(manifest.lineage, version, manifest.base, manifest.epoch)
                if newer is not None and newer.version == version + 1:
                    check_successor(here, newer)
            except LinkMissing as error:
                if version >= min(reader.versions(), default=0):
                    yield Finding(version, str(error))
                else:
                    return  # collected since it was listed; so is all that is older
            except Corrupt as error:
                yield Finding(version, str(error), StepKey("delta", None, version))
            except ChainBroken as error:
                yield Finding(version, str(error))
            else:
                newer = here
                steps = [StepKey("delta", manifest.base, version)]
                steps += [StepKey("anchor", None, version)] if version in anchors else []
                steps += [StepKey("skip", base, version) for base in skips.get(version, ())]
                self.anchors += version in anchors
                self.skips += len(skips.get(version, ()))
                yield from self._check_version(manifest, steps)
            checked()

    def _check_version(self, manifest: VersionManifest, steps: Sequence[StepKey]) -> Iterator[Finding]:
        """The tensor table, which every step to the version needs, then each step."""
        table = self._reader.keys.chunk(manifest.tensors.blake3)
        told = table in self._seen
        self._saw(table, manifest.tensors.size)
        try:
            self._reader.table(manifest)
        except (Corrupt, ChainBroken) as error:
            self._failures.update(dict.fromkeys(steps, error))
            if not told:
                words = (
                    f"{error}; it is the tensor table of version {manifest.version} and of each with the same tensors"
                )
                yield Finding(manifest.version, words, steps[0])
            return
        for step in steps:
            yield from self._wrong(step, lambda s=step: self._check_step(manifest, s))

    def _check_step(self, manifest: VersionManifest, step: StepKey) -> None:
        if step.kind == "anchor":
            self._check_anchor(step.version)
        elif step.base is not None and step.kind == "skip":
            self._check_skip(step.version, step.base)
        else:
            self._check_delta(manifest, manifest.digest)

    def deep(self, *, executor: Executor, progress: Progress) -> Iterator[Finding]:
        """Read every anchor whole, and rebuild head in a temporary folder."""
        reader, head = self._reader, self._versions[-1]
        for version in reader.anchors():
            yield from self._wrong(StepKey("anchor", None, version), lambda v=version: self._hash_anchor(v, progress))
        with tempfile.TemporaryDirectory(prefix="syncline-verify-") as folder:
            try:
                materialize(reader, head, Path(folder) / "head", executor=executor, vetoed=(), progress=progress)
            except (Corrupt, ChainBroken) as error:
                yield Finding(head, str(error))

    def way_out(self, finding: Finding) -> str | None:
        """What a damaged object means for those who follow, and what to do; asked once everything was checked."""
        if finding.step is None:
            return None
        version, head = finding.version, self._versions[-1]
        if self._reached(version):
            return f"version {version} is still reached another way; nothing need be done"
        put_back = "put the object back from a mirror or a backup"
        if self._reached(head):
            return (
                f"version {version} cannot be reached, version {head} still is; {put_back}, or leave version {version}"
            )
        return f"nobody can join version {head}; {PUT_BACK}"

    def _reached(self, version: int) -> bool:
        try:
            plan(None, version, self._reader, avoid=self._failures)
        except (ChainBroken, Corrupt):
            return False
        return True

    def _saw(self, key: str, size: int) -> None:
        self._seen[key] = size

    def _wrong(self, step: StepKey, check: Callable[[], None]) -> Iterator[Finding]:
        try:
            check()
        except (Corrupt, ChainBroken) as error:
            if step not in self._failures:
                self._failures[step] = error
                # A manifest that contradicts itself is no object that could be put back.
                yield Finding(step.version, str(error), None if isinstance(error, DigestMismatch) else step)

    def _check_delta(self, manifest: VersionManifest | SkipManifest, digest: str) -> None:
        reader = self._reader
        table = reader.table(manifest)
        if isinstance(manifest, VersionManifest) and total(manifest.digests()).hex != digest:
            raise DigestMismatch(f"version {manifest.version}: the tensors' digests do not sum to the view's digest")
        tiling = reader.run_record().tiling.tiling
        Delta.parse(table, tiling, ((ref, self._chunk(ref)) for ref in manifest.chunks))

    def _chunk(self, ref: ChunkRef | ObjectRef) -> bytes:
        key = self._reader.keys.chunk(ref.blake3)
        self._saw(key, ref.size)
        return self._reader.chunk(ref)

    def _check_anchor(self, version: int) -> None:
        """The manifest, and that every file is there with its size."""
        reader = self._reader
        anchor = reader.anchor(version)
        if reader.manifest(version).anchor is None:
            key = reader.keys.anchor(version)
            self._saw(key, reader.store.head(key).size)
        for file in anchor.body.files:
            key = reader.anchor_file(anchor, file.name)
            try:
                found = reader.store.head(key).size
            except NotFound as error:
                raise LinkMissing(f"{key} is gone; the anchor cannot be used, take another") from error
            if found != file.size:
                raise ChunkCorrupt(f"{key} holds {found} bytes, its manifest says {file.size}; use another anchor")

    def _check_skip(self, version: int, base: int) -> None:
        skip = self._reader.skip(version, base)
        self._saw(self._reader.keys.skip(version, base), len(skip.encode()))
        self._check_delta(skip, skip.digest)

    def _hash_anchor(self, version: int, progress: Progress) -> None:
        reader = self._reader
        anchor, done = reader.anchor(version), 0
        for file in anchor.body.files:
            key, hashed = reader.anchor_file(anchor, file.name), blake3()
            self._saw(key, file.size)
            for start in range(0, file.size, PIECE_BYTES):
                piece = bytearray(min(PIECE_BYTES, file.size - start))
                try:
                    reader.store.get_range_into(key, start, piece)
                except Rejected as error:
                    raise LinkMissing(f"{key} cannot be read whole: {error}") from error
                hashed.update(piece)
                done += len(piece)
                progress("fetch", done, anchor.body.size)
            if hashed.hexdigest() != file.blake3:
                raise ChunkCorrupt(f"{key} does not hash to what its manifest says; use another anchor")


def _gaps(versions: list[int], anchors: set[int]) -> Iterator[Finding]:
    # Retention takes from the old end only, so what is left is always one row of numbers.
    for before, after in pairwise(versions):
        if after > before + 1:
            missing = f"version {before + 1} is" if after == before + 2 else f"versions {before + 1} to {after - 1} are"
            yield Finding(before + 1, f"{missing} missing between {before} and {after}; join from an anchor above")
    if not anchors.intersection(versions):
        yield Finding(versions[0], "no version has an anchor: nobody can join; publish all weights anew")
