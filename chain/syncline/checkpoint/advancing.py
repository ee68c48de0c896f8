"""Moving a checkpoint folder from one version to a later one in place, and finishing or forgetting that after a crash.

Order: the changes of every tensor are decoded against the files and written to the journal; the digest that they lead
to is compared with the manifest's; the journal is synced and sealed; the files are patched and synced; the marker is
renamed into place; the journal is removed. Before the seal nothing has happened, after it everything will. Memory
holds the staged changes of a few frames, and what is mapped is let go as it is passed. The caller holds the exclusive
lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from syncline import faults
from syncline.checkpoint.durable import naming_full_disk, remove_durably, write_durably
from syncline.checkpoint.journal import Change, Intent, JournalWriter, SealedJournal
from syncline.checkpoint.mapped import Places, let_go, mapped_units
from syncline.checkpoint.marker import Marker, OwnFiles, read_marker
from syncline.checkpoint.patching import patch
from syncline.delta import Delta, stage_tensor
from syncline.errors import (
    Corrupt,
    DigestMismatch,
    EpochRegressed,
    FormatInvalid,
    LayoutRefused,
    LineageChanged,
    SourceInvalid,
)
from syncline.wire.digest import Digest
from syncline.wire.records import VersionManifest
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import FrameGrid

STAGED_BYTES = 16 << 20
"""Weights whose changes are staged together: what is held of a tensor that is larger than a node's memory."""


class AdvancePoints(NamedTuple):
    """Names of the kill points of one advance."""

    journaled: str
    patched: str
    marked: str


NODE_POINTS = AdvancePoints("apply.checkpoint_journaled", "apply.checkpoint_patched", "apply.checkpoint_marked")
PUBLISHER_POINTS = AdvancePoints("publish.base_journaled", "publish.base_patched", "publish.base_marked")


def check_path(marker: Marker, manifests: Sequence[VersionManifest]) -> None:
    """Deltas that lead to `manifests`, in order, may be applied to what the marker names."""
    version, epoch = marker.version, marker.epoch
    for manifest in manifests:
        if (manifest.lineage, manifest.run, manifest.view) != (marker.lineage, marker.run, marker.view):
            raise LineageChanged(
                f"version {manifest.version} belongs to {manifest.run}/{manifest.view} of lineage {manifest.lineage}, "
                f"the checkpoint to {marker.run}/{marker.view} of {marker.lineage}; materialize it afresh"
            )
        if manifest.tensors != marker.table:
            raise LayoutRefused(
                f"version {manifest.version} has other tensors than version {marker.version} on disk; materialize it"
            )
        if manifest.version <= version:
            raise LayoutRefused(f"version {manifest.version} is not after {version}; materialize it to go back")
        if manifest.epoch < epoch:
            raise EpochRegressed(
                f"version {manifest.version} carries epoch {manifest.epoch}, version {version} before it {epoch}: "
                "a fenced writer wrote it; do not apply it"
            )
        version, epoch = manifest.version, manifest.epoch


