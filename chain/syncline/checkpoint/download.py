"""The files of an anchor, fetched in parallel ranges straight into preallocated files and verified by BLAKE3.

A file that is complete, verified and synced is written down, so that a download that was killed fetches only the others
again. Disk space is looked at and reserved before the first byte is asked for.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from blake3 import blake3

from syncline.chain import Anchor, ChainReader
from syncline.checkpoint.durable import naming_full_disk, sync_file, sync_folder, write_durably
from syncline.checkpoint.marker import OwnFiles
from syncline.errors import ChunkCorrupt, DiskFull, FormatInvalid, LinkMissing, NotFound, StoreMisused
from syncline.wire import canonical
from syncline.wire.limits import MANIFEST_MAX_BYTES
from syncline.wire.records import AnchorFile

PART_BYTES = 8 << 20
"""One ranged read, and a stream's scratch."""
STREAMS = 8
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
    parts_left: int
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
        """Fetch what is not there yet. LinkMissing or ChunkCorrupt when the anchor cannot serve, DiskFull."""
        files = self._anchor.body.files
        self._verified = self.kept()
        wanted = [f for f in files if f.name not in self._verified]
        self._done_bytes = sum(f.size for f in files if f.name in self._verified)
        self._progress("fetch", self._done_bytes, self._anchor.body.size)
        self._write_record()
        again = self._fetch(wanted)
        if again:
            again = self._fetch(again)
        if again:
            keys = ", ".join(self._reader.anchor_file(self._anchor, f.name) for f in again[:3])
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

    def _fetch(self, files: Sequence[AnchorFile]) -> list[AnchorFile]:
        """Fetch and verify; returns the files whose bytes are wrong."""
        pending = [self._prepared(file) for file in files]
        futures: list[Future[None]] = []
        try:
            for item in pending:
                for offset in range(0, max(1, item.file.size), PART_BYTES):
                    futures.append(self._pool.submit(self._fetch_part, item, offset))
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
        return _Pending(file, path, max(1, -(-file.size // PART_BYTES)))

    def _fetch_part(self, item: _Pending, offset: int) -> None:
        size = min(PART_BYTES, item.file.size - offset)
        if size > 0:
            with self._scratch() as buffer:
                self._read_range(item.file.name, offset, buffer[:size])
                with naming_full_disk(item.path):
                    _write_at(item.path, buffer[:size], offset)
        with self._lock:
            item.parts_left -= 1
            self._done_bytes += size
            self._progress("fetch", self._done_bytes, self._anchor.body.size)
            last = item.parts_left == 0
        if last:
            self._verify(item)

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

    def _read_range(self, name: str, offset: int, buffer: memoryview) -> None:
        key = self._reader.anchor_file(self._anchor, name)
        try:
            self._reader.store.get_range_into(key, offset, buffer)
        except NotFound as error:
            raise LinkMissing(f"{key} is gone: the anchor was collected; plan again") from error
        except StoreMisused as error:
            raise ChunkCorrupt(f"{key} is shorter than its manifest says: {error}") from error

    def _verify(self, item: _Pending) -> None:
        with self._scratch() as buffer:
            found = _blake3_of(item.path, buffer)
        if found != item.file.blake3:
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


def _blake3_of(path: Path, buffer: memoryview) -> str:
    """Hash by bounded reads: a map would count the whole file as this process's memory."""
    hasher = blake3(max_threads=blake3.AUTO)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return hasher.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _allocated_below(folder: Path) -> int:
    return sum(file.lstat().st_blocks * 512 for file in folder.rglob("*") if not file.is_symlink() and file.is_file())
