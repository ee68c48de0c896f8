"""A checkpoint in place: advanced, refused, locked, recovered. What a kill leaves behind is in test_kill_points."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline.chain import ChainReader
from syncline.checkpoint import (
    NODE_POINTS,
    PUBLISHER_POINTS,
    AdvancePoints,
    Checkpoint,
    OwnFiles,
    WeightFolder,
    locks,
    materialize,
)
from syncline.clock import ManualClock
from syncline.delta import Delta
from syncline.errors import (
    CheckpointBusy,
    DigestMismatch,
    EpochRegressed,
    FrameCorrupt,
    LayoutRefused,
    LineageChanged,
    SourceNotReady,
)
from syncline.faults import install_hook
from syncline.store.memory import MemoryStore
from syncline.testing.stored_runs import TABLE, TILING, StoredRun, Weights
from syncline.wire.records import VersionManifest


@pytest.fixture
def run() -> StoredRun:
    run = StoredRun(MemoryStore(ManualClock()))
    run.first()
    for _ in range(4):
        run.step()
    return run


@pytest.fixture
def checkpoint(run: StoredRun, tmp_path: Path) -> Checkpoint:
    return materialize(ChainReader(run.store, "run"), 1, tmp_path / "checkpoint")


def deltas_of(run: StoredRun, versions: Sequence[int]) -> tuple[list[VersionManifest], list[Delta]]:
    reader = ChainReader(run.store, "run")
    manifests = [run.manifests[v] for v in versions]
    return manifests, [
        Delta.parse(TABLE, TILING.tiling, [(ref.blake3, reader.chunk(ref)) for ref in m.chunks]) for m in manifests
    ]


def assert_holds(path: Path, manifest: VersionManifest, weights: Weights) -> None:
    found = Checkpoint.open(path)
    assert found.marker is not None
    assert found.marker.holds(manifest)
    assert manifest.digest == found.digest().hex
    found.verify(manifest)
    for name, flat in weights.items():
        assert np.array_equal(flat, found.units(name)), name


def test_it_advances_by_one_delta(run: StoredRun, checkpoint: Checkpoint):
    checkpoint.advance(*deltas_of(run, [2]))
    assert_holds(checkpoint.path, run.manifests[2], run.weights[2])
    assert checkpoint.marker is not None and 2 == checkpoint.marker.version


def test_it_advances_by_several_deltas_in_one_change(run: StoredRun, checkpoint: Checkpoint):
    reached: list[str] = []
    install_hook(reached.append)
    try:
        with ThreadPoolExecutor(2) as executor:
            checkpoint.advance(*deltas_of(run, [2, 3, 4, 5]), executor=executor)
    finally:
        install_hook(None)
    assert list(NODE_POINTS) == reached
    assert_holds(checkpoint.path, run.manifests[5], run.weights[5])


@pytest.mark.parametrize("points", [NODE_POINTS, PUBLISHER_POINTS])
def test_it_reaches_its_kill_points_in_order(run: StoredRun, checkpoint: Checkpoint, points: AdvancePoints):
    reached: list[str] = []
    install_hook(reached.append)
    try:
        checkpoint.advance(*deltas_of(run, [2]), points=points)
    finally:
        install_hook(None)
    assert list(points) == reached


def test_an_empty_delta_moves_the_marker_and_no_bits(run: StoredRun, checkpoint: Checkpoint):
    run.weights[5] = run.weights[5]
    manifest = run.empty_step()
    checkpoint.advance(*deltas_of(run, [2, 3, 4, 5, manifest.version]))
    assert_holds(checkpoint.path, manifest, run.weights[5])


def test_nothing_to_apply_changes_nothing(run: StoredRun, checkpoint: Checkpoint):
    checkpoint.advance([], [])
    assert_holds(checkpoint.path, run.manifests[1], run.weights[1])


def test_tensors_are_read_by_name_and_alias_and_cannot_be_written(run: StoredRun, checkpoint: Checkpoint):
    assert np.array_equal(checkpoint.units("e.embed"), checkpoint.units("z.head"))
    with pytest.raises(ValueError, match="read-only"):
        checkpoint.units("e.embed")[0] = 1


def test_deltas_that_do_not_lead_to_the_digest_leave_it_as_it_was(run: StoredRun, checkpoint: Checkpoint):
    manifests, _ = deltas_of(run, [2])
    _, other = deltas_of(run, [3])
    with pytest.raises((DigestMismatch, FrameCorrupt)):
        checkpoint.advance(manifests, other)
    assert_holds(checkpoint.path, run.manifests[1], run.weights[1])
    assert not OwnFiles(checkpoint.path).journal.exists()


def test_a_bit_that_flipped_on_disk_is_found_and_the_tensor_named(run: StoredRun, checkpoint: Checkpoint):
    flip_bit(checkpoint.path / "model.safetensors", -1)
    with pytest.raises(DigestMismatch, match=r"h\.wide and 0 more tensors differ"):
        checkpoint.verify(run.manifests[1])


def test_a_bit_that_flipped_where_a_delta_writes_is_found_before_anything_is_written(
    run: StoredRun, checkpoint: Checkpoint
):
    written = int(np.flatnonzero(run.weights[1]["g.norm"] != run.weights[2]["g.norm"])[-1])
    with WeightFolder.open(checkpoint.path) as folder:
        at = folder.tensors["g.norm"][1].offset + 4 * written
    flipped = flip_bit(checkpoint.path / "model.safetensors", at)
    with pytest.raises((DigestMismatch, FrameCorrupt)):
        checkpoint.advance(*deltas_of(run, [2]))
    assert flipped == (checkpoint.path / "model.safetensors").read_bytes()


def flip_bit(file: Path, at: int) -> bytes:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    return bytes(data)


def changed(manifest: VersionManifest, **fields: Any) -> VersionManifest:
    return manifest.model_copy(update=fields)


def test_what_does_not_follow_is_refused_by_name(run: StoredRun, checkpoint: Checkpoint):
    manifests, deltas = deltas_of(run, [2, 3])
    other = run.manifests[2].tensors.model_copy(update={"size": 1})
    for wrong, error in (
        ([changed(manifests[0], lineage="9" * 32)], LineageChanged),
        ([changed(manifests[0], view="fp8")], LineageChanged),
        ([changed(manifests[0], tensors=other)], LayoutRefused),
        ([run.manifests[1]], LayoutRefused),
        ([changed(manifests[0], epoch=3), manifests[1]], EpochRegressed),
        ([manifests[1], manifests[0]], LayoutRefused),
    ):
        with pytest.raises(error):
            checkpoint.advance(wrong, deltas[: len(wrong)])
    with pytest.raises(ValueError, match="1 manifests for 2 deltas"):
        checkpoint.advance(manifests[:1], deltas)
    assert_holds(checkpoint.path, run.manifests[1], run.weights[1])


def test_it_is_busy_while_somebody_loads_it(run: StoredRun, checkpoint: Checkpoint):
    with Checkpoint.open(checkpoint.path).reading() as reading:
        assert reading.marker is not None
        with pytest.raises(CheckpointBusy, match="being read or written"):
            checkpoint.advance(*deltas_of(run, [2]))
        with Checkpoint.open(checkpoint.path).reading():
            pass
    checkpoint.advance(*deltas_of(run, [2]))
    assert_holds(checkpoint.path, run.manifests[2], run.weights[2])


def test_whoever_loads_waits_for_a_writer_and_sees_what_it_wrote(run: StoredRun, checkpoint: Checkpoint):
    loaded: list[int] = []
    waiting = Checkpoint.open(checkpoint.path)

    def load() -> None:
        with waiting.reading() as reading:
            assert reading.marker is not None
            loaded.append(reading.marker.version)

    loader = threading.Thread(target=load)

    def at_point(point: str) -> None:
        if point == NODE_POINTS.journaled:
            loader.start()
            loader.join(0.2)
            assert [] == loaded

    install_hook(at_point)
    try:
        checkpoint.advance(*deltas_of(run, [2]))
    finally:
        install_hook(None)
    loader.join(30)
    assert [2] == loaded


def test_a_folder_that_is_not_materialized_holds_nothing(tmp_path: Path):
    for path in (tmp_path, tmp_path / "absent"):
        nothing = Checkpoint.open(path)
        assert nothing.marker is None
        with pytest.raises(SourceNotReady, match="holds no whole version"), nothing.reading():
            pass
        with pytest.raises(SourceNotReady):
            nothing.units("e.embed")
    assert [] == list(tmp_path.iterdir())


def test_a_damaged_marker_is_no_marker_and_says_why(checkpoint: Checkpoint):
    OwnFiles(checkpoint.path).marker.write_bytes(b"{}")
    opened = Checkpoint.open(checkpoint.path)
    assert opened.marker is None
    assert "marker.json" in (opened.damage or "")
    with pytest.raises(SourceNotReady, match=r"marker\.json"), opened.reading():
        pass


class Died(BaseException):
    """Stands for kill -9 inside one process: nothing of ours handles it."""


def died_at(run: StoredRun, checkpoint: Checkpoint, point: str) -> None:
    def at_point(name: str) -> None:
        if name == point:
            raise Died

    install_hook(at_point)
    try:
        with pytest.raises(Died):
            checkpoint.advance(*deltas_of(run, [2]))
    finally:
        install_hook(None)


@pytest.mark.parametrize("point", NODE_POINTS)
def test_a_reader_finishes_what_a_dead_writer_began(run: StoredRun, checkpoint: Checkpoint, point: str):
    stale = Checkpoint.open(checkpoint.path)
    died_at(run, checkpoint, point)
    with stale.reading() as reading:
        assert reading.marker is not None and 2 == reading.marker.version
    assert_holds(checkpoint.path, run.manifests[2], run.weights[2])
    assert not OwnFiles(checkpoint.path).journal.exists()


def test_a_patch_that_was_half_written_is_written_whole(run: StoredRun, checkpoint: Checkpoint):
    died_at(run, checkpoint, NODE_POINTS.journaled)
    file = checkpoint.path / "model.safetensors"
    half = bytearray(file.read_bytes())
    names = list(run.weights[2])
    header = len(half) - sum(run.weights[2][n].nbytes for n in names)
    new = b"".join(run.weights[2][n].tobytes() for n in names)
    half[header : header + len(new) // 2] = new[: len(new) // 2]
    file.write_bytes(half)
    assert_holds(checkpoint.path, run.manifests[2], run.weights[2])


def test_a_journal_without_its_seal_is_dropped(run: StoredRun, checkpoint: Checkpoint):
    died_at(run, checkpoint, NODE_POINTS.journaled)
    journal = OwnFiles(checkpoint.path).journal
    whole = journal.read_bytes()
    for left in (0, 10, len(whole) // 2, len(whole) - 1):
        journal.write_bytes(whole[:left])
        assert_holds(checkpoint.path, run.manifests[1], run.weights[1])
        assert not journal.exists()


def test_a_sealed_journal_that_is_damaged_takes_the_marker_away(run: StoredRun, checkpoint: Checkpoint):
    died_at(run, checkpoint, NODE_POINTS.journaled)
    flip_bit(OwnFiles(checkpoint.path).journal, 2000)
    opened = Checkpoint.open(checkpoint.path)
    assert opened.marker is None
    assert "damaged" in (opened.damage or "")
    again = materialize(ChainReader(run.store, "run"), 3, checkpoint.path)
    assert_holds(again.path, run.manifests[3], run.weights[3])


def test_a_journal_of_another_version_takes_the_marker_away(run: StoredRun, checkpoint: Checkpoint):
    own = OwnFiles(checkpoint.path)
    died_at(run, checkpoint, NODE_POINTS.journaled)
    journal = own.journal.read_bytes()
    opened = Checkpoint.open(checkpoint.path)
    opened.advance(*deltas_of(run, [3]))
    own.journal.write_bytes(journal)
    assert Checkpoint.open(checkpoint.path).marker is None


def test_a_folder_of_somebody_elses_is_adopted_once_its_digest_is_proven(run: StoredRun, checkpoint: Checkpoint):
    own = OwnFiles(checkpoint.path)
    own.marker.unlink()
    with pytest.raises(DigestMismatch):
        Checkpoint.adopt(checkpoint.path, run.manifests[2], TABLE, TILING)
    assert Checkpoint.open(checkpoint.path).marker is None
    Checkpoint.adopt(checkpoint.path, run.manifests[1], TABLE, TILING)
    assert_holds(checkpoint.path, run.manifests[1], run.weights[1])
    Checkpoint.open(checkpoint.path).advance(*deltas_of(run, [2]))
    assert_holds(checkpoint.path, run.manifests[2], run.weights[2])


@pytest.mark.parametrize("left_by_a_killed_writer", [False, True])
def test_nobody_waits_without_end_for_a_process_that_was_stopped(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, left_by_a_killed_writer: bool
):
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.1)
    own = OwnFiles(checkpoint.path)
    with locks.exclusive(own.lock):  # as a stopped process would, for as long as it is
        if left_by_a_killed_writer:
            own.journal.write_bytes(b"torn")
            with pytest.raises(CheckpointBusy, match="by another process"):
                Checkpoint.open(checkpoint.path)
        else:
            with pytest.raises(CheckpointBusy, match="by another process"), checkpoint.reading():
                pass


def test_weights_without_a_marker_are_refused_by_what_lacks_and_where_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with (
        pytest.raises(SourceNotReady, match=r"holds weights but no \.syncline/marker\.json; .*<node-dir>/checkpoint"),
        Checkpoint.open(tmp_path).reading(),
    ):
        pass
