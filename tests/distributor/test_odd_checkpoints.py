"""What lies in a watched folder beside good checkpoints must neither end the watch nor hold up the next one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syncline.clock import ManualClock
from syncline.metrics import Metrics
from syncline.wire.tensors import COLUMN_SPLIT
from syncline_distributor.settings import Completion, WatchSettings
from syncline_distributor.sources import INDEX, FolderSource
from syncline_distributor.watch import Watch

Odd = Callable[[Path], object]
DEEP = "[" * 100_000


def odd_name(folder: Path) -> None:
    folder.rename(os.fsdecode(os.fsencode(folder) + b"-\xff"))


def odd_file(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder / "notes") + b"-\xff")).write_text("x")


def deep_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / INDEX).write_text(DEEP)


def unreadable(folder: Path) -> None:
    # Reads of this file fail with an input/output error, as a bad disk's do.
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/proc/self/mem")


@pytest.mark.parametrize(
    ("spoil", "published"),
    [
        (odd_name, 2),
        (odd_file, 2),
        (deep_index, 1),
        (lambda folder: (folder / "config.json").write_text(DEEP), 1),
        (lambda folder: (folder / "trainer_state.json").write_text(DEEP), 2),
        (lambda folder: (folder / "trainer_state.json").write_text(f'{{"global_step": {10**30}}}'), 2),
        (unreadable, 1),
        (lambda folder: os.mkfifo(folder / "b.safetensors"), 2),
        (lambda folder: (folder.parent / "latest").symlink_to("later"), 2),
    ],
    ids=["folder name", "file name", "index", "config", "state", "step", "unreadable", "pipe", "second name"],
)
def test_an_odd_checkpoint_does_not_hold_up_the_next_one(
    publisher: Any, trainer: Any, checkpoint_folder: Any, tmp_path: Path, spoil: Odd, published: int
) -> None:
    source, runs = trainer(), tmp_path / "runs"
    spoil(checkpoint_folder(runs / "earlier", source.step()))
    checkpoint_folder(runs / "later", source.step())
    publish = publisher(disk="state")
    watch = Watch(
        publish, FolderSource(runs), WatchSettings(completion=Completion.RENAME), state_dir=tmp_path / "state",
        clock=ManualClock(), metrics=Metrics(), column_split=COLUMN_SPLIT,
    )  # fmt: skip
    for _ in range(6):
        watch.tick()
    sources = {publish.reader.manifest(v).labels["source"] for v in publish.reader.versions()}
    assert (published, True) == (len(sources), "later" in sources)
    assert published == publish.head.version
