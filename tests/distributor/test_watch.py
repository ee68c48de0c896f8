"""Following a trainer's folder: what is complete, in which order, what becomes of everything that is not as it should be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest

from syncline.clock import ManualClock
from syncline.errors import Fenced
from syncline.store.memory import MemoryStore
from syncline_distributor import Bits, NonFinite, Publisher, PublishSettings
from syncline_distributor.folder_weights import FolderWeights
from syncline_distributor.settings import Completion, WatchSettings
from syncline_distributor.sources import StoreSource
from syncline_distributor.tracking import Found, FoundFile, Tracker, is_temporary, past, step_of

RENAMED = WatchSettings(completion=Completion.RENAME)
Make = Callable[..., Publisher]
Watching = Callable[..., Any]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-123", 123), ("step_000123", 123), ("global_step123", 123), ("global_step_7", 7), ("iter-5", 5), ("run-a_step12", 12),
        ("checkpoint", None), ("final", None), ("checkpoint-12a", None), ("v2", None),
    ],
)  # fmt: skip
def test_a_folders_name_tells_its_step(name: str, step: int | None) -> None:
    assert step == step_of(name)


def test_names_that_trainers_use_for_unfinished_work_are_passed_over() -> None:
    assert [True, True, True, False] == [
        is_temporary(n) for n in ("tmp-checkpoint-5", ".x", "checkpoint-5.tmp", "checkpoint-5")
    ]


def found(
    name: str = "checkpoint-1", *, size: int = 5, stamp: str = "0", missing: str | None = None, modified: float = 0
) -> Found:
    return Found(name, step_of(name), (FoundFile("model.safetensors", size, stamp),), modified, missing)


def test_a_checkpoint_is_ready_once_it_rests_for_the_polls_asked_for() -> None:
    tracker = Tracker(WatchSettings(stable_polls=2))
    assert [[], [], [found()]] == [tracker.update([found()]) for _ in range(3)]
    tracker = Tracker(WatchSettings(stable_polls=1))
    assert [[], [], [found(size=6)]] == [tracker.update([found(size=s)]) for s in (5, 6, 6)]


def test_a_checkpoint_with_a_marker_is_ready_when_the_marker_is_there() -> None:
    tracker = Tracker(WatchSettings(completion=Completion.MARKER, marker="DONE"))
    bare = found()
    marked = Found(bare.name, 1, (*bare.files, FoundFile("DONE", 0, "1")), 0)
    assert [[], [marked]] == [tracker.update([bare]), tracker.update([marked])]
    assert {} == tracker.waiting


def test_ready_checkpoints_come_in_the_order_of_their_steps_and_never_twice() -> None:
    tracker = Tracker(RENAMED)
    names = ["checkpoint-10", "checkpoint-9", "checkpoint-100"]
    ready = tracker.update([found(n) for n in names])
    assert ["checkpoint-9", "checkpoint-10", "checkpoint-100"] == [f.name for f in ready]
    tracker.done.update(f.fingerprint for f in ready)
    assert [] == tracker.update([found(n) for n in names])
    assert [found("checkpoint-9", stamp="again")] == tracker.update([found("checkpoint-9", stamp="again")])


def test_latest_only_takes_the_newest_by_time_and_lets_the_others_go() -> None:
    tracker = Tracker(WatchSettings(completion=Completion.RENAME, latest_only=True))
    old, back = found("checkpoint-9", modified=1), found("checkpoint-5", modified=2)
    assert [back] == tracker.update([old, back])
    tracker.done.add(back.fingerprint)
    assert [] == tracker.update([old, back])


def test_what_was_there_before_head_counts_as_past_when_all_notes_are_lost() -> None:
    new, old = found("checkpoint-5", modified=11), found("checkpoint-5", modified=9)
    assert [False, True] == [past(f, head_step=7, head_created=10, known={}) for f in (new, old)]
    assert not past(found("checkpoint-8", modified=9), head_step=7, head_created=10, known={})
    assert past(new, head_step=7, head_created=10, known={new.fingerprint: "checkpoint-5"})


def test_every_checkpoint_becomes_a_version_in_order(
    watching: Watching, write: Any, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    source, watch = trainer(), watching()
    assert [] == watch.tick()
    for step in (1, 2, 10):
        write(f"checkpoint-{step}", source.step(), shards=2)
    assert [(1, None), (2, 1), (10, 2)] == watch.tick(4)
    assert same_bits(source.weights, reading.units(store, 3))
    assert [(1, None), (2, 1), (10, 2)] == watch.tick(3)
    assert "checkpoint-10" == watch.watch.state.published


def test_a_restart_publishes_nothing_twice_and_misses_nothing(watching: Watching, write: Any, trainer: Any) -> None:
    source = trainer()
    for step in (1, 2):
        write(f"checkpoint-{step}", source.step())
    assert [(1, None), (2, 1)] == watching().tick(3)
    write("checkpoint-3", source.step())
    assert [(1, None), (2, 1), (3, 3)] == watching().tick(3)


def test_a_restart_without_its_notes_knows_from_the_versions_labels(
    watching: Watching, write: Any, trainer: Any, tmp_path: Path
) -> None:
    source = trainer()
    for step in (1, 2):
        write(f"checkpoint-{step}", source.step())
    watching().tick(3)
    assert [(1, None), (2, 1)] == watching(state="another").tick(3)


def test_a_step_that_falls_is_a_fork_from_the_newest_older_step(
    watching: Watching, write: Any, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    source, watch = trainer(), watching()
    for step in (10, 20, 30):
        write(f"checkpoint-{step}", source.step())
    watch.tick(4)
    write("checkpoint-25", source.step())
    assert [(10, None), (20, 1), (30, 2), (25, 2)] == watch.tick(2)
    write("checkpoint-35", source.step())
    assert (35, 4) == watch.tick(2)[-1]
    # In the ancestry of 35 are 25, 20 and 10, not 30: that branch was left.
    rmtree(write("checkpoint-28", source.step()).parent / "checkpoint-30")
    assert (28, 4) == watch.tick(2)[-1]
    head = watch.publisher.head
    assert head is not None and 5 == head.base
    assert same_bits(source.weights, reading.units(store, 6))


def test_a_checkpoint_still_being_written_waits_and_the_next_is_not_held_up(
    watching: Watching, write: Any, trainer: Any
) -> None:
    source, watch = trainer(), watching()
    partial = write("checkpoint-1", source.step(), shards=2)
    shard = partial / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.unlink()
    write("checkpoint-2", source.step())
    assert [(2, None)] == watch.tick(2)
    assert "1 of 2 shards are not there yet" in watch.watch.state.waiting["checkpoint-1"]
    shard.write_bytes(whole[:-10])
    assert [(2, None)] == watch.tick(4)
    assert "has" in watch.watch.state.refused["checkpoint-1"]
    shard.write_bytes(whole)
    assert [(2, None), (1, 1)] == watch.tick(5)


def test_a_checkpoint_that_can_never_be_read_is_given_up_by_name(watching: Watching, write: Any, trainer: Any) -> None:
    source, watch = trainer(), watching()
    bad = write("checkpoint-1", source.step()) / "model.safetensors"
    bad.write_bytes((1 << 40).to_bytes(8, "little") + bad.read_bytes()[8:])
    write("checkpoint-2", source.step())
    assert [(2, None)] == watch.tick(3)
    assert "header" in watch.watch.state.refused["checkpoint-1"]
    errors = watch.metrics.source_errors.labels("run", "main", "SourceInvalid")._value.get()
    assert 1 == errors


def test_a_checkpoint_that_vanishes_while_it_is_read_is_skipped_and_the_next_taken(
    watching: Watching, write: Any, trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, watch = trainer(), watching()
    doomed = write("checkpoint-1", source.step())
    write("checkpoint-2", source.step())
    read = FolderWeights.units

    def units(self: FolderWeights, tensor: int) -> Any:
        if tensor == 3 and doomed.exists():
            rmtree(doomed)
        return read(self, tensor)

    monkeypatch.setattr(FolderWeights, "units", units)
    assert [] == watch.tick()
    assert "removed while it was read" in watch.watch.state.refused["checkpoint-1"]
    assert [(2, None)] == watch.tick(2)


def test_a_checkpoint_that_changes_while_it_is_read_is_never_committed(
    watching: Watching, write: Any, trainer: Any, monkeypatch: pytest.MonkeyPatch,
    store: MemoryStore, reading: Any, same_bits: Any,
) -> None:  # fmt: skip
    source, watch = trainer(), watching()
    folder = write("checkpoint-1", source.step())
    raw = (folder / "model.safetensors").read_bytes()
    read, touched = FolderWeights.units, []

    def units(self: FolderWeights, tensor: int) -> Any:
        if not touched:
            touched.append(tensor)
            (folder / "model.safetensors").write_bytes(raw)
            os.utime(folder / "model.safetensors", ns=(1, 1))
        return read(self, tensor)

    monkeypatch.setattr(FolderWeights, "units", units)
    assert [] == watch.tick()
    assert "changed while it was read" in watch.watch.state.refused["checkpoint-1"]
    assert [(1, None)] == watch.tick(3)
    assert same_bits(source.weights, reading.units(store, 1))


def test_weights_that_are_not_finite_are_refused_and_training_goes_on(
    watching: Watching, write: Any, tmp_path: Path
) -> None:
    watch = watching(settings=RENAMED)
    watch.publisher._settings = PublishSettings(nonfinite=NonFinite.REFUSE)
    good, bad = np.full(4, 0x3F80, np.uint16), np.full(4, 0x7FC0, np.uint16)
    for step, units in ((1, good), (2, bad), (3, good)):
        write(f"checkpoint-{step}", {"w": Bits("BF16", (4,), units)})
    assert [(1, None)] == watch.tick(1)
    watch.tick(1)
    assert "checkpoint-2" == watch.watch.state.newest_refused
    assert [(1, None), (3, 1)] == watch.tick(3)
    assert (None, 2) == (watch.watch.state.newest_refused, watch.watch.state.published_count)
    assert "NaN or Inf" in watch.watch.state.refused["checkpoint-2"]
    assert {"checkpoint-2": "NonFiniteWeights"} == watch.watch.state.refused_as


def test_the_step_may_stand_in_trainer_state_json(watching: Watching, write: Any, trainer: Any) -> None:
    source, watch = trainer(), watching()
    for name, step in (("b", 1), ("a", 2)):
        write(name, source.step(), files={"trainer_state.json": json.dumps({"global_step": step})})
    assert [(1, None), (2, 1)] == watch.tick(3)


def test_weights_may_lie_deeper_in_the_checkpoint(watching: Watching, write: Any, trainer: Any) -> None:
    settings = WatchSettings(completion=Completion.RENAME, subfolder="actor/huggingface")
    write("global_step_4/actor/huggingface", trainer().step())
    assert [(4, None)] == watching(settings).tick(2)


def test_a_fenced_watch_stops_for_good(watching: Watching, publisher: Make, write: Any, trainer: Any) -> None:
    source, watch = trainer(), watching()
    write("checkpoint-1", source.step())
    watch.tick(2)
    publisher().open()
    write("checkpoint-2", source.step())
    with pytest.raises(Fenced):
        watch.watch.tick()
    assert watch.watch.tick() is None
    assert ("stopped", "Fenced") == (watch.watch.state.phase, watch.watch.state.error_kind)


def test_checkpoints_in_a_bucket_are_brought_here_and_published(
    watching: Watching, write: Any, trainer: Any, clock: ManualClock, tmp_path: Path,
    store: MemoryStore, reading: Any, same_bits: Any,
) -> None:  # fmt: skip
    bucket = MemoryStore(clock)
    watch = watching(source=StoreSource(bucket, tmp_path / "incoming", prefix="train/"))
    source = trainer()
    for step in (3, 4):
        for file in write(f"checkpoint-{step}", source.step(), shards=2).iterdir():
            bucket.put(f"train/checkpoint-{step}/{file.name}", file.read_bytes())
    bucket.put("train/checkpoint-5/model-00001-of-00002.safetensors", b"half")
    assert [(3, None), (4, 1)] == watch.tick(4)
    assert same_bits(source.weights, reading.units(store, 2))
    assert [] == list((tmp_path / "incoming").glob("*/*"))
