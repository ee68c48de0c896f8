"""A store in a local folder: the embedded default, and what a shared file system offers.

An object is one file at its key's path. It is written to a temporary file in the folder's own `.syncline/tmp`, made
durable, and only then appears under its name: by a hard link where the key must be free, by a rename where it is
replaced. So a process that dies at any point leaves the old object, the new one or nothing, and never a temporary file
that a listing shows; what it left in `.syncline/tmp` is removed by the next store opened on the folder (a temporary
file is locked while its writer lives, so a living one is never taken).

Links below the root are followed by nothing: one may lead out of it, or round in a circle. A listing passes them over, a
key behind one is refused by name, and a key that is one is no object. (The root itself may be a link.)

An etag comes from the file's identity alone (size, inode and a time of change whose last digits are drawn at random),
so that neither a poll of `head` nor a listing of large files reads their bytes. Files are never changed in place.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from errno import ELOOP
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from typing_extensions import Buffer

from syncline.clock import system_random
from syncline.errors import AlreadyExists, HeadMoved, NotFound, StoreDenied, StoreMisused, StoreUnavailable
from syncline.store.base import Fetched, ObjectInfo
from syncline.store.bounds import check_listing, checked_key
from syncline.store.buffers import FileSource, PartSource, fill_from_file, open_source, writable_view
from syncline.store.folder import copy_file, file_errors, link_above, sync_folder, walk_after

OWN_FOLDER = ".syncline"
COPY_BYTES = 16 << 20
NANOSECONDS_DRAWN = 1_000_000
"""Below this many nanoseconds a file's time of change is random: two files of one size, written within a clock tick to
a reused inode, still differ in their etags."""
LINK_TRIES = 16
_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG}


class LocalStore:
    """Objects as files below `root`, which may not exist yet."""

    def __init__(
        self, root: Path, *, rng: random.Random | None = None, fsync: Callable[[int], None] = os.fsync
    ) -> None:
        self._root = root.absolute()
        self._own = self._root / OWN_FOLDER
        self._temporary = self._own / "tmp"
        self._rng = rng or system_random()
        self._fsync = fsync
        self.url = f"file://{self._root}"
        self._sweep()

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        with self._open(key) as (fd, stat):
            if _etag(stat) == if_none_match:
                return None
            if stat.st_size > max_bytes:
                raise StoreMisused(f"{key} holds {stat.st_size} bytes; at most {max_bytes} were expected")
            data = bytearray(stat.st_size)
            fill_from_file(fd, 0, memoryview(data), name=key)
            return Fetched(bytes(data), _etag(stat), stat.st_mtime)

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        view = writable_view(buffer)
        with self._open(key) as (fd, stat):
            if not 0 <= offset <= offset + view.nbytes <= stat.st_size:
                raise StoreMisused(
                    f"{key} holds {stat.st_size} bytes; {view.nbytes} bytes from {offset} were asked for"
                )
            fill_from_file(fd, offset, view, name=key)

    def put_if_absent(self, key: str, data: Buffer) -> str:
        return self._create(key, data)

    def put_large(self, key: str, source: Path | Buffer) -> str:
        return self._create(key, source)

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        if etag is None:
            try:
                return self._create(key, data)
            except AlreadyExists as error:
                raise HeadMoved(f"{key} exists already; read it") from error
        path = self._path(key)
        with file_errors(key, self.url), self._finished(key, data) as (temporary, written), self._locked():
            try:
                stat = path.lstat()
                current = _etag(stat) if S_ISREG(stat.st_mode) else None
            except (FileNotFoundError, NotADirectoryError):
                current = None
            if current != etag:
                raise HeadMoved(f"{key} has etag {current}, not {etag}; read it again")
            temporary.replace(path)
            sync_folder(path.parent, self._fsync)
            return written

    def put(self, key: str, data: Buffer) -> str:
        path = self._path(key)
        with file_errors(key, self.url), self._finished(key, data) as (temporary, written), self._locked():
            self._make_folder(path.parent)
            temporary.replace(path)
            sync_folder(path.parent, self._fsync)
            return written

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with file_errors(key, self.url):
            try:
                stat = path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(key) from None
            if not S_ISREG(stat.st_mode):
                raise NotFound(key)
            return _info(key, stat)

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        check_listing(prefix, after, limit)
        found = (_info(key, stat) for key, stat in walk_after(self._root, prefix, after))
        with file_errors(prefix, self.url):
            yield from islice(found, limit)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with file_errors(key, self.url):
            if not path.is_file() or path.is_symlink():
                return
        with file_errors(key, self.url), self._locked():
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return  # somebody else deleted it while this call waited for the lock, and its folder with it
            sync_folder(path.parent, self._fsync)
            for folder in path.parents:
                if folder == self._root:
                    break
                try:
                    folder.rmdir()
                except OSError:
                    break  # not empty, or another delete took it

    def _path(self, key: str) -> Path:
        checked_key(key)
        with file_errors(key, self.url):
            link = link_above(self._root, key)
        if link is not None:
            raise StoreMisused(f"{key} lies behind the link {link}; {self.url} follows none: put a folder in its place")
        return self._root / key

    @contextmanager
    def _open(self, key: str) -> Generator[tuple[int, os.stat_result]]:
        path = self._path(key)
        with file_errors(key, self.url):
            try:
                # Without O_NONBLOCK, opening a pipe that somebody dropped here would wait for ever.
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(key) from None
            except OSError as error:
                if error.errno == ELOOP:
                    raise NotFound(key) from None  # a link
                raise
            try:
                stat = os.fstat(fd)
                if not S_ISREG(stat.st_mode):
                    raise NotFound(key)
                yield fd, stat
            finally:
                os.close(fd)

    def _create(self, key: str, source: Path | Buffer) -> str:
        path = self._path(key)
        with file_errors(key, self.url):
            if path.is_file() and not path.is_symlink():
                raise AlreadyExists(key)  # before a large source is copied; the link below decides
            with self._finished(key, source) as (temporary, written):
                self._link(temporary, path, key)
                try:
                    sync_folder(path.parent, self._fsync)
                except FileNotFoundError:
                    pass  # somebody deleted it again already, and its folder with it
                return written

    def _link(self, temporary: Path, path: Path, key: str) -> None:
        for _ in range(LINK_TRIES):
            try:
                self._make_folder(path.parent)
                return os.link(temporary, path)
            except FileExistsError:
                if path.is_symlink():
                    raise StoreMisused(f"{key} is a link in {self.url}, which follows none; remove it") from None
                if path.is_dir():
                    raise StoreMisused(f"{key} is a folder of other keys in {self.url}; choose another key") from None
                raise AlreadyExists(key) from None
            except FileNotFoundError:
                continue  # a delete removed an empty folder between two calls
        raise StoreUnavailable(f"{key} in {self.url}: its folder is removed as often as it is made; try again later")

    def _make_root(self) -> None:
        """Make the store's own folder. What keeps it from being made will not go by itself: no error to wait out."""
        try:
            if not self._root.is_dir():
                self._make_missing(self._root)
        except OSError as error:
            what = f"{self.url}: the store's folder cannot be made: {error.strerror}: {error.filename}"
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StoreDenied(f"{what}; give this process the permission, or choose another folder") from error
            if error.errno in _NO_FOLDER:
                raise StoreMisused(f"{what}; make the folders above it, or choose another one") from error
            raise

    def _make_folder(self, folder: Path) -> None:
        self._make_root()
        self._make_missing(folder)

    def _make_missing(self, folder: Path) -> None:
        missing: list[Path] = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for child in reversed(missing):
            try:
                child.mkdir()
            except FileExistsError:
                if self._root not in child.parents:
                    if not child.is_dir():
                        raise  # a file or a broken link stands where the store should be
                elif child.is_file():
                    raise StoreMisused(f"{child} is an object; no key of {self.url} can be below it") from None
            sync_folder(child.parent, self._fsync)

    @contextmanager
    def _finished(self, key: str, source: Path | Buffer) -> Generator[tuple[Path, str]]:
        """A durable temporary file with the source's bytes and the etag it will have; removed at the end where it was
        not renamed."""
        with open_source(source) as parts:
            temporary, fd = self._new_temporary()
            try:
                _write(fd, parts)
                modified = os.fstat(fd).st_mtime_ns
                modified += self._rng.randrange(NANOSECONDS_DRAWN) - modified % NANOSECONDS_DRAWN
                os.utime(fd, ns=(modified, modified))
                self._fsync(fd)
                yield temporary, _etag(os.fstat(fd))
            finally:
                temporary.unlink(missing_ok=True)
                os.close(fd)

    def _new_temporary(self) -> tuple[Path, int]:
        while True:
            self._make_folder(self._temporary)
            path = self._temporary / f"{os.getpid()}-{self._rng.getrandbits(64):016x}"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return path, fd
            os.close(fd)  # a sweep took it between creation and lock

    @contextmanager
    def _locked(self) -> Generator[None]:
        """One replacement at a time, over all processes on this folder; the lock goes with the process that held it."""
        self._make_folder(self._own)
        fd = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _sweep(self) -> None:
        """Remove what dead writers left."""
        try:
            left = sorted(self._temporary.iterdir())
        except OSError:
            return  # no store yet, or one that this process may only read
        for path in left:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                continue  # its writer finished, or it belongs to another user
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except OSError:
                pass  # its writer lives
            finally:
                os.close(fd)


def _write(fd: int, parts: PartSource) -> None:
    if isinstance(parts, FileSource):
        copy_file(parts.fd, fd, parts.size)
        return
    for offset in range(0, parts.size, COPY_BYTES):
        view = memoryview(parts.read(offset, min(COPY_BYTES, parts.size - offset)))
        while view.nbytes:
            view = view[os.write(fd, view) :]


def _etag(stat: os.stat_result) -> str:
    return f"{stat.st_size:x}-{stat.st_mtime_ns:x}-{stat.st_ino:x}"


def _info(key: str, stat: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, stat.st_size, _etag(stat), stat.st_mtime)
