"""The reader against a memory store: what it asks for, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from syncline.chain import ChainReader, plan
from syncline.clock import ManualClock
from syncline.errors import (
    ChunkCorrupt,
    EpochRegressed,
    FormatInvalid,
    LineageChanged,
    LinkMissing,
    NotFound,
    StoreUnavailable,
)
from syncline.store.base import Fetched, ObjectInfo, WeightStore
from syncline.store.keys import RunKeys
from syncline.store.memory import MemoryStore
from syncline.testing.chains import OTHER_LINEAGE, TABLE, ChainWriter, chunk_bytes, version_manifest
from syncline.wire.digest import Digest
from syncline.wire.records import pack_digests


class CountingStore:
    """Every call goes on to the store; reading calls are written down."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self.calls: list[str] = []

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        self.calls.append(f"get {key}")
        return self._store.get(key, max_bytes=max_bytes, if_none_match=if_none_match)

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        self.calls.append(f"list {prefix}")
        return self._store.list_after(prefix, after=after, limit=limit)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


@pytest.fixture
def writer(store: MemoryStore) -> ChainWriter:
    return ChainWriter(store)


def reader_of(store: object, **settings: int) -> ChainReader:
    return ChainReader(store, "run", **settings)  # type: ignore[arg-type]


def version_of(reader: ChainReader) -> int | None:
    head = reader.head()
    return None if head is None else head.version


def test_a_run_that_does_not_exist_is_not_found(store: MemoryStore):
    with pytest.raises(NotFound, match=r"run/run\.json"):
        reader_of(store).head()


def test_a_run_without_versions_has_no_head(store: MemoryStore, writer: ChainWriter):
    reader = reader_of(store)
    assert reader.head() is None
    writer.commit(1, None)
    assert 1 == version_of(reader)


