"""The files of an anchor, fetched in parallel ranges straight into preallocated files and verified by BLAKE3.

Hashing and syncing go on beside fetching: each stream hashes what it brought if it is next in its file, and syncs when
enough has gathered, so that little of either is left to do after the last byte came. A file that is complete, verified
and synced is written down, so that a download that was killed fetches only the others again. Disk space is looked at
and reserved before the first byte is asked for.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from blake3 import blake3

from syncline.chain import Anchor, ChainReader
from syncline.checkpoint.durable import naming_full_disk, sync_file, sync_folder, write_durably
from syncline.checkpoint.marker import OwnFiles
from syncline.errors import (
    ChunkCorrupt,
    DiskFull,
    FormatInvalid,
    LinkMissing,
    NotFound,
    StoreMisused,
    StoreUnavailable,
)
from syncline.store.base import WeightStore
from syncline.store.buffers import fill_from_file
from syncline.store.first_of import sources_of
from syncline.wire import canonical
from syncline.wire.limits import MANIFEST_MAX_BYTES
from syncline.wire.records import AnchorFile

PART_BYTES = 8 << 20
"""One ranged read, and a stream's scratch."""
STREAMS = 8
SYNC_BYTES = 128 << 20
"""Written to a file before a stream syncs it while the others fetch on."""
SPARE_BYTES = 64 << 20
"""Left free beside an anchor: the journal of the deltas that follow, and other people's logs."""

Progress = Callable[[str, int, int], None]
"""Called with a phase, bytes done and bytes in all; from several threads, one at a time."""


def no_progress(phase: str, done: int, total: int) -> None:
    """Tell nobody."""
    del phase, done, total


@dataclass(slots=True)
class _Pending:
    """A file on its way."""

    file: AnchorFile
    path: Path
    parts: int
    hasher: blake3
    hashed: int = 0
    """Parts that went into the hasher, in order."""
    written: set[int] = field(default_factory=set[int])
    """Parts in the file that are not hashed yet."""
    hashing: bool = False
    """A stream is at it, and takes what others bring meanwhile."""
    unsynced: int = 0
    syncing: bool = False
    corrupt: bool = False


