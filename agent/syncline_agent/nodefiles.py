"""Files of the node directory: verified chunks, tensor tables, what was quarantined, and who may delete them.

    <node-dir>/chunks/<blake3>        a whole verified chunk; written beside as <blake3>.<n>.part and renamed
    <node-dir>/tables/<blake3>.json   a tensor table
    <node-dir>/quarantine/            the last few files that did not hash to their name, for people to look at
    <node-dir>/checkpoint/            the servable checkpoint (nodecheckpoint.py)
    <node-dir>/checkpoint.files       names of the files that it must have (examining.py)
    <node-dir>/reload.json            what an engine that reloads was told last (reload/served.py)
    <node-dir>/back/                  a second checkpoint, while going back needs one (nodecheckpoint.py)
    <node-dir>/agent.lock             held by the one agent that owns the directory
    <node-dir>/arm.sock               where arms connect

Chunks are named by their content, so a file is the same for every version that uses it. Nothing here is fsynced: a
chunk that a power cut tore no longer hashes to its name, is found when this process first uses it, and is fetched
again.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from blake3 import blake3

from syncline.errors import ChunkCorrupt, DiskFull, Rejected, Retryable
from syncline.wire.records import ChunkRef, ObjectRef
from syncline.wire.tensors import TensorTable

QUARANTINE_KEEPS = 4
HASH_PIECE_BYTES = 1 << 20


class NodeFiles:
    """The chunk and table files of one node. Safe for the fetcher's threads."""

    def __init__(self, node_dir: Path) -> None:
        self.root = node_dir
        self._chunks = node_dir / "chunks"
        self._tables = node_dir / "tables"
        self._quarantine = node_dir / "quarantine"
        for folder in (self._chunks, self._tables, self._quarantine):
            folder.mkdir(parents=True, exist_ok=True)
        for torn in self._chunks.glob("*.part"):
            torn.unlink(missing_ok=True)
        self._verified: set[str] = set()
        """Chunks that this process has seen hash to their name."""
        self._held: list[frozenset[str]] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def chunk(self, blake3_hex: str) -> Path:
        return self._chunks / blake3_hex

    def has(self, ref: ChunkRef | ObjectRef) -> bool:
        """Whether the chunk is here and whole. A file from before this process is hashed once; a wrong one is
        quarantined."""
        path = self.chunk(ref.blake3)
        try:
            if path.stat().st_size != ref.size:
                raise ChunkCorrupt(f"{path} has another size than {ref.size}")
            if ref.blake3 not in self._verified and hash_file(path) != ref.blake3:
                raise ChunkCorrupt(f"{path} does not hash to its name")
        except FileNotFoundError:
            return False
        except ChunkCorrupt:
            self.quarantine(path)
            return False
        with self._lock:
            self._verified.add(ref.blake3)
        return True

    def recheck(self, refs: Iterable[ChunkRef]) -> list[str]:
        """Hash chunks again, whatever was known of them; quarantine the wrong ones and return their names."""
        wrong: list[str] = []
        for ref in refs:
            with self._lock:
                self._verified.discard(ref.blake3)
            if not self.has(ref):
                wrong.append(ref.blake3)
        return wrong

    def part(self, blake3_hex: str) -> Path:
        """A new name to download to."""
        return self._chunks / f"{blake3_hex}.{next(self._numbers)}.part"

    def accept(self, part: Path, blake3_hex: str) -> None:
        """A download that hashed to its name becomes the chunk."""
        part.replace(self.chunk(blake3_hex))
        with self._lock:
            self._verified.add(blake3_hex)

    def quarantine(self, path: Path) -> None:
        """Put a wrong file aside; only the last few are kept."""
        number = next(self._numbers)
        try:
            path.replace(self._quarantine / f"{number:06d}-{path.name[:16]}")
        except FileNotFoundError:
            return
        for old in sorted(self._quarantine.iterdir())[:-QUARANTINE_KEEPS]:
            old.unlink(missing_ok=True)

    @property
    def quarantined(self) -> int:
        """Files in quarantine."""
        return sum(1 for _ in self._quarantine.iterdir())

    def table(self, table: TensorTable, ref: ObjectRef) -> Path:
        """The table as a file that the arm can read."""
        path = self._tables / f"{ref.blake3}.json"
        data = table.encode()
        if not path.exists() or path.stat().st_size != len(data):
            part = self._tables / f"{ref.blake3}.{next(self._numbers)}.part"
            part.write_bytes(data)
            part.replace(path)
        return path

    def map(self, blake3_hex: str) -> mmap.mmap:
        """The chunk as read-only memory that the kernel may drop again."""
        with self.chunk(blake3_hex).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @contextmanager
    def holding(self, names: Iterable[str]) -> Iterator[None]:
        """Keep chunks from `prune` while another thread works with them."""
        held = frozenset(names)
        with self._lock:
            self._held.append(held)
        try:
            yield
        finally:
            with self._lock:
                self._held.remove(held)

    def prune(self, keep: Iterable[str]) -> int:
        """Delete every chunk whose name is neither in `keep` nor held; returns the bytes freed."""
        with self._lock:
            kept = set(keep).union(*self._held)
        freed = 0
        for path in self._chunks.iterdir():
            if path.name in kept or path.name.endswith(".part"):
                continue
            with self._lock:
                self._verified.discard(path.name)
            try:
                freed += path.stat().st_size
            except FileNotFoundError:
                continue  # quarantined meanwhile
            path.unlink(missing_ok=True)
        return freed

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the chunks on this node."""
        return sum(p.stat().st_size for p in self._chunks.iterdir())

    def require(self, size_bytes: int, what: str) -> None:
        """DiskFull before anything is written, when the disk has no room for `size_bytes` more."""
        free = shutil.disk_usage(self.root).free
        if free < size_bytes:
            raise DiskFull(
                f"{what} needs {size_bytes} bytes and {self.root} has {free} free; make room on the node, "
                "the sync goes on by itself"
            )


def own_node_dir(node_dir: Path) -> IO[bytes]:
    """Take a node directory for this process, for as long as the file that is returned stays open.

    Rejected when another agent has it: two would answer for one engine. OSError for a folder that cannot be written.
    """
    node_dir.mkdir(parents=True, exist_ok=True)
    lock = (node_dir / "agent.lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise Rejected(f"{node_dir} belongs to an agent that runs already; give each agent its own") from error
    return lock


def hash_file(path: Path) -> str:
    """BLAKE3 of a file, in bounded memory."""
    hasher = blake3()
    with path.open("rb") as file:
        while piece := file.read(HASH_PIECE_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()


def node_trouble(error: OSError, path: Path) -> Retryable:
    """What the node's own disk refused, as an error with a name: nothing that another store or version would help."""
    return disk_full(error, path) or Retryable(f"{error}; mend this node, the sync goes on by itself")


def disk_full(error: OSError, path: Path) -> DiskFull | None:
    """The named form of a full disk; None for any other trouble."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(
            f"{path} cannot be written: {os.strerror(error.errno)}; make room on the node, the sync goes on by itself"
        )
    return None