def advance_in_place(
    path: Path,
    state: Path,
    places: Places,
    table: TensorTable,
    manifests: Sequence[VersionManifest],
    deltas: Sequence[Delta],
    *,
    marker: Marker,
    points: AdvancePoints,
    executor: Executor | None,
    passed: Callable[[], None] = lambda: None,
) -> Marker:
    """Apply deltas to the folder whose marker, in the file `state`, is `marker`. Returns the new marker.

    `passed` is called now and then: the caller's turn to let go of chunks that it has mapped.
    """
    check_path(marker, manifests)
    target = manifests[-1]
    new_marker = Marker.of(target, marker.tiling)
    own = OwnFiles(path)
    files = sorted({file for file, _ in places.values()})
    if link := linked_file(path):
        raise LayoutRefused(f"{link} is a link: what it leads to belongs to somebody else; materialize {path} again")
    intent = Intent(files, marker.version, marker.digest, new_marker, state.name)
    tiling = marker.tiling.tiling
    digest = Digest.from_hex(marker.digest)
    with JournalWriter(own.journal, intent) as journal:
        for tensor in sorted({t for delta in deltas for t in delta.tensors}):
            spec = table.tensors[tensor]
            file, place = places[spec.name]
            live = mapped_units(path / file, place)
            grid = spec.grid(tiling)
            for part in _parts(tensor, grid, spec.unit_bytes, deltas):
                staged = stage_tensor(table, tiling, tensor, live, part, executor=executor)
                digest = digest + staged.digest_change
                for frame in staged.frames:
                    journal.add(
                        Change(files.index(file), place.offset, grid.frame(frame.frame), frame.positions, frame.new)
                    )
                let_go(live)
            passed()
        if digest.hex != target.digest:
            raise DigestMismatch(
                f"{path} at version {marker.version} would become {digest.hex}, version {target.version} is "
                f"{target.digest}; nothing was written: verify the checkpoint and materialize it again if it differs"
            )
        journal.seal()
    faults.reach(points.journaled)
    sealed = SealedJournal.open(own.journal)
    if sealed is None:
        raise FormatInvalid(f"{own.journal} was sealed and cannot be found any more; materialize the checkpoint again")
    _finish(path, sealed, points)
    return new_marker


def _parts(tensor: int, grid: FrameGrid, unit_bytes: int, deltas: Sequence[Delta]) -> Iterator[list[Delta]]:
    """The same deltas of one tensor, some frames at a time."""
    changing = [delta.columns.indices[delta.columns.of_tensor(tensor)] for delta in deltas]
    some: list[int] = []
    held = 0

    def part() -> list[Delta]:
        return [delta.part(tensor, some[0], some[-1]) for delta in deltas]

    for index in map(int, np.unique(np.concatenate(changing))):
        size = grid.frame(index).units * unit_bytes
        if some and held + size > STAGED_BYTES:
            yield part()
            some, held = [], 0
        some.append(index)
        held += size
    if some:
        yield part()


def linked_file(path: Path) -> Path | None:
    """A weight file of the folder that only leads somewhere else, if there is one. Such a file is never patched."""
    return next((file for file in sorted(path.glob("*.safetensors")) if file.is_symlink()), None)


def recover(path: Path) -> str | None:
    """Replay a sealed journal or drop an open one. Returns what is wrong when the folder's bits are no version any
    more; its markers are then gone. The caller holds the exclusive lock.
    """
    own = OwnFiles(path)
    if not own.journal.exists():
        return None
    try:
        sealed = SealedJournal.open(own.journal)
        if sealed is None:
            remove_durably(own.journal)
            return None
        intent = sealed.intent
        state = own.folder / intent.marker_file
        marker = read_marker(state) if state in (own.marker, own.partial) else None
        if marker == intent.marker:
            remove_durably(own.journal)
            return None
        if marker is None or (marker.version, marker.digest) != (intent.from_version, intent.from_digest):
            raise FormatInvalid(f"{own.journal} does not start from what {path} holds; materialize it again")
        _finish(path, sealed, None)
    except (Corrupt, SourceInvalid, FileNotFoundError) as error:
        forget(path)
        return str(error)
    return None


def forget(path: Path) -> None:
    """The folder holds no version any more, and no journal will touch its files."""
    own = OwnFiles(path)
    for file in (own.marker, own.partial, own.journal):
        remove_durably(file)


def _finish(path: Path, sealed: SealedJournal, points: AdvancePoints | None) -> None:
    """Patch, sync, mark, remove the journal. May be repeated from the start at any time."""
    own = OwnFiles(path)
    intent = sealed.intent
    descriptors = [os.open(path / file, os.O_RDWR | os.O_CLOEXEC) for file in intent.files]
    try:
        with naming_full_disk(path):
            patch(descriptors, sealed.changes())
            for descriptor in descriptors:
                os.fsync(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    if points is not None:
        faults.reach(points.patched)
    write_durably(own.folder / intent.marker_file, intent.marker.encode())
    if points is not None:
        faults.reach(points.marked)
    remove_durably(own.journal)
