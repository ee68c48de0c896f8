"""What a node's cache saves, bounds, forgets and survives."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from syncline.clock import ManualClock
from syncline.errors import NotFound, StoreMisused, StoreUnavailable
from syncline.store.caching import CachingStore
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.memory import MemoryStore

DOWN = Fault(FaultKind.UNAVAILABLE)


class Parts:
    """A cache over memory that can be taken down: nothing but the cache answers then."""

    def __init__(self, folder: Path, *, max_bytes: int = 10_000, object_max_bytes: int = 5_000) -> None:
        self.inner = MemoryStore(ManualClock())
        self.folder = folder
        self._bounds = max_bytes, object_max_bytes

    def open(self, *, down: bool = False) -> CachingStore:
        script = [(op, "", DOWN) for op in ("get", "get_range_into", "head") for _ in range(100)] if down else []
        faulty = FaultyStore(self.inner, ScriptedFaults(script), clock=ManualClock(), rng=random.Random(1))
        return CachingStore(
            faulty,
            self.folder,
            max_bytes=self._bounds[0],
            object_max_bytes=self._bounds[1],
            cacheable=lambda key: "/chunks/" in key,
            rng=random.Random(2),
        )


def read(store: CachingStore, key: str, length: int, offset: int = 0) -> bytes:
    buffer = bytearray(length)
    store.get_range_into(key, offset, buffer)
    return bytes(buffer)


def test_a_chunk_is_fetched_once_and_read_from_then_on(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.inner.put("r/chunks/a", b"0123456789")
    assert b"345" == read(parts.open(), "r/chunks/a", 3, 3)
    alone = parts.open(down=True)
    assert b"0123456789" == read(alone, "r/chunks/a", 10)
    found = alone.get("r/chunks/a", max_bytes=10)
    assert found is not None
    assert (b"0123456789", parts.inner.head("r/chunks/a").etag) == (found.data, found.etag)
    assert alone.get("r/chunks/a", max_bytes=10, if_none_match=found.etag) is None
    with pytest.raises(StoreMisused):
        alone.get("r/chunks/a", max_bytes=9)
    with pytest.raises(StoreMisused):
        read(alone, "r/chunks/a", 3, 8)


def test_a_chunk_read_whole_is_kept_too(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.inner.put("r/chunks/a", b"0123456789")
    parts.open().get("r/chunks/a", max_bytes=10)
    assert b"34" == read(parts.open(down=True), "r/chunks/a", 2, 3)


def test_what_can_change_is_never_kept(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.inner.put("r/head", b"1")
    store = parts.open()
    store.get("r/head", max_bytes=1)
    read(store, "r/head", 1)
    parts.inner.put("r/head", b"2")
    assert b"2" == read(store, "r/head", 1)
    with pytest.raises(StoreUnavailable):
        read(parts.open(down=True), "r/head", 1)


def test_the_folder_stays_within_its_bound_and_drops_what_was_used_longest_ago(tmp_path: Path) -> None:
    parts = Parts(tmp_path, max_bytes=3_500)
    for name in "abcd":
        parts.inner.put(f"r/chunks/{name}", name.encode() * 1000)
    store = parts.open()
    for name in "abcad":  # a is used again before d needs room, so b goes
        read(store, f"r/chunks/{name}", 1000)
    assert store.cached_bytes <= 3_500
    assert store.cached_bytes == sum(p.stat().st_size for p in tmp_path.iterdir())
    alone = parts.open(down=True)
    for name in "acd":
        assert name.encode() * 1000 == read(alone, f"r/chunks/{name}", 1000)
    with pytest.raises(StoreUnavailable):
        read(alone, "r/chunks/b", 1000)


def test_an_object_larger_than_the_bound_passes_through(tmp_path: Path) -> None:
    parts = Parts(tmp_path, object_max_bytes=100)
    parts.inner.put("r/chunks/a", bytes(101))
    store = parts.open()
    assert bytes(50) == read(store, "r/chunks/a", 50, 51)
    store.get("r/chunks/a", max_bytes=101)
    assert 0 == store.cached_bytes


def test_a_forgotten_chunk_is_fetched_again(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.inner.put("r/chunks/a", b"wrong")
    store = parts.open()
    assert b"wrong" == read(store, "r/chunks/a", 5)
    parts.inner.put("r/chunks/a", b"right")
    store.forget("r/chunks/a")
    store.forget("r/chunks/never-seen")
    assert b"right" == read(store, "r/chunks/a", 5)


def test_a_deleted_chunk_is_gone_from_the_cache_too(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.inner.put("r/chunks/a", b"1")
    store = parts.open()
    read(store, "r/chunks/a", 1)
    store.delete("r/chunks/a")
    with pytest.raises(NotFound):
        read(store, "r/chunks/a", 1)


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "gone"])
def test_a_damaged_file_is_a_miss(tmp_path: Path, damage: str) -> None:
    parts = Parts(tmp_path)
    parts.inner.put("r/chunks/a", b"0123456789")
    store = parts.open()
    read(store, "r/chunks/a", 10)
    (path,) = tmp_path.iterdir()
    match damage:
        case "cut":
            os.truncate(path, path.stat().st_size - 1)
        case "empty":
            os.truncate(path, 0)
        case "header":
            path.write_bytes(b"\xff" * path.stat().st_size)
        case _:
            path.unlink()
    assert b"0123456789" == read(store, "r/chunks/a", 10)
    assert b"0123456789" == read(parts.open(down=True), "r/chunks/a", 10)


def test_what_a_dead_process_had_not_finished_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".abc-0123").write_bytes(b"half")
    store = Parts(tmp_path).open()
    assert [] == list(tmp_path.iterdir())
    assert 0 == store.cached_bytes


def test_a_smaller_bound_is_kept_at_once(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    for name in "abc":
        parts.inner.put(f"r/chunks/{name}", bytes(1000))
        read(parts.open(), f"r/chunks/{name}", 1000)
    store = Parts(tmp_path, max_bytes=2_500).open()
    assert 0 < store.cached_bytes <= 2_500
