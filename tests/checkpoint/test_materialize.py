"""Materializing: from anchors and deltas, resumed, from what is on disk, and around everything that can be broken."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import structlog
from structlog.testing import capture_logs
from typing_extensions import Buffer

from syncline.chain import ChainReader
from syncline.checkpoint import Checkpoint, OwnFiles, WeightFolder, materialize
from syncline.checkpoint import download as downloading
from syncline.clock import ManualClock
from syncline.delta import Delta
from syncline.errors import (
    CheckpointBusy,
    DiskFull,
    LayoutRefused,
    LineageChanged,
    LinkMissing,
    NotFound,
    Rejected,
    StoreUnavailable,
    VersionVetoed,
)
from syncline.faults import install_hook
from syncline.store.first_of import FirstOf
from syncline.store.memory import MemoryStore
from syncline.testing.stored_runs import StoredRun
from syncline.wire.records import AnchorBody, AnchorFile, AnchorManifest, VetoRecord

materializing = importlib.import_module("syncline.checkpoint.materialize")  # the package names the function so too


class WatchedStore(MemoryStore):
    """Writes down ranged reads, and fails them on request."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.read: list[str] = []
        self.fail_after: int | None = None
        self.flip_once: set[str] = set()

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        if self.fail_after is not None:
            if self.fail_after == 0:
                raise StoreUnavailable(f"{key}: connection reset")
            self.fail_after -= 1
        self.read.append(key)
        super().get_range_into(key, offset, buffer)
        if key in self.flip_once:
            self.flip_once.remove(key)
            memoryview(buffer)[0] ^= 1

    def anchors_read(self) -> set[int]:
        return {int(key.split("/")[3]) for key in self.read if "/anchors/" in key}


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


@pytest.fixture
def run(store: WatchedStore) -> StoredRun:
    """Versions 1 to 6; anchors of 1 and 3; a skip delta from 3 to 6."""
    run = StoredRun(store)
    run.first(shards=3)
    for _ in range(5):
        run.step()
    run.anchor(3, shards=2)
    run.skip(6, 3)
    store.read.clear()
    return run


def made(run: StoredRun, version: int, path: Path, **settings: object) -> Checkpoint:
    """Materialize, and check every bit."""
    checkpoint = materialize(ChainReader(run.store, "run"), version, path, **settings)  # type: ignore[arg-type]
    checkpoint.verify(run.manifests[version])
    assert checkpoint.marker is not None and checkpoint.marker.holds(run.manifests[version])
    for name, flat in run.weights[version].items():
        assert np.array_equal(flat, checkpoint.units(name)), name
    own = OwnFiles(path)
    assert not any(f.exists() for f in (own.partial, own.journal, own.download))
    return checkpoint


@pytest.mark.parametrize("version", [1, 2, 3, 5, 6])
def test_any_version_is_made_from_the_newest_anchor_before_it(
    store: WatchedStore, run: StoredRun, tmp_path: Path, version: int
):
    made(run, version, tmp_path / "checkpoint")
    assert {1 if version < 3 else 3} == store.anchors_read()