def test_an_idle_poll_is_one_request_and_a_new_version_is_seen(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    writer.point(1)
    counting = CountingStore(store)
    reader = reader_of(counting, list_every=4)
    assert 1 == version_of(reader)
    counting.calls.clear()
    for poll in range(1, 13):
        assert 1 == version_of(reader)
        assert poll == len(counting.calls)
    assert 3 == sum(call.startswith("list") for call in counting.calls)
    writer.commit(2, 1)
    writer.point(2)
    assert 2 == version_of(reader)


def test_a_head_that_lags_is_overtaken_by_the_listing(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    writer.point(1)
    reader = reader_of(store, list_every=3)
    assert 1 == version_of(reader)
    writer.commit(2, 1)  # its writer died before it moved head
    assert [1, 1, 2, 2] == [version_of(reader) for _ in range(4)]
    assert 2 == version_of(reader_of(store))


def test_a_head_that_goes_back_takes_nobody_back(store: MemoryStore, writer: ChainWriter):
    for v in (1, 2, 3):
        writer.commit(v, v - 1 or None)
    writer.point(3)
    reader = reader_of(store)
    assert 3 == version_of(reader)
    writer.point(1)
    assert 3 == version_of(reader)


def test_a_head_that_is_ahead_of_the_truth_is_harmless(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    writer.commit(2, 1)
    writer.point(9)
    reader = reader_of(store)
    assert [2, 2] == [version_of(reader) for _ in range(2)]
    writer.commit(3, 2)
    assert 3 == reader.listed_head().version  # type: ignore[union-attr]


@pytest.mark.parametrize("pointer", [b"", b"garbage", b'{"version":3}', b"x" * (2 << 20)])
def test_a_head_that_is_garbage_is_harmless(store: MemoryStore, writer: ChainWriter, pointer: bytes):
    writer.commit(1, None)
    store.put(writer.keys.head, pointer)
    reader = reader_of(store)
    assert 1 == version_of(reader)
    writer.commit(2, 1)
    assert 2 == version_of(reader)


def test_a_head_that_is_removed_is_harmless(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    writer.point(1)
    reader = reader_of(store)
    assert 1 == version_of(reader)
    store.delete(writer.keys.head)
    writer.commit(2, 1)
    assert 2 == version_of(reader)


def test_a_head_of_another_lineage_is_a_lie_unless_the_run_changed_too(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    writer.point(1, lineage=OTHER_LINEAGE)
    reader = reader_of(store)
    assert 1 == version_of(reader)
    store.delete(RunKeys("run").run_json)
    reused = ChainWriter(store, lineage=OTHER_LINEAGE)
    reused.point(1)
    with pytest.raises(LineageChanged, match="run name was reused"):
        reader.head()


def test_a_version_of_the_run_that_had_the_name_before_is_refused(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    store.put(writer.keys.version(2), version_manifest(2, 1, lineage=OTHER_LINEAGE).encode())
    with pytest.raises(LineageChanged, match=r"versions/000000000002\.json belongs to lineage 22"):
        reader_of(store).manifest(2)


def test_a_run_that_was_created_again_is_noticed_by_its_manifests(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    reader = reader_of(store)
    reader.head()
    store.delete(RunKeys("run").run_json)
    ChainWriter(store, lineage=OTHER_LINEAGE).commit(2, 1)
    with pytest.raises(LineageChanged, match="the run name was reused"):
        reader.manifest(2)


def test_strangers_among_the_keys_are_passed_over(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    writer.commit(2, 1)
    for stray in ("000000000003.json.tmp", "readme.txt", "000000000000.json", "000000000004/x.json"):
        store.put(writer.keys.versions + stray, b"x")
    store.put(writer.keys.anchors + "notes", b"x")
    store.put(writer.keys.skips + "000000000002/notes.json", b"x")
    store.put(writer.keys.vetoes + "notes", b"x")
    reader = reader_of(store)
    assert [1, 2] == reader.versions()
    assert [2] == reader.versions(after=1)
    assert 2 == version_of(reader)
    assert [1] == reader.anchors()
    assert {} == reader.skip_bases()
    assert {} == reader.vetoes()


def test_a_missing_version_is_named(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    with pytest.raises(LinkMissing, match=r"run/main/versions/000000000002\.json is gone"):
        reader_of(store).manifest(2)


def test_a_manifest_that_was_copied_to_another_key_is_refused(store: MemoryStore, writer: ChainWriter):
    store.put(writer.keys.version(3), version_manifest(2, 1).encode())
    with pytest.raises(FormatInvalid, match="describes run/main version 2"):
        reader_of(store).manifest(3)


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_truncated_manifest_is_refused_by_its_key(store: MemoryStore, writer: ChainWriter, cut: int):
    store.put(writer.keys.version(2), version_manifest(2, 1).encode()[:cut])
    with pytest.raises(FormatInvalid, match="versions/000000000002"):
        reader_of(store).manifest(2)


def test_a_manifest_with_broken_digests_is_refused(store: MemoryStore, writer: ChainWriter):
    broken = version_manifest(2, 1).model_copy(update={"tensor_digests": "AAAA"})
    store.put(writer.keys.version(2), broken.encode())
    with pytest.raises(FormatInvalid, match="tensor digests"):
        reader_of(store).manifest(2)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_version_of_other_than_one_digest_a_tensor_is_refused_with_its_table(
    store: MemoryStore, writer: ChainWriter, more: int
):
    manifest = writer.commit(1, None)
    tensors = len(reader_of(store).table(manifest).tensors)
    odd = manifest.model_copy(update={"tensor_digests": pack_digests([Digest()] * (tensors + more))})
    with pytest.raises(FormatInvalid, match=f"has {tensors + more} tensor digests for {tensors} tensors"):
        reader_of(store).table(odd)


def test_manifests_and_tables_are_read_once_and_forgotten_in_bounded_memory(store: MemoryStore, writer: ChainWriter):
    manifests = [writer.commit(v, v - 1 or None) for v in range(1, 6)]
    counting = CountingStore(store)
    reader = reader_of(counting)
    for _ in range(3):
        assert manifests == [reader.manifest(v) for v in range(1, 6)]
        assert TABLE == reader.table(manifests[0])
    assert 6 == len(counting.calls)
    small = reader_of(counting, remembered_bytes=2 * 2 * len(manifests[0].encode()))
    counting.calls.clear()
    for _ in range(2):
        for v in range(1, 6):
            small.manifest(v)
    assert 11 == len(counting.calls)


def test_anchors_are_those_beside_versions_and_anchor_only_versions(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    second = writer.commit(2, 1)
    third = writer.commit(3, 2)
    writer.anchor(second)
    # An attempt that died before its manifest, of a version that exists and of one that does not.
    store.put(writer.keys.anchor_file(3, "0f" * 16, "model.safetensors"), b"x")
    store.put(writer.keys.anchor_file(9, "0f" * 16, "manifest.json"), b"x")
    reader = reader_of(store)
    assert [1, 2] == reader.anchors()
    assert 2 == reader.anchor(2).version
    assert second.digest == reader.anchor(2).digest
    assert reader.manifest(1).anchor == reader.anchor(1).body
    with pytest.raises(LinkMissing, match="anchors/000000000003/manifest"):
        reader.anchor(third.version)


def test_an_anchor_of_another_manifest_is_refused(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    anchor = writer.anchor(writer.commit(2, 1))
    store.put(writer.keys.anchor(2), anchor.model_copy(update={"manifest": "0" * 64}).encode())
    with pytest.raises(FormatInvalid, match="does not belong to the version's manifest"):
        reader_of(store).anchor(2)


def test_skip_deltas_are_listed_and_checked(store: MemoryStore, writer: ChainWriter):
    manifests = [writer.commit(v, v - 1 or None) for v in range(1, 6)]
    writer.skip(manifests[3], 1)
    near = writer.skip(manifests[3], 2)
    reader = reader_of(store)
    assert {4: [1, 2]} == reader.skip_bases()
    assert [2, 1] == [s.base for s in reader.skips(4)]
    assert [] == reader.skips(5)
    assert near == reader.skip(4, 2)
    store.put(writer.keys.skip(5, 2), near.model_copy(update={"version": 5}).encode())
    with pytest.raises(FormatInvalid, match="does not belong to the version's manifest"):
        reader.skip(5, 2)
    store.put(writer.keys.skip(4, 3), near.encode())
    with pytest.raises(FormatInvalid, match="says that its base is 2"):
        reader.skip(4, 3)
    with pytest.raises(LinkMissing):
        reader.skip(5, 1)
    store.put(writer.keys.skip(4, 2), near.model_copy(update={"base_digest": "0" * 32}).encode())
    with pytest.raises(FormatInvalid, match="starts from other bits than version 2"):
        reader.skip(4, 2)
    store.delete(writer.keys.version(2))
    assert 2 == reader_of(store).skip(4, 2).base


def test_a_veto_is_seen_when_it_appears_and_gone_when_it_is_removed(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    reader = reader_of(store)
    assert {} == reader.vetoes()
    writer.veto(1)
    assert "reward fell" == reader.vetoes()[1].reason
    counting = CountingStore(store)
    again = reader_of(counting)
    again.vetoes()
    counting.calls.clear()
    again.vetoes()
    assert [f"list {writer.keys.vetoes}"] == counting.calls
    store.delete(writer.keys.veto(1))
    assert {} == reader.vetoes()


def test_a_veto_that_cannot_be_read_still_counts_and_a_strangers_does_not(store: MemoryStore, writer: ChainWriter):
    store.put(writer.keys.veto(3), b"do not use")
    writer.lineage = OTHER_LINEAGE
    writer.veto(4)
    vetoes = reader_of(store).vetoes()
    assert [3] == list(vetoes)
    assert "cannot be read" in vetoes[3].reason


def test_a_chunk_is_handed_on_only_when_it_hashes_to_its_name(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None)
    ref = writer.commit(2, 1, 50).chunks[0]
    reader = reader_of(store)
    data = chunk_bytes(50, "delta 1 2")
    assert data == reader.chunk(ref)
    key = writer.keys.chunk(ref.blake3)
    store.put(key, data[:20] + bytes([data[20] ^ 1]) + data[21:])
    with pytest.raises(ChunkCorrupt, match=f"{key} does not hash to its name"):
        reader.chunk(ref)
    store.put(key, data[:-1])
    with pytest.raises(ChunkCorrupt, match="shorter than the 50 bytes"):
        reader.chunk(ref)
    store.delete(key)
    with pytest.raises(LinkMissing, match=f"{key} is gone"):
        reader.chunk(ref)


def test_a_store_that_is_down_is_no_hole(store: MemoryStore, writer: ChainWriter):
    class Down(CountingStore):
        def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
            raise StoreUnavailable(f"{key}: connection refused")

    writer.commit(1, None)
    with pytest.raises(StoreUnavailable):
        reader_of(Down(store)).head()
    with pytest.raises(StoreUnavailable):
        plan(None, 1, reader_of(Down(store)))


def test_a_plan_is_made_from_what_the_reader_finds(store: MemoryStore, writer: ChainWriter):
    manifests = [writer.commit(v, v - 1 or None) for v in range(1, 8)]
    writer.anchor(manifests[2])
    writer.skip(manifests[5], 3)
    way = plan(None, 7, reader_of(store))
    assert ["anchor", "skip", "delta"] == [s.key.kind for s in way.steps]
    assert [3, 6, 7] == [s.version for s in way.steps]
    store.delete(writer.keys.anchor(3))
    way = plan(None, 7, reader_of(store))
    assert ["anchor", "delta", "delta", "skip", "delta"] == [s.key.kind for s in way.steps]
    store.delete(writer.keys.version(2))
    with pytest.raises(LinkMissing, match=r"versions/000000000002\.json is gone"):
        plan(None, 7, reader_of(store))


def test_a_fenced_writers_version_in_the_store_is_refused(store: MemoryStore, writer: ChainWriter):
    writer.commit(1, None, epoch=1)
    writer.commit(2, 1, epoch=3)
    writer.commit(3, 2, epoch=2)
    reader = reader_of(store)
    assert 3 == version_of(reader)
    with pytest.raises(EpochRegressed):
        plan(None, 3, reader)
