"""Fetching chunks: verified before use, from the nearest source that has the right bytes, corrupt ones put aside."""

from __future__ import annotations

import random
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from blake3 import blake3

from syncline.clock import ManualClock
from syncline.errors import ChunkCorrupt, DiskFull, LinkMissing, StoreDenied, StoreUnavailable
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.keys import RunKeys
from syncline.store.memory import MemoryStore
from syncline.wire.records import ChunkRef
from syncline_agent.fetch import Fetcher, Source
from syncline_agent.nodefiles import QUARANTINE_KEEPS, NodeFiles

KEYS = RunKeys("run").view()


def put(store: MemoryStore, data: bytes) -> ChunkRef:
    ref = ChunkRef(blake3=blake3(data).hexdigest(), size=len(data), first_tensor=0, last_tensor=0)
    store.put(KEYS.chunk(ref.blake3), data)
    return ref


def faulty(store: MemoryStore, *kinds: FaultKind) -> FaultyStore:
    script = [("get_range_into", "chunks/", Fault(kind)) for kind in kinds]
    return FaultyStore(store, ScriptedFaults(script), clock=ManualClock(), rng=random.Random(1))


class Tally:
    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self.retries: list[str] = []

    def fetched(self, source: str, size: int) -> None:
        self.bytes[source] = self.bytes.get(source, 0) + size


def test_chunks_become_verified_files_once(tmp_path: Path) -> None:
    store, tally = MemoryStore(ManualClock()), Tally()
    files = NodeFiles(tmp_path)
    refs = [put(store, bytes([i]) * (1000 + i)) for i in range(20)]
    with ThreadPoolExecutor(4) as pool:
        fetcher = Fetcher([Source("origin", store)], files, executor=pool, piece_bytes=64, fetched=tally.fetched)
        assert sum(r.size for r in refs) == fetcher.fetch(KEYS, [*refs, refs[0]])
        assert 0 == fetcher.fetch(KEYS, refs)
    assert [bytes([i]) * (1000 + i) for i in range(20)] == [files.chunk(r.blake3).read_bytes() for r in refs]
    assert {"origin": sum(r.size for r in refs)} == tally.bytes


def test_a_bit_flipped_on_the_way_is_quarantined_and_read_again(tmp_path: Path) -> None:
    store, tally = MemoryStore(ManualClock()), Tally()
    files = NodeFiles(tmp_path)
    ref = put(store, b"weights" * 100)
    source = Source("origin", faulty(store, FaultKind.FLIPPED))
    Fetcher([source], files, retried=tally.retries.append).fetch(KEYS, [ref])
    assert b"weights" * 100 == files.chunk(ref.blake3).read_bytes()
    assert ["corrupt"] == tally.retries
    assert 1 == files.quarantined


def test_a_mirror_that_is_corrupt_at_rest_is_passed_over_for_the_origin(tmp_path: Path) -> None:
    mirror, origin, tally = MemoryStore(ManualClock()), MemoryStore(ManualClock()), Tally()
    ref = put(origin, b"right")
    mirror.put(KEYS.chunk(ref.blake3), b"wrong")
    sources = [Source("mirror", mirror), Source("origin", origin)]
    files = NodeFiles(tmp_path)
    Fetcher(sources, files, fetched=tally.fetched).fetch(KEYS, [ref])
    assert b"right" == files.chunk(ref.blake3).read_bytes()
    assert {"mirror": 10, "origin": 5} == tally.bytes


def test_a_mirror_that_refuses_is_passed_over_for_the_origin(tmp_path: Path) -> None:
    store, tally = MemoryStore(ManualClock()), Tally()
    ref = put(store, b"right")
    denied = faulty(store, FaultKind.DENIED, FaultKind.DENIED)
    files = NodeFiles(tmp_path)
    sources = [Source("mirror", denied), Source("origin", store)]
    Fetcher(sources, files, retried=tally.retries.append).fetch(KEYS, [ref])
    assert b"right" == files.chunk(ref.blake3).read_bytes()
    assert ["refused"] == tally.retries
    with pytest.raises(StoreDenied):
        Fetcher([Source("origin", denied)], NodeFiles(tmp_path / "other")).fetch(KEYS, [ref])


