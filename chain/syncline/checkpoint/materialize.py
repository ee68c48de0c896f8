"""Bringing a folder to a version: from what it holds by deltas, or from an anchor and then deltas.

While weights come in the folder has no marker, only the record of a partial one, so nobody loads it; the marker is
written last, once every tensor's digest is that of the manifest. What a killed run verified is used by the next. A step
that fails for good (an anchor or chunk that is gone, garbage, or of other bits than it claims) is avoided and the way
planned anew, down to older anchors, and the log says so. Weight bytes pass through in bounded memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import structlog
from structlog.typing import FilteringBoundLogger

from syncline import faults
from syncline.chain import AnchorStep, ChainReader, DeltaStep, Plan, SkipStep, StepKey, Vetoed, plan
from syncline.checkpoint.advancing import NODE_POINTS, advance_in_place, forget, linked_file, recover
from syncline.checkpoint.checkpoint import Checkpoint, store_table, verify_files
from syncline.checkpoint.download import STREAMS, AnchorDownload, Progress, no_progress
from syncline.checkpoint.durable import remove_durably, sync_folder, write_durably
from syncline.checkpoint.locks import exclusive
from syncline.checkpoint.mapped import places_of
from syncline.checkpoint.marker import Marker, OwnFiles, read_marker
from syncline.delta import Delta
from syncline.errors import (
    ChunkCorrupt,
    Corrupt,
    FormatInvalid,
    LayoutRefused,
    LinkMissing,
    Rejected,
    SourceInvalid,
    SourceNotReady,
    SynclineError,
)
from syncline.wire.records import ChunkRef, VersionManifest

BATCH_BYTES = 128 << 20
"""Chunk bytes of the deltas that are decoded together; a single larger delta goes by itself."""

StoredDelta = DeltaStep | SkipStep


def materialize(
    reader: ChainReader,
    version: int,
    path: Path,
    *,
    executor: Executor | None = None,
    progress: Progress = no_progress,
    vetoed: Vetoed | None = None,
    streams: int = STREAMS,
    log: FilteringBoundLogger | None = None,
    planned: Callable[[Plan], None] | None = None,
) -> Checkpoint:
    """Make `path` a servable checkpoint of `version`, whatever version of the run it holds now; returns it, proven.

    May be killed at any time and called again. `executor` decodes and digests; fetching has threads of its own.
    `vetoed` versions are neither targets nor anchors; left out, the store is asked. `planned` hears of each way before
    it is taken, so that its caller can keep the store from collecting it. Raises CheckpointBusy while
    somebody loads or writes the folder; DiskFull; Rejected for a folder of other people's files; what the planner
    raises when no way is left; and the store's own errors, after which a next call goes on.
    """
    reader.run_record()  # a run that does not exist is told before a folder is made for it
    _refuse_strangers_files(path)
    own = OwnFiles(path)
    with exclusive(own.lock), ThreadPoolExecutor(streams, thread_name_prefix="materialize") as pool:
        recover(path)
        logger = log or cast(FilteringBoundLogger, structlog.get_logger())
        work = _Materializing(
            reader, path, pool=pool, executor=executor, progress=progress, log=logger, planned=planned
        )
        work.bring_to(version, reader.vetoes() if vetoed is None else vetoed)
    return Checkpoint.open(path)


def _refuse_strangers_files(path: Path) -> None:
    if path.exists() and not OwnFiles(path).folder.is_dir() and any(path.iterdir()):
        raise Rejected(f"{path} holds files that Syncline did not write; name an empty folder")


@dataclass(frozen=True, slots=True)
class _Held:
    """What the folder holds, by the marker in the file `state`."""

    state: Path
    marker: Marker


class _Materializing:
    """One call, under the folder's lock."""

    def __init__(
        self,
        reader: ChainReader,
        path: Path,
        *,
        pool: ThreadPoolExecutor,
        executor: Executor | None,
        progress: Progress,
        log: FilteringBoundLogger,
        planned: Callable[[Plan], None] | None,
    ) -> None:
        self._reader = reader
        self._path = path
        self._planned = planned
        self._own = OwnFiles(path)
        self._pool = pool
        self._executor = executor
        self._progress = progress
        self._log = log.bind(run=reader.keys.run, view=reader.keys.view)
        self._doing: StepKey | None = None
        """What is to blame if something fails now."""

    def bring_to(self, version: int, vetoed: Vetoed) -> None:
        manifest = self._reader.manifest(version)
        avoid: dict[StepKey, SynclineError] = {}
        while True:
            held = self._held(manifest)
            if held is not None and held.state == self._own.marker and held.marker.holds(manifest):
                return
            on_disk = None if held is None else held.marker.version
            way = plan(None, version, self._reader, on_disk=on_disk, vetoed=vetoed, avoid=avoid)
            if self._planned is not None:
                self._planned(way)
            try:
                self._take(way, held)
                return
            except (Corrupt, LinkMissing, LayoutRefused, SourceInvalid, SourceNotReady) as error:
                blamed = self._doing
                if blamed is None or blamed in avoid:
                    raise
                avoid[blamed] = error
                self._log.warning(
                    "avoided a step", step=blamed.kind, version=blamed.version, target=version, error=str(error)
                )

    def _held(self, manifest: VersionManifest) -> _Held | None:
        """What the folder holds of this run's view, whole or partial. Anything else there counts for nothing."""
        if link := linked_file(self._path):
            self._log.warning("found a link where a file should be; fetching it anew", file=str(link))
            return None
        for state in (self._own.marker, self._own.partial):
            try:
                marker = read_marker(state)
            except FormatInvalid as error:
                self._log.warning("found a damaged marker", error=str(error))
                continue
            ours = (manifest.run, manifest.view, manifest.lineage)
            if marker is not None and (marker.run, marker.view, marker.lineage) == ours:
                return _Held(state, marker)
        return None

    def _take(self, way: Plan, held: _Held | None) -> None:
        start = way.start
        assert start is not None
        self._doing = start.key
        if isinstance(start, AnchorStep):
            held = self._fetch_anchor(start)
        # The files are about to leave the anchor that a killed download may have been at.
        remove_durably(self._own.download)
        assert held is not None
        for batch in _batches(way.deltas):
            held = _Held(held.state, self._advance(held, batch, start.key))
        if held.state == self._own.marker and held.marker.holds(way.target):
            return
        self._doing = start.key  # what sums up wrong in the end was wrong from the start
        self._prove(way.target)
        faults.reach("apply.materialized")
        held.state.replace(self._own.marker)
        sync_folder(self._own.folder)

    def _fetch_anchor(self, start: AnchorStep) -> _Held:
        """The anchor's files, and a partial marker that says so."""
        anchor = self._reader.anchor(start.version)
        manifest = self._reader.manifest(start.version)
        table = self._reader.table(manifest)
        download = AnchorDownload(self._reader, anchor, self._path, pool=self._pool, progress=self._progress)
        download.check()
        forget(self._path)
        self._clear(keep=download.kept())
        download.run()
        store_table(self._path, manifest, table)
        places_of(self._path, table)
        marker = Marker.of(manifest, self._reader.run_record().tiling)
        write_durably(self._own.partial, marker.encode())
        return _Held(self._own.partial, marker)

    def _clear(self, keep: Collection[str]) -> None:
        """Remove what an earlier version left, Syncline's own folder and `keep` excepted."""
        for entry in self._path.iterdir():
            if entry == self._own.folder or entry.name in keep:
                continue
            if entry.is_dir() and not entry.is_symlink():
                if not any(name.startswith(entry.name + "/") for name in keep):
                    shutil.rmtree(entry)
            else:
                entry.unlink()

    def _advance(self, held: _Held, batch: Sequence[StoredDelta], start: StepKey) -> Marker:
        table = self._reader.table(batch[0].manifest)
        deltas: list[Delta] = []
        for step in batch:
            self._doing = step.key
            chunks = zip(step.chunks, self._pool.map(self._chunk, step.chunks), strict=True)
            deltas.append(Delta.parse(table, held.marker.tiling.tiling, chunks))
        target = batch[-1].version
        self._progress("patch", target, target)
        places = places_of(self._path, table)
        try:
            return advance_in_place(
                self._path,
                held.state,
                places,
                table,
                [step.manifest for step in batch],
                deltas,
                marker=held.marker,
                points=NODE_POINTS,
                executor=self._executor,
            )
        except Corrupt:
            # Whole chunks that do not lead to the target: are the bits wrong that they start from, or one of them?
            self._doing = start
            self._prove(self._reader.manifest(held.marker.version))
            self._doing = batch[-1].key
            if len(batch) == 1:
                raise
        for step in batch:
            held = _Held(held.state, self._advance(held, [step], start))
        return held.marker

    def _chunk(self, ref: ChunkRef) -> bytes:
        try:
            return self._reader.chunk(ref)
        except ChunkCorrupt:
            return self._reader.chunk(ref)  # once more: a transfer may have been cut or flipped

    def _prove(self, manifest: VersionManifest) -> None:
        self._progress("prove", manifest.version, manifest.version)
        table = self._reader.table(manifest)
        try:
            verify_files(self._path, places_of(self._path, table), table, manifest, executor=self._executor)
        except Corrupt:
            forget(self._path)
            remove_durably(self._own.download)
            raise


def _batches(steps: Sequence[StoredDelta]) -> Iterator[list[StoredDelta]]:
    batch: list[StoredDelta] = []
    size = 0
    for step in steps:
        if batch and size + step.fetch_bytes > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(step)
        size += step.fetch_bytes
    if batch:
        yield batch