def test_what_is_made_is_servable_and_brings_its_companions(run: StoredRun, tmp_path: Path):
    path = made(run, 6, tmp_path / "checkpoint").path
    names = {p.name for p in path.iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json", ".syncline"} < names
    with WeightFolder.open(path) as folder:
        assert run.weights[6].keys() == folder.tensors.keys()


def test_a_version_that_is_there_already_costs_no_weights(store: WatchedStore, run: StoredRun, tmp_path: Path):
    made(run, 6, tmp_path / "checkpoint")
    store.read.clear()
    made(run, 6, tmp_path / "checkpoint")
    assert not [key for key in store.read if "/anchors/" in key]
    assert 1 >= len(store.read)


def test_what_is_on_disk_is_advanced_by_deltas(store: WatchedStore, run: StoredRun, tmp_path: Path):
    made(run, 2, tmp_path / "checkpoint")
    store.read.clear()
    made(run, 5, tmp_path / "checkpoint")
    assert set() == store.anchors_read()


def test_what_a_link_in_the_folder_leads_to_is_never_written(run: StoredRun, tmp_path: Path):
    path, elsewhere = tmp_path / "checkpoint", tmp_path / "shared.safetensors"
    checkpoint = made(run, 2, path)
    file = next(path.glob("*.safetensors"))
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with pytest.raises(LayoutRefused, match="is a link"):
        checkpoint.advance([run.manifests[3]], [Delta.of({})])
    made(run, 5, path)
    assert (before, False) == (elsewhere.read_bytes(), file.is_symlink())


def test_going_back_takes_an_anchor_and_leaves_no_file_of_the_other_behind(
    store: WatchedStore, run: StoredRun, tmp_path: Path
):
    path = tmp_path / "checkpoint"
    made(run, 6, path)
    (path / "subfolder").mkdir()
    (path / "subfolder" / "old.txt").write_text("x")
    made(run, 2, path)
    assert 3 == len(list(path.glob("*.safetensors")))
    assert not (path / "subfolder").exists()


def test_a_run_whose_tensors_changed_is_followed_over_an_anchor_only_version(
    store: WatchedStore, run: StoredRun, tmp_path: Path
):
    path = tmp_path / "checkpoint"
    made(run, 6, path)
    run.commit_whole(run.weights[2])
    run.step()
    made(run, 8, path)
    assert {3, 7} == store.anchors_read()


def test_progress_counts_every_byte(run: StoredRun, tmp_path: Path):
    seen: list[tuple[str, int, int]] = []
    made(run, 6, tmp_path / "checkpoint", progress=lambda *event: seen.append(event))
    size = ChainReader(run.store, "run").anchor(3).body.size
    fetches = [event for event in seen if event[0] == "fetch"]
    assert ("fetch", 0, size) == fetches[0]
    assert ("fetch", size, size) == fetches[-1]
    assert fetches == sorted(fetches)
    assert {"fetch", "patch", "prove"} == {event[0] for event in seen}


def test_files_are_fetched_in_ranges(
    store: WatchedStore, run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(downloading, "PART_BYTES", 1000)
    made(run, 3, tmp_path / "checkpoint")
    biggest = max(file.size for file in ChainReader(run.store, "run").anchor(3).body.files)
    assert -(-biggest // 1000) == max(store.read.count(key) for key in store.read)


def test_a_store_that_goes_down_is_passed_on_and_the_next_call_fetches_only_the_rest(
    store: WatchedStore, run: StoredRun, tmp_path: Path
):
    path = tmp_path / "checkpoint"
    store.fail_after = 3
    with pytest.raises(StoreUnavailable):
        materialize(ChainReader(store, "run"), 3, path, streams=1)
    assert Checkpoint.open(path).marker is None
    done = [key for key in store.read if "/anchors/" in key]
    assert 1 <= len(done)
    store.fail_after = None
    store.read.clear()
    made(run, 3, path)
    assert set() == set(done) & set(store.read)


def test_a_download_of_an_anchor_that_went_away_is_not_mixed_with_another(
    store: WatchedStore, run: StoredRun, tmp_path: Path
):
    path = tmp_path / "checkpoint"
    store.fail_after = 3
    with pytest.raises(StoreUnavailable):
        materialize(ChainReader(store, "run"), 3, path, streams=1)
    store.fail_after = None
    store.delete(run.keys.anchor(3))
    made(run, 3, path)


def test_a_flipped_transfer_is_fetched_again(store: WatchedStore, run: StoredRun, tmp_path: Path):
    reader = ChainReader(store, "run")
    anchor = reader.anchor(3)
    store.flip_once = {reader.anchor_file(anchor, f.name) for f in anchor.body.files}
    store.flip_once |= {run.keys.chunk(c.blake3) for c in reader.skip(6, 3).chunks}
    made(run, 6, tmp_path / "checkpoint")
    assert set() == store.flip_once


def anchor_files(run: StoredRun, version: int) -> list[str]:
    reader = ChainReader(run.store, "run")
    anchor = reader.anchor(version)
    return [reader.anchor_file(anchor, f.name) for f in anchor.body.files if f.name.endswith(".safetensors")]


def flip(store: MemoryStore, key: str, at: int = -1) -> None:
    fetched = store.get(key, max_bytes=1 << 20)
    assert fetched is not None
    data = bytearray(fetched.data)
    data[at] ^= 1
    store.put(key, data)


def break_anchor(run: StoredRun, how: str) -> None:
    store, key = run.store, anchor_files(run, 3)[0]
    if how == "file gone":
        store.delete(key)
    elif how == "file flipped":
        assert isinstance(store, MemoryStore)
        flip(store, key)
    elif how == "file cut":
        fetched = store.get(key, max_bytes=1 << 20)
        assert fetched is not None
        store.put(key, fetched.data[:-1])
    elif how == "manifest garbage":
        store.put(run.keys.anchor(3), b"{}")
    elif how == "vetoed":
        record = VetoRecord(lineage=run.lineage, version=3, reason="test", created_ms=0)
        store.put(run.keys.veto(3), record.encode())
    else:
        lying_anchor(run, how)


def lying_anchor(run: StoredRun, how: str) -> None:
    """An anchor whose hashes are right and whose content is not."""
    manifest = run.manifests[3]
    kept = {"right": run.weights[3]}
    if how == "bits of another version":
        run.weights[3] = run.weights[2]
        run.store.delete(run.keys.anchor(3))
        run.anchor(3)
        run.weights[3] = kept["right"]
        return
    fetched = run.store.get(run.keys.anchor(3), max_bytes=1 << 20)
    assert fetched is not None
    anchor = AnchorManifest.parse(fetched.data, what="anchor")
    files = list(anchor.anchor.files)
    if how == "a tensor file missing":
        files = [f for f in files if "00001" not in f.name]
    elif how == "a marker among the files":
        files = [*files, files[0].model_copy(update={"name": ".syncline/marker.json"})]
    elif how == "a name twice":
        files = [*files, files[0]]
    elif how == "a file that is a folder":
        files = [*files, AnchorFile(name="config.json/x", size=0, blake3="0" * 64)]
    body = AnchorBody(nonce=anchor.anchor.nonce, files=files)
    run.store.put(run.keys.anchor(3), anchor.model_copy(update={"anchor": body}).encode())
    assert manifest.identity() == anchor.manifest


BROKEN = [
    "file gone",
    "file flipped",
    "file cut",
    "manifest garbage",
    "vetoed",
    "bits of another version",
    "a tensor file missing",
    "a marker among the files",
    "a name twice",
    "a file that is a folder",
]


@pytest.mark.parametrize("how", BROKEN)
def test_an_anchor_that_cannot_serve_gives_way_to_an_older_one(
    store: WatchedStore, run: StoredRun, tmp_path: Path, how: str
):
    break_anchor(run, how)
    made(run, 6, tmp_path / "checkpoint")
    assert 1 in store.anchors_read()


def test_giving_way_is_said_in_the_log(run: StoredRun, tmp_path: Path):
    break_anchor(run, "file gone")
    with capture_logs() as logs:
        made(run, 6, tmp_path / "checkpoint", log=structlog.get_logger())
    assert [("avoided a step", "anchor", 3, 6)] == [(e["event"], e["step"], e["version"], e["target"]) for e in logs]
    assert "is gone" in logs[0]["error"]


def test_without_any_anchor_that_serves_the_error_names_all_that_was_tried(run: StoredRun, tmp_path: Path):
    break_anchor(run, "file gone")
    for key in anchor_files(run, 1):
        run.store.delete(key)
    with pytest.raises(LinkMissing, match=r"(?s)000000000003/.*is gone.*000000000001/.*is gone"):
        materialize(ChainReader(run.store, "run"), 6, tmp_path / "checkpoint")
    assert Checkpoint.open(tmp_path / "checkpoint").marker is None


def test_a_skip_delta_that_is_gone_or_garbage_gives_way_to_deltas(store: WatchedStore, run: StoredRun, tmp_path: Path):
    chunk = run.keys.chunk(ChainReader(store, "run").skip(6, 3).chunks[0].blake3)
    flip(store, chunk)
    made(run, 6, tmp_path / "garbage")
    store.delete(chunk)
    made(run, 6, tmp_path / "gone")


def test_bits_that_flipped_on_disk_are_replaced_from_an_anchor(store: WatchedStore, run: StoredRun, tmp_path: Path):
    path = made(run, 4, tmp_path / "checkpoint").path
    for file in path.glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-2000:] = bytes(2000)
        file.write_bytes(data)
    store.read.clear()
    made(run, 6, path)
    assert {3} == store.anchors_read()


def test_a_file_that_was_removed_is_replaced_from_an_anchor(run: StoredRun, tmp_path: Path):
    path = made(run, 4, tmp_path / "checkpoint").path
    next(path.glob("*.safetensors")).unlink()
    made(run, 6, path)


def test_a_damaged_marker_is_replaced_from_an_anchor(run: StoredRun, tmp_path: Path):
    path = made(run, 4, tmp_path / "checkpoint").path
    OwnFiles(path).marker.write_bytes(b"?")
    made(run, 6, path)


def test_a_checkpoint_of_another_run_counts_for_nothing(run: StoredRun, tmp_path: Path):
    path = made(run, 6, tmp_path / "checkpoint").path
    other = StoredRun(WatchedStore(), seed=7)
    other.first()
    made(other, 1, path)


def test_a_vetoed_version_is_not_made_unless_asked_for(run: StoredRun, tmp_path: Path):
    record = VetoRecord(lineage=run.lineage, version=6, reason="test", created_ms=0)
    run.store.put(run.keys.veto(6), record.encode())
    with pytest.raises(VersionVetoed):
        materialize(ChainReader(run.store, "run"), 6, tmp_path / "checkpoint")
    made(run, 6, tmp_path / "checkpoint", vetoed=())


def test_a_full_disk_is_named_before_anything_is_written(
    run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = made(run, 6, tmp_path / "checkpoint").path
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DiskFull, match=r"needs \d+ bytes for anchor 1, its disk has"):
        materialize(ChainReader(run.store, "run"), 2, path)
    made(run, 6, path)


def test_a_disk_that_fills_up_meanwhile_is_named(run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_room(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(DiskFull, match=r"no room to write .*checkpoint/"):
        materialize(ChainReader(run.store, "run"), 2, tmp_path / "checkpoint")
    monkeypatch.undo()
    made(run, 2, tmp_path / "checkpoint")


def test_a_folder_of_other_peoples_files_is_left_alone(run: StoredRun, tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(Rejected, match="files that Syncline did not write"):
        materialize(ChainReader(run.store, "run"), 2, tmp_path)
    assert ["thesis.tex"] == [p.name for p in tmp_path.iterdir()]


def test_a_run_that_does_not_exist_is_told_before_a_folder_is_made(tmp_path: Path):
    with pytest.raises(NotFound, match=r"run/run\.json"):
        materialize(ChainReader(WatchedStore(), "run"), 1, tmp_path / "checkpoint")
    assert [] == list(tmp_path.iterdir())


def test_it_is_busy_while_somebody_loads_it(run: StoredRun, tmp_path: Path):
    path = made(run, 2, tmp_path / "checkpoint").path
    with Checkpoint.open(path).reading(), pytest.raises(CheckpointBusy):
        materialize(ChainReader(run.store, "run"), 6, path)


def test_deltas_are_taken_in_batches_of_bounded_bytes(run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(materializing, "BATCH_BYTES", 1)
    run.store.delete(run.keys.skip(6, 3))
    reached: list[str] = []
    install_hook(reached.append)
    try:
        made(run, 6, tmp_path / "checkpoint")
    finally:
        install_hook(None)
    assert 3 == reached.count("apply.checkpoint_journaled")
    assert "apply.materialized" == reached[-1]


def test_a_run_name_that_was_reused_is_refused(run: StoredRun, tmp_path: Path):
    reader = ChainReader(run.store, "run")
    reader.run_record()
    other = StoredRun(WatchedStore(), seed=9)
    other.first()
    run.store.put("run/run.json", _bytes(other, "run/run.json"))
    run.store.put(run.keys.version(1), _bytes(other, run.keys.version(1)))
    with pytest.raises(LineageChanged):
        materialize(reader, 1, tmp_path / "checkpoint")


def _bytes(run: StoredRun, key: str) -> bytes:
    fetched = run.store.get(key, max_bytes=1 << 20)
    assert fetched is not None
    return fetched.data


@pytest.mark.parametrize("damage", [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[:-1]])
def test_what_is_damaged_in_a_mirror_comes_from_the_origin(
    store: WatchedStore, run: StoredRun, tmp_path: Path, damage: Callable[[bytes], bytes]
):
    mirror = WatchedStore()
    for info in store.list_after(""):
        found = store.get(info.key, max_bytes=1 << 30)
        assert found is not None
        mirror.put(info.key, damage(found.data) if "/anchors/" in info.key or "/chunks/" in info.key else found.data)
    store.read.clear()
    reader = ChainReader(FirstOf([mirror, store]), "run")
    checkpoint = materialize(reader, 6, tmp_path / "checkpoint", vetoed=())
    checkpoint.verify(run.manifests[6])
    assert {3} == store.anchors_read()