class AnchorDownload:
    """One anchor into one folder. The caller holds the folder's lock."""

    def __init__(
        self, reader: ChainReader, anchor: Anchor, path: Path, *, pool: ThreadPoolExecutor, progress: Progress
    ) -> None:
        self._reader = reader
        self._anchor = anchor
        self._path = path
        self._pool = pool
        self._progress = progress
        self._record = OwnFiles(path).download
        self._lock = Lock()
        self._spare: SimpleQueue[bytearray] = SimpleQueue()
        self._verified: set[str] = set()
        self._done_bytes = 0

    def check(self) -> None:
        """Before anything is touched: names that can stand side by side, and room for them. FormatInvalid, DiskFull."""
        names = {f.name for f in self._anchor.body.files}
        parents = {str(parent) for name in names for parent in PurePosixPath(name).parents}
        own = any(PurePosixPath(name).parts[0] == OwnFiles(self._path).folder.name for name in names)
        if own or names & parents or len(names) != len(self._anchor.body.files):
            raise FormatInvalid(f"anchor {self._anchor.version} has file names that cannot stand in one folder")
        free = shutil.disk_usage(self._path).free + _allocated_below(self._path)
        needed = self._anchor.body.size + SPARE_BYTES
        if needed > free:
            raise DiskFull(
                f"{self._path} needs {needed} bytes for anchor {self._anchor.version}, its disk has {free}; "
                "free space or choose another disk. Nothing was written"
            )

    def run(self) -> None:
        """Fetch what is not there yet: whatever is wrong a second time, and from each source by itself where there are
        several. LinkMissing or ChunkCorrupt when the anchor cannot serve, DiskFull."""
        files = self._anchor.body.files
        self._verified = self.kept()
        wanted = [f for f in files if f.name not in self._verified]
        self._done_bytes = sum(f.size for f in files if f.name in self._verified)
        self._progress("fetch", self._done_bytes, self._anchor.body.size)
        self._write_record()
        wrong = self._fetch(wanted, self._reader.store)
        silent: StoreUnavailable | None = None
        for source in sources_of(self._reader.store):
            if not wrong:
                return
            try:
                self._fetch(wrong, source)
            except (LinkMissing, ChunkCorrupt):
                pass  # this source will not do; the next may
            except StoreUnavailable as error:
                silent = error
            wrong = [f for f in wrong if f.name not in self._verified]
        if wrong and silent is not None:
            raise silent
        if wrong:
            keys = ", ".join(self._reader.anchor_file(self._anchor, f.name) for f in wrong[:3])
            raise ChunkCorrupt(f"{keys}: not the bytes of anchor {self._anchor.version}, twice; use another anchor")

    def kept(self) -> set[str]:
        """Names of the files in the folder that an earlier run of this very download verified."""
        try:
            data = self._record.read_bytes()
            record: Any = canonical.decode(data, max_bytes=MANIFEST_MAX_BYTES, what=str(self._record))
            if (record["version"], record["nonce"]) != (self._anchor.version, self._anchor.body.nonce):
                return set()
            named = set(record["verified"])
        except (FileNotFoundError, FormatInvalid, KeyError, TypeError):
            return set()
        return {f.name for f in self._anchor.body.files if f.name in named and _size(self._path / f.name) == f.size}

    def _write_record(self) -> None:
        record = {
            "nonce": self._anchor.body.nonce,
            "verified": sorted(self._verified),
            "version": self._anchor.version,
        }
        write_durably(self._record, canonical.encode(record))

    def _fetch(self, files: Sequence[AnchorFile], source: WeightStore) -> list[AnchorFile]:
        """Fetch from a source and verify; returns the files whose bytes are wrong."""
        pending = [self._prepared(file) for file in files]
        futures: list[Future[None]] = []
        try:
            for item in pending:
                for part in range(item.parts):
                    futures.append(self._pool.submit(self._fetch_part, source, item, part))
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future.done():
                    future.result()
        finally:
            for future in futures:
                future.cancel()
            wait(futures)
        return [item.file for item in pending if item.corrupt]

    def _prepared(self, file: AnchorFile) -> _Pending:
        path = self._path / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming_full_disk(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o664)
            try:
                os.ftruncate(descriptor, file.size)
                if file.size:
                    try:
                        os.posix_fallocate(descriptor, 0, file.size)
                    except OSError as error:
                        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                            raise
            finally:
                os.close(descriptor)
        parts = max(1, -(-file.size // PART_BYTES))
        return _Pending(file, path, parts, blake3(max_threads=blake3.AUTO))

    def _fetch_part(self, source: WeightStore, item: _Pending, part: int) -> None:
        offset = part * PART_BYTES
        size = min(PART_BYTES, item.file.size - offset)
        with self._scratch() as buffer:
            view = buffer[:size]
            if size > 0:
                self._read_range(source, item.file.name, offset, view)
                with naming_full_disk(item.path):
                    _write_at(item.path, view, offset)
            with self._lock:
                self._done_bytes += size
                self._progress("fetch", self._done_bytes, self._anchor.body.size)
                item.written.add(part)
                mine = not item.hashing and item.hashed == part
                item.hashing = item.hashing or mine
            if mine:
                self._hash(item, view)
        self._sync_beside(item, size)

    def _hash(self, item: _Pending, view: memoryview) -> None:
        """Hash the part in `view`, and as many after it as are in the file by then."""
        item.hasher.update(view)
        with item.path.open("rb", buffering=0) as file:
            while self._next_is_written(item):
                # Read, not mapped: a map would count the whole file as this process's memory.
                offset = item.hashed * PART_BYTES
                piece = view[: min(PART_BYTES, item.file.size - offset)]
                fill_from_file(file.fileno(), offset, piece, name=str(item.path))
                item.hasher.update(piece)
        if item.hashed == item.parts:
            self._verify(item)

    def _next_is_written(self, item: _Pending) -> bool:
        """Count the part just hashed, and say whether the next one can be; if not, whoever brings it goes on."""
        with self._lock:
            item.written.discard(item.hashed)
            item.hashed += 1
            item.hashing = item.hashed in item.written
            return item.hashing

    def _sync_beside(self, item: _Pending, size: int) -> None:
        with self._lock:
            item.unsynced += size
            if item.syncing or item.unsynced < SYNC_BYTES:
                return
            item.syncing, item.unsynced = True, 0
        try:
            sync_file(item.path)
        finally:
            item.syncing = False

    @contextmanager
    def _scratch(self) -> Generator[memoryview]:
        """A part's worth of memory, used again and again: one for each stream is all there ever are."""
        try:
            buffer = self._spare.get_nowait()
        except Empty:
            buffer = bytearray(PART_BYTES)
        try:
            yield memoryview(buffer)
        finally:
            self._spare.put(buffer)

    def _read_range(self, source: WeightStore, name: str, offset: int, buffer: memoryview) -> None:
        key = self._reader.anchor_file(self._anchor, name)
        try:
            source.get_range_into(key, offset, buffer)
        except NotFound as error:
            raise LinkMissing(f"{key} is gone: the anchor was collected; plan again") from error
        except StoreMisused as error:
            raise ChunkCorrupt(f"{key} is shorter than its manifest says: {error}") from error

    def _verify(self, item: _Pending) -> None:
        if item.hasher.hexdigest() != item.file.blake3:
            with self._lock:
                item.corrupt = True
                self._done_bytes -= item.file.size
            return
        sync_file(item.path)
        sync_folder(item.path.parent)
        with self._lock:
            self._verified.add(item.file.name)
            self._write_record()


def _write_at(path: Path, view: memoryview, offset: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _allocated_below(folder: Path) -> int:
    return sum(file.lstat().st_blocks * 512 for file in folder.rglob("*") if not file.is_symlink() and file.is_file())
