"""A watch that has nothing to publish from, and one that another writer took over: what it takes, and what it says."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.errors import Fenced
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.memory import MemoryStore
from syncline_distributor import Publisher
from syncline_distributor.settings import Completion, WatchSettings
from syncline_distributor.sources import FolderSource, StoreSource

Make = Callable[..., Publisher]
Watching = Callable[..., Any]


def test_a_source_that_is_not_there_never_fences_a_writer_at_work(
    watching: Watching, publisher: Make, trainer: Any, store: MemoryStore
) -> None:
    writer, source, watch = publisher(), trainer(), watching()
    writer.publish(source.weights)
    watch.tick(3)
    assert 2 == writer.publish(source.step()).version
    assert [1, 2] == ChainReader(store, "run").versions()
    state = watch.watch.state
    assert "waiting" == state.phase
    assert "runs cannot be listed: No such file or directory; waiting for it: check --source" in state.waits_for


def test_a_folder_without_checkpoints_takes_no_epoch_until_there_is_one(
    watching: Watching, publisher: Make, trainer: Any, write: Any, tmp_path: Path
) -> None:
    writer, source, watch = publisher(), trainer(), watching()
    writer.publish(source.weights, step=1)
    (tmp_path / "runs" / "logs").mkdir(parents=True)
    watch.tick(2)
    assert (
        f"{tmp_path / 'runs'} holds no checkpoint yet; waiting for one: check --source" == watch.watch.state.waits_for
    )
    assert 2 == writer.publish(source.step(), step=2).version
    write("checkpoint-3", source.step())
    assert [(3, 3)] == watch.tick()
    assert None is watch.watch.state.waits_for


def test_what_a_watch_waits_for_is_said_once(watching: Watching, tmp_path: Path) -> None:
    watch = watching()
    with capture_logs() as said:
        watch.tick(5)
        (tmp_path / "runs").mkdir()
        watch.tick(5)
    assert [("waiting", "warning")] * 2 == [(line["event"], line["log_level"]) for line in said]
    assert ["cannot be listed" in line["waits_for"] for line in said] == [True, False]


def test_a_source_that_goes_away_is_waited_for_and_costs_no_epoch(
    watching: Watching, trainer: Any, write: Any, tmp_path: Path
) -> None:
    source, watch = trainer(), watching()
    write("checkpoint-1", source.weights)
    watch.tick()
    (tmp_path / "runs").rename(tmp_path / "away")
    watch.tick(3)
    assert "cannot be listed" in watch.watch.state.waits_for
    (tmp_path / "away").rename(tmp_path / "runs")
    write("checkpoint-2", source.step())
    assert [(1, None), (2, 1)] == watch.tick()
    assert (None, 1) == (watch.watch.state.waits_for, watch.publisher.epoch)


def test_a_source_that_is_a_file_is_waited_for_by_name(watching: Watching, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a folder")
    watch = watching()
    watch.tick()
    assert "runs cannot be listed: Not a directory" in watch.watch.state.waits_for


@pytest.mark.parametrize("subfolder", ["", "actor/huggingface"])
def test_a_source_that_is_itself_a_checkpoint_is_waited_for_with_the_folder_to_pass(
    watching: Watching, trainer: Any, write: Any, tmp_path: Path, store: MemoryStore, subfolder: str
) -> None:
    inside = write(f"checkpoint-10/{subfolder}".rstrip("/"), trainer().weights)
    runs = tmp_path / "runs" / "checkpoint-10"
    settings = WatchSettings(completion=Completion.RENAME, subfolder=subfolder)
    bucket = MemoryStore(ManualClock())
    for file in inside.iterdir():
        bucket.put(f"ckpt/{subfolder}/{file.name}".replace("//", "/"), file.read_bytes())
    sources = [
        (FolderSource(runs, subfolder=subfolder), str(runs)),
        (StoreSource(bucket, tmp_path / "in", prefix="ckpt/", subfolder=subfolder), f"{bucket.url}/ckpt"),
    ]
    for source, where in sources:
        watch = watching(settings, source=source)
        assert [] == watch.tick(3)
        state = watch.watch.state
        assert f"{where}, the --source, is itself a checkpoint; pass the folder above it" == state.waits_for
        assert not state.listable
    assert [(10, None)] == watching(settings, state="other").tick(2)


def test_the_last_save_of_a_trainer_into_the_folder_above_its_checkpoints_is_a_version(
    watching: Watching, trainer: Any, write: Any, tmp_path: Path
) -> None:
    source, watch = trainer(), watching()
    write("checkpoint-1", source.weights)
    last = write("last", source.step())
    for file in last.iterdir():
        file.rename(tmp_path / "runs" / file.name)
    last.rmdir()
    assert [(1, None), (None, 1)] == watch.tick(3)
    rmtree(tmp_path / "runs" / "checkpoint-1")
    watch.tick(2)
    assert (None, True) == (watch.watch.state.waits_for, watch.watch.state.listable)


def test_a_checkpoint_that_may_not_be_listed_is_named(
    watching: Watching, trainer: Any, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, watch = trainer(), watching()
    closed = [write("checkpoint-2", source.weights), write("lost+found", source.weights)]
    write("checkpoint-1", source.weights)
    listed = Path.iterdir

    def iterdir(self: Path) -> Any:
        if self in closed:
            raise PermissionError(13, "Permission denied", str(self))
        return listed(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert [(1, None)] == watch.tick()
    reason = "it cannot be listed: Permission denied; give this process the permission"
    assert {"checkpoint-2": reason} == watch.watch.state.waiting


def test_an_empty_prefix_is_told_from_a_bucket_that_cannot_be_listed(
    watching: Watching, clock: ManualClock, tmp_path: Path
) -> None:
    plan = ScriptedFaults([("list_after", "train/", Fault(FaultKind.DENIED))])
    bucket = FaultyStore(MemoryStore(clock, name="b"), plan, clock=clock, rng=random.Random(0))
    watch = watching(source=StoreSource(bucket, tmp_path / "incoming", prefix="train/"))
    watch.tick()
    assert "memory:b/train cannot be listed: " in watch.watch.state.waits_for
    watch.tick()
    assert "memory:b/train holds no checkpoint yet; waiting for one: check --source" == watch.watch.state.waits_for


def test_a_watch_learns_that_it_was_fenced_without_publishing(
    watching: Watching, publisher: Make, trainer: Any, write: Any
) -> None:
    watch = watching()
    write("checkpoint-1", trainer().weights)
    watch.tick(2)
    publisher().open()
    with pytest.raises(Fenced, match=r"stands at version 2 in epoch 2.*held epoch 1 and stops.*start this one again"):
        watch.watch.tick()
    assert watch.publisher.fenced is not None
    assert "stopped" == watch.watch.state.phase
    assert watch.watch.tick() is None


def test_a_truncated_checkpoint_is_told_of_once_and_cleared_when_it_was_published(
    watching: Watching, trainer: Any, write: Any
) -> None:
    source, watch = trainer(), watching()
    file = write("checkpoint-1", source.weights) / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    write("checkpoint-2", source.step())
    with capture_logs() as said:
        watch.tick(20)
    assert ["checkpoint-1"] == [line["source"] for line in said if line["event"] == "checkpoint skipped"]
    assert ["checkpoint-1"] == list(watch.watch.state.refused)
    file.write_bytes(whole)
    assert [(2, None), (1, 1)] == watch.tick(5)
    assert {} == watch.watch.state.refused


def test_what_was_refused_and_removed_is_cleared_by_the_next_publish(
    watching: Watching, write: Any, trainer: Any
) -> None:
    source, watch = trainer(), watching()
    bad = write("checkpoint-1", source.weights)
    (bad / "model.safetensors").write_bytes(b"\xff" * 64)
    write("checkpoint-2", source.step())
    watch.tick(3)
    assert ["checkpoint-1"] == list(watch.watch.state.refused)
    rmtree(bad)
    write("checkpoint-3", source.step())
    watch.tick(3)
    assert {} == watch.watch.state.refused


def test_a_store_that_fails_once_the_epoch_is_taken_costs_no_second_epoch(
    watching: Watching, write: Any, trainer: Any, store: MemoryStore, clock: ManualClock
) -> None:
    source = trainer()
    for step in (1, 2, 3):
        write(f"checkpoint-{step}", source.step())
    watching().tick(4)
    write("checkpoint-4", source.step())
    down = Fault(FaultKind.UNAVAILABLE)
    plan = ScriptedFaults([("get", "versions/000000000001", down), ("get", "versions/000000000001", down)])
    again = watching(on=FaultyStore(store, plan, clock=clock, rng=random.Random(0)))
    assert (4, 4) == again.tick(4)[-1]  # version 4 is the epoch's own
    assert 0 == plan.left
    assert 2 == again.publisher.epoch
