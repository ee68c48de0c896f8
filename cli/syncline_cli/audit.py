"""Recomputing what a store claims about a view: every manifest, sum, hash and frame, and that nothing is missing between them.

Yields what is wrong and goes on. Only what speaks of the stored bytes is a finding: a store that is down (Retryable) ends the audit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from blake3 import blake3

from syncline.chain import ChainReader
from syncline.checkpoint import Progress, materialize
from syncline.delta import Delta
from syncline.errors import ChainBroken, ChunkCorrupt, Corrupt, DigestMismatch, LinkMissing, NotFound, Rejected
from syncline.versions import Link, check_successor
from syncline.wire.digest import total
from syncline.wire.records import SkipManifest, VersionManifest

PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    version: int
    problem: str


def audit(reader: ChainReader, versions: list[int], *, checked: Callable[[], None]) -> Iterator[Finding]:
    """Check the listed versions, newest first, with their anchors and skip deltas. `checked` is called once a version."""
    anchors, skips = set(reader.anchors()), reader.skip_bases()
    yield from _gaps(versions, anchors)
    newer: Link | None = None
    for version in reversed(versions):
        try:
            manifest = reader.manifest(version)
            here = Link(manifest.lineage, version, manifest.base, manifest.epoch)
            if newer is not None and newer.version == version + 1:
                check_successor(here, newer)
        except LinkMissing as error:
            if version >= min(reader.versions(), default=0):
                yield Finding(version, str(error))
            else:
                return  # collected since it was listed; so is all that is older
        except (Corrupt, ChainBroken) as error:
            yield Finding(version, str(error))
        else:
            newer = here
            yield from _wrong(version, lambda m=manifest: _check_delta(reader, m, m.digest))
            if version in anchors:
                yield from _wrong(version, lambda v=version: _check_anchor(reader, v))
            for base in skips.get(version, ()):
                yield from _wrong(version, lambda v=version, b=base: _check_skip(reader, v, b))
        checked()


def audit_bytes(reader: ChainReader, head: int, *, executor: Executor, progress: Progress) -> Iterator[Finding]:
    """Read every anchor whole, and rebuild head in a temporary folder."""
    for version in reader.anchors():
        yield from _wrong(version, lambda v=version: _hash_anchor(reader, v, progress))
    with tempfile.TemporaryDirectory(prefix="syncline-verify-") as folder:

        def rebuild() -> None:
            materialize(reader, head, Path(folder) / "head", executor=executor, vetoed=(), progress=progress)

        yield from _wrong(head, rebuild)


def _wrong(version: int, check: Callable[[], None]) -> Iterator[Finding]:
    try:
        check()
    except (Corrupt, ChainBroken) as error:
        yield Finding(version, str(error))


def _gaps(versions: list[int], anchors: set[int]) -> Iterator[Finding]:
    # Retention takes from the old end only, so what is left is always one row of numbers.
    for before, after in pairwise(versions):
        if after > before + 1:
            missing = f"version {before + 1} is" if after == before + 2 else f"versions {before + 1} to {after - 1} are"
            yield Finding(before + 1, f"{missing} missing between {before} and {after}; join from an anchor above")
    if not anchors.intersection(versions):
        yield Finding(versions[0], "no version has an anchor: nobody can join; publish all weights anew")


def _check_delta(reader: ChainReader, manifest: VersionManifest | SkipManifest, digest: str) -> None:
    table = reader.table(manifest)
    if isinstance(manifest, VersionManifest) and total(manifest.digests()).hex != digest:
        raise DigestMismatch(f"version {manifest.version}: the tensors' digests do not sum to the view's digest")
    tiling = reader.run_record().tiling.tiling
    Delta.parse(table, tiling, ((reader.keys.chunk(c.blake3), reader.chunk(c)) for c in manifest.chunks))


def _check_anchor(reader: ChainReader, version: int) -> None:
    """The manifest, and that every file is there with its size."""
    anchor = reader.anchor(version)
    for file in anchor.body.files:
        key = reader.anchor_file(anchor, file.name)
        try:
            found = reader.store.head(key).size
        except NotFound as error:
            raise LinkMissing(f"{key} is gone; the anchor cannot be used, take another") from error
        if found != file.size:
            raise ChunkCorrupt(f"{key} holds {found} bytes, its manifest says {file.size}; use another anchor")


def _check_skip(reader: ChainReader, version: int, base: int) -> None:
    skip = reader.skip(version, base)
    _check_delta(reader, skip, skip.digest)


def _hash_anchor(reader: ChainReader, version: int, progress: Progress) -> None:
    anchor, done = reader.anchor(version), 0
    for file in anchor.body.files:
        key, hashed = reader.anchor_file(anchor, file.name), blake3()
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
