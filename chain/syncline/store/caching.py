"""A node's cache of immutable objects: what several followers on one node read, the node fetches once.

Keeps whole objects as files in a folder, at most `max_bytes` of them, and drops the one that was used longest ago. Only
keys that `cacheable` accepts are kept, and those must never change: nothing is asked of the store again for them. It
trusts its files no more than the store: callers verify what they read, and call `forget` for an object that was wrong,
so that the next read fetches it anew.
"""

from __future__ import annotations

import os
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock

from blake3 import blake3
from typing_extensions import Buffer

from syncline.errors import StoreMisused
from syncline.store.base import Fetched, ObjectInfo, WeightStore
from syncline.store.buffers import fill_from_file, writable_view

HEADER_MAX = 512
OBJECT_MAX_BYTES = 256 << 20
"""Larger objects are read through and not kept: they are read once, by ranges, when a node joins."""


class CachingStore:
    """Another store, with a folder of what it gave."""

    def __init__(
        self,
        inner: WeightStore,
        folder: Path,
        *,
        max_bytes: int,
        cacheable: Callable[[str], bool],
        rng: random.Random,
        object_max_bytes: int = OBJECT_MAX_BYTES,
    ) -> None:
        self._inner = inner
        self._folder = folder
        self._max_bytes = max_bytes
        self._cacheable = cacheable
        self._rng = rng
        self._object_max_bytes = min(object_max_bytes, max_bytes)
        self._lock = Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # file name -> bytes, the one used longest ago first
        self._bytes = 0
        self._load()

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def cached_bytes(self) -> int:
        """Bytes of all files in the folder."""
        return self._bytes

    def forget(self, key: str) -> None:
        """Drop the object, because what came of it was wrong; the next read asks the store."""
        self._drop(_name(key))

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        if not self._cacheable(key):
            return self._inner.get(key, max_bytes=max_bytes, if_none_match=if_none_match)
        if (entry := self._entry(key)) is not None:
            with entry:
                if entry.info.etag == if_none_match:
                    return None
                if entry.info.size > max_bytes:
                    raise StoreMisused(f"{key} holds {entry.info.size} bytes; at most {max_bytes} were expected")
                data = bytearray(entry.info.size)
                entry.fill(0, memoryview(data))
                return Fetched(bytes(data), entry.info.etag, entry.info.modified)
        found = self._inner.get(key, max_bytes=max_bytes, if_none_match=if_none_match)
        if found is not None and len(found.data) <= self._object_max_bytes:
            self._keep(ObjectInfo(key, len(found.data), found.etag, found.modified), found.data)
        return found

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        view = writable_view(buffer)
        if not self._cacheable(key):
            return self._inner.get_range_into(key, offset, view)
        if (entry := self._entry(key)) is None:
            info = self._inner.head(key)
            if info.size > self._object_max_bytes:
                return self._inner.get_range_into(key, offset, view)
            whole = bytearray(info.size)
            self._inner.get_range_into(key, 0, whole)
            self._keep(info, whole)
            _check_range(info, offset, view.nbytes)
            view[:] = memoryview(whole)[offset : offset + view.nbytes]
            return None
        with entry:
            _check_range(entry.info, offset, view.nbytes)
            entry.fill(offset, view)
            return None

    def put_if_absent(self, key: str, data: Buffer) -> str:
        return self._inner.put_if_absent(key, data)

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        self.forget(key)
        return self._inner.compare_and_put(key, data, etag=etag)

    def put(self, key: str, data: Buffer) -> str:
        self.forget(key)
        return self._inner.put(key, data)

    def put_large(self, key: str, source: Path | Buffer) -> str:
        return self._inner.put_large(key, source)

    def head(self, key: str) -> ObjectInfo:
        return self._inner.head(key)

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        return self._inner.list_after(prefix, after=after, limit=limit)

    def delete(self, key: str) -> None:
        self._inner.delete(key)
        self.forget(key)

    def _entry(self, key: str) -> _Entry | None:
        """The kept object, opened (it stays readable even if it is dropped meanwhile), or None."""
        name = _name(key)
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        try:
            entry = _Entry(self._folder / name, key)
        except (OSError, ValueError):
            self._drop(name)  # taken by another process on the folder, or cut by a crash
            return None
        os.utime(entry.fd)
        return entry

    def _keep(self, info: ObjectInfo, data: Buffer) -> None:
        name = _name(info.key)
        header = f"{info.size} {info.modified!r} {info.etag}\n".encode()
        if len(header) > HEADER_MAX:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{name}-{self._rng.getrandbits(64):016x}"
        try:
            with temporary.open("xb") as out:
                out.write(header)
                out.write(data)
            temporary.replace(self._folder / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            return  # a cache without room is no error
        with self._lock:
            self._count(name, len(header) + info.size)
            surplus: list[str] = []
            left = self._bytes
            for oldest, size in self._sizes.items():
                if left <= self._max_bytes:
                    break
                surplus.append(oldest)
                left -= size
        for oldest in surplus:
            self._drop(oldest)

    def _count(self, name: str, size: int) -> None:
        self._bytes += size - self._sizes.pop(name, 0)
        self._sizes[name] = size

    def _drop(self, name: str) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(name, 0)
            (self._folder / name).unlink(missing_ok=True)

    def _load(self) -> None:
        """Take over what an earlier process kept, and remove what it had not finished."""
        if not self._folder.is_dir():
            return
        found: list[tuple[float, str, int]] = []
        for path in self._folder.iterdir():
            if path.name.startswith("."):
                path.unlink(missing_ok=True)
            else:
                stat = path.stat()
                found.append((stat.st_mtime, path.name, stat.st_size))
        for _, name, size in sorted(found):
            self._count(name, size)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._sizes)))


class _Entry:
    """A kept object: a line with size, time and etag, then the bytes. Closed by leaving it as a context."""

    def __init__(self, path: Path, key: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            line, newline, _ = os.pread(self.fd, HEADER_MAX, 0).partition(b"\n")
            size, modified, etag = line.decode().split(" ", 2)
            self.info = ObjectInfo(key, int(size), etag, float(modified))
            self._start = len(line) + 1
            if not newline or os.fstat(self.fd).st_size != self._start + self.info.size:
                raise ValueError(f"{path} is not whole")
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None:
        os.close(self.fd)

    def fill(self, offset: int, view: memoryview) -> None:
        fill_from_file(self.fd, self._start + offset, view, name=self.info.key)


def _name(key: str) -> str:
    return blake3(key.encode()).hexdigest()


def _check_range(info: ObjectInfo, offset: int, length: int) -> None:
    if not 0 <= offset <= offset + length <= info.size:
        raise StoreMisused(f"{info.key} holds {info.size} bytes; {length} bytes from {offset} were asked for")
