"""A checkpoint on the node's disk that no engine could load: found while no engine is there, and written again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline.checkpoint import Checkpoint
from syncline.checkpoint.marker import OwnFiles
from syncline_agent import examining
from syncline_agent.testing.bits import stores_of
from syncline_distributor.publisher import Publisher


def weights(folder: Path) -> Path:
    return next(folder.glob("*.safetensors"))


def shorten(folder: Path) -> None:
    os.truncate(weights(folder), weights(folder).stat().st_size - 3)


def lengthen(folder: Path) -> None:
    with weights(folder).open("ab") as file:
        file.write(b"odd")


def change_header(folder: Path) -> None:
    data = weights(folder).read_bytes()
    weights(folder).write_bytes(data.replace(b"norm", b"form", 1))


def remove_tables(folder: Path) -> None:
    shutil.rmtree(OwnFiles(folder).tables)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "weights removed": lambda folder: weights(folder).unlink(),
    "weights truncated": shorten,
    "bytes appended": lengthen,
    "header changed": change_header,
    "marker removed": lambda folder: OwnFiles(folder).marker.unlink(),
    "lock removed": lambda folder: OwnFiles(folder).lock.unlink(),
    "tables removed": remove_tables,
    "all of it removed": shutil.rmtree,
}


@pytest.mark.parametrize("restart", [True, False], ids=["the agent starts", "the agent runs on"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_checkpoint_that_no_engine_can_open_is_written_again_while_none_is_there(
    world: Any, damage: Callable[[Path], None], restart: bool
) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    replica.stop_engine()
    folder = replica.node.checkpoint.path
    for _ in range(2):  # the node has looked at it while it was well
        world.pass_time(replica.node.follower.tick())
    damage(folder)
    if restart:
        replica.restart_agent()
    with capture_logs() as lines:
        world.follow(replica, 2, seconds=30.0)
        world.pass_time(replica.node.follower.tick())
    told = [line["event"] for line in lines if line["event"].startswith(f"the checkpoint in {folder} is damaged (")]
    no_marker = damage in (DAMAGES["marker removed"], shutil.rmtree)
    assert (0 if restart and no_marker else 1) == len(told)  # a start without a marker is a node's first


@pytest.mark.parametrize("restart", [True, False], ids=["the agent starts", "the agent runs on"])
def test_a_checkpoint_whose_config_is_gone_is_written_again_and_one_that_was_added_to_is_not(
    world: Any, tmp_path: Path, restart: bool
) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    world.publisher.close()
    world.publisher = Publisher(
        world.store, "run", settings=world.publisher._settings, files={"config.json": config}, clock=world.clock
    )
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    replica.stop_engine()
    folder = replica.node.checkpoint.path
    (folder / "notes.txt").write_text("mine")
    for wrong in (False, True):
        if wrong:
            (folder / "config.json").unlink()
        if restart:
            replica.restart_agent()
        with capture_logs() as lines:
            for _ in range(3):
                world.pass_time(replica.node.follower.tick())
        assert wrong == any("config.json is missing" in line["event"] for line in lines)
        assert "{}" == (folder / "config.json").read_text()
        assert wrong == (not (folder / "notes.txt").exists())
    world.follow(replica, 2)


@pytest.mark.parametrize("damage", [shorten, lengthen], ids=["truncated", "appended"])
def test_a_checkpoint_that_cannot_be_opened_is_written_again_by_the_advance(
    world: Any, damage: Callable[[Path], None]
) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    damage(replica.node.checkpoint.path)
    for _ in range(9):
        world.follow(replica, world.publish())
    replica.node.background.tick()
    assert None is replica.node.background.error
    replica.stop_engine()
    assert replica.start_engine()
    assert 11 == world.follow(replica, 11).boot


@pytest.mark.parametrize("damage", [shorten, lengthen], ids=["truncated", "appended"])
def test_healing_falls_back_to_the_store_when_the_checkpoint_cannot_be_opened(
    world: Any, damage: Callable[[Path], None]
) -> None:
    world.publish(2)
    replica = world.replica()
    world.follow(replica, 2)
    damage(replica.node.checkpoint.path)
    live = replica.live
    stores_of(live)[live.table.index["layers.0.norm.weight"]][7] ^= 1
    with pytest.raises(Exception, match="live bits"):
        replica.slot.sweep()
    assert None is world.follow(replica, 2, seconds=60.0).boot


def test_a_checkpoint_that_stays_as_it_was_is_opened_once(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish()
    replica = world.replica()
    world.follow(replica, 1)
    replica.stop_engine()
    opened: list[Path] = []

    class Counted(Checkpoint):
        def __init__(self, path: Path) -> None:
            opened.append(path)
            super().__init__(path)

    monkeypatch.setattr(examining, "Checkpoint", Counted)
    for _ in range(5):
        world.pass_time(replica.node.follower.tick())
    assert [replica.node.checkpoint.path] == opened
