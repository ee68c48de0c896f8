"""A store in this process's memory: the reference that every other adapter must behave like, and what simulations run
on.

It promises all of the port but durability. Its clock is the store's clock, so a test can let it disagree with everybody
else's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from typing_extensions import Buffer

from syncline.clock import Clock
from syncline.errors import AlreadyExists, HeadMoved, NotFound, StoreMisused
from syncline.store.base import Fetched, ObjectInfo
from syncline.store.bounds import check_listing, checked_key
from syncline.store.buffers import flat_view, open_source, writable_view


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    etag: str
    modified: float


class MemoryStore:
    """Objects in a dictionary under one lock; each write gets a new etag."""

    def __init__(self, clock: Clock, *, name: str = "") -> None:
        self.url = f"memory:{name}"
        self._clock = clock
        self._lock = Lock()
        self._objects: dict[str, _Stored] = {}
        self._keys: list[str] = []
        self._writes = 0

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        stored = self._stored(key)
        if stored.etag == if_none_match:
            return None
        if len(stored.data) > max_bytes:
            raise StoreMisused(f"{key} holds {len(stored.data)} bytes; at most {max_bytes} were expected")
        return Fetched(stored.data, stored.etag, stored.modified)

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        view = writable_view(buffer)
        data = self._stored(key).data
        end = offset + view.nbytes
        if not 0 <= offset <= end <= len(data):
            raise StoreMisused(f"{key} holds {len(data)} bytes; bytes {offset} to {end} were asked for")
        view[:] = memoryview(data)[offset:end]

    def put_if_absent(self, key: str, data: Buffer) -> str:
        value = bytes(flat_view(data))
        with self._lock:
            if checked_key(key) in self._objects:
                raise AlreadyExists(key)
            return self._write(key, value)

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        value = bytes(flat_view(data))
        with self._lock:
            stored = self._objects.get(checked_key(key))
            current = None if stored is None else stored.etag
            if current != etag:
                raise HeadMoved(f"{key} has etag {current}, not {etag}; read it again")
            return self._write(key, value)

    def put(self, key: str, data: Buffer) -> str:
        value = bytes(flat_view(data))
        with self._lock:
            return self._write(checked_key(key), value)

    def put_large(self, key: str, source: Path | Buffer) -> str:
        with open_source(source) as parts:
            return self.put_if_absent(key, parts.read(0, parts.size))

    def head(self, key: str) -> ObjectInfo:
        return _info(key, self._stored(key))

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        check_listing(prefix, after, limit)
        with self._lock:
            start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
            end = bisect_left(self._keys, prefix + "\x7f")
            if limit is not None:
                end = min(end, start + limit)
            found = [_info(key, self._objects[key]) for key in self._keys[start:end]]
        return iter(found)

    def delete(self, key: str) -> None:
        with self._lock:
            if self._objects.pop(checked_key(key), None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def _stored(self, key: str) -> _Stored:
        with self._lock:
            stored = self._objects.get(checked_key(key))
        if stored is None:
            raise NotFound(key)
        return stored

    def _write(self, key: str, data: bytes) -> str:
        self._writes += 1
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = _Stored(data, f"{self._writes:x}", self._clock.now())
        return self._objects[key].etag


def _info(key: str, stored: _Stored) -> ObjectInfo:
    return ObjectInfo(key, len(stored.data), stored.etag, stored.modified)
