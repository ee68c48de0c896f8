"""What `publish` leaves in the log, and `publish` of what is no checkpoint: refused with what was found and what to pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Call = Callable[..., Any]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("nope", "nope does not exist; pass the folder of one checkpoint: model.safetensors, or shards with"),
        ("trainer", "holds neither model.safetensors nor model.safetensors.index.json, but folders that do: "),
        ("trainer/checkpoint-1/config.json", "config.json is a file; pass the folder of one checkpoint"),
    ],
)
def test_a_path_that_is_no_checkpoint_exits_8_and_says_what_to_pass(
    syncline: Call, trainer: Any, tmp_path: Path, named: str, said: str
) -> None:
    trainer.step()
    ended = syncline("publish", tmp_path / named, "--store", tmp_path / "store", "--run", "new", "--json")
    assert (8, "SourceInvalid") == (ended.code, ended.document["error"]["type"])
    assert said in ended.document["error"]["message"]
    assert not (tmp_path / "store").exists()


def test_a_checkpoint_that_is_still_being_written_exits_3(syncline: Call, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "config.json").write_text("{}")
    ended = syncline("publish", tmp_path / "checkpoint-1", "--store", tmp_path / "store", "--run", "new")
    assert 3 == ended.code
    assert "holds no .safetensors file yet" in ended.err


def test_a_writers_epoch_is_told_from_weights_that_did_not_change(syncline: Call, trainer: Any, tmp_path: Path) -> None:
    options = ("--store", tmp_path / "store", "--run", "new", "--json")
    same = trainer.step()
    for folder in (same, same, trainer.step()):
        assert 0 == syncline("publish", folder, *options).code
    kinds = [entry["kind"] for entry in syncline("log", *options).document]
    assert ["delta", "epoch", "empty", "epoch", "anchor-only"] == kinds
    assert "epoch" == syncline("show", 2, *options).document["summary"]["kind"]


def test_the_step_is_read_from_the_folder_unless_it_is_told(
    syncline: Call, trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--store", tmp_path / "store", "--run", "new")
    first = trainer.step()
    assert "version 1  anchor-only  step 1  " in syncline("publish", first, *options).out
    assert 7 == syncline("publish", first, *options, "--step", 7, "--json").document["step"]
    monkeypatch.chdir(trainer.step())
    assert 2 == syncline("publish", ".", *options, "--json").document["step"]
    plain = trainer.step().rename(tmp_path / "final")
    assert syncline("publish", plain, *options, "--json").document["step"] is None
    (plain / "trainer_state.json").write_text('{"global_step": 300}')
    assert 300 == syncline("publish", plain, *options, "--json").document["step"]


def test_a_quick_link_takes_a_quicker_codec(syncline: Call, trainer: Any, tmp_path: Path) -> None:
    trainer.weights = {"w": (np.full((512, 512), 0.02, np.float32).view(np.uint32) >> 16).astype(np.uint16)}
    folders = [trainer.step(), trainer.step(3000)]
    codecs: list[list[str]] = []
    for run, link in (("slow", []), ("quick", ["--link-mbit", 1e6])):
        options = ("--store", tmp_path / "store", "--run", run, "--json")
        published = [syncline("publish", folder, *options, *link).code for folder in folders]
        assert [0, 0] == published
        statistics = syncline("show", 3, *options).document["statistics"]
        codecs.append(list(statistics["codecs"]))
    assert [["context"], ["sparse"]] == codecs


def test_a_tensor_without_a_name_is_told_as_such(syncline: Call, trainer: Any, tmp_path: Path) -> None:
    trainer.weights[""] = trainer.weights["norm.weight"]
    ended = syncline("publish", trainer.write(), "--store", tmp_path / "store", "--run", "new")
    assert 8 == ended.code
    assert "model.safetensors: a tensor has an empty name" in ended.err