def test_a_chunk_that_is_wrong_everywhere_is_refused_by_name(tmp_path: Path) -> None:
    store = MemoryStore(ManualClock())
    ref = put(store, b"right")
    store.put(KEYS.chunk(ref.blake3), b"wrong")
    files = NodeFiles(tmp_path)
    with pytest.raises(ChunkCorrupt, match=ref.blake3):
        Fetcher([Source("origin", store)], files).fetch(KEYS, [ref])
    assert not files.has(ref)


def test_a_chunk_that_is_shorter_than_its_manifest_says_is_corrupt(tmp_path: Path) -> None:
    store = MemoryStore(ManualClock())
    ref = put(store, b"right")
    store.put(KEYS.chunk(ref.blake3), b"rig")
    with pytest.raises(ChunkCorrupt, match="shorter"):
        Fetcher([Source("origin", store)], NodeFiles(tmp_path)).fetch(KEYS, [ref])


def test_a_missing_chunk_breaks_the_link_and_the_others_stay(tmp_path: Path) -> None:
    store = MemoryStore(ManualClock())
    here, gone = put(store, b"here"), put(store, b"gone")
    store.delete(KEYS.chunk(gone.blake3))
    files = NodeFiles(tmp_path)
    with pytest.raises(LinkMissing, match=gone.blake3):
        Fetcher([Source("origin", store)], files).fetch(KEYS, [gone, here])
    assert files.has(here)


def test_an_outage_outranks_a_hole(tmp_path: Path) -> None:
    """While a source is down nothing is known to be missing, so the follower waits and does not look for another way."""
    store = MemoryStore(ManualClock())
    ref = put(store, b"chunk")
    down = Source("mirror", faulty(store, FaultKind.UNAVAILABLE))
    with pytest.raises(StoreUnavailable):
        Fetcher([down, Source("origin", MemoryStore(ManualClock()))], NodeFiles(tmp_path)).fetch(KEYS, [ref])


def test_a_file_from_before_is_hashed_before_it_is_used(tmp_path: Path) -> None:
    store = MemoryStore(ManualClock())
    ref = put(store, b"chunk")
    Fetcher([Source("origin", store)], NodeFiles(tmp_path)).fetch(KEYS, [ref])
    (tmp_path / "chunks" / ref.blake3).write_bytes(b"chonk")
    (tmp_path / "chunks" / f"{ref.blake3}.9.part").write_bytes(b"ch")
    files = NodeFiles(tmp_path)
    assert not files.has(ref)
    assert 1 == files.quarantined
    assert [] == list((tmp_path / "chunks").iterdir())
    Fetcher([Source("origin", store)], files).fetch(KEYS, [ref])
    assert files.has(ref)


def test_a_full_disk_is_named_before_anything_is_written(tmp_path: Path) -> None:
    store = MemoryStore(ManualClock())
    ref = ChunkRef(blake3="00" * 32, size=256 << 20, first_tensor=0, last_tensor=0)
    refs = [ref.model_copy(update={"blake3": f"{i:064x}"}) for i in range(60_000)]
    with pytest.raises(DiskFull, match="make room"):
        Fetcher([Source("origin", store)], NodeFiles(tmp_path)).fetch(KEYS, refs)


def test_a_disk_that_fills_while_writing_is_named(tmp_path: Path) -> None:
    """The file size limit of this process stands for the full disk: both stop a write half-way."""
    store = MemoryStore(ManualClock())
    ref = put(store, bytes(1 << 20))
    files = NodeFiles(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(DiskFull, match="make room"):
            Fetcher([Source("origin", store)], files).fetch(KEYS, [ref])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [] == list((tmp_path / "chunks").iterdir())


def test_only_the_last_few_quarantined_files_are_kept(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    for number in range(QUARANTINE_KEEPS + 3):
        bad = tmp_path / f"bad{number}"
        bad.write_bytes(b"x")
        files.quarantine(bad)
    assert QUARANTINE_KEEPS == files.quarantined


def test_pruning_spares_what_is_kept_and_what_is_held(tmp_path: Path) -> None:
    store = MemoryStore(ManualClock())
    kept, held, dropped = (put(store, data) for data in (b"kept", b"held", b"dropped"))
    files = NodeFiles(tmp_path)
    Fetcher([Source("origin", store)], files).fetch(KEYS, [kept, held, dropped])
    with files.holding([held.blake3]):
        assert len(b"dropped") == files.prune([kept.blake3])
    assert [True, True, False] == [files.has(r) for r in (kept, held, dropped)]
    assert len(b"held") == files.prune([kept.blake3])
