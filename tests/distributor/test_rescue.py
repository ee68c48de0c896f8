"""A chain that is damaged between its newest anchor and head, while the writer's own base stands at head."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.errors import Corrupt
from syncline.metrics import Metrics
from syncline.store.memory import MemoryStore
from syncline_distributor.options import parse_settings
from syncline_distributor.service import Service
from syncline_distributor.vetoes import mark_bad


class Ticking:
    """The service's loops over a store in memory, ticked by hand."""

    def __init__(self, store: MemoryStore, clock: ManualClock, home: Path, *more: str) -> None:
        flags = ["--store", "/none", "--run", "run", "--state-dir", str(home / "state"), "--source", str(home / "runs")]
        settings = parse_settings(["watch", *flags, "--complete", "rename", *more], {})
        settings.state_dir.mkdir(exist_ok=True)
        self.service = Service(settings, store, clock=clock, random=random.Random(5), metrics=Metrics())
        self.loops = {loop.name: loop for loop in self.service.reporter.loops}

    def tick(self, name: str) -> str | None:
        """What the loop's tick raised, if anything."""
        self.loops[name]._once()
        return self.loops[name].error


@pytest.fixture
def ticking(store: MemoryStore, clock: ManualClock, tmp_path: Path, write: Any, trainer: Any) -> Callable[..., Any]:
    """A service whose source held three checkpoints, all published."""

    def make(*more: str) -> tuple[Ticking, Any]:
        source = trainer()
        for step in (1, 2, 3):
            write(f"checkpoint-{step}", source.step())
        ticking = Ticking(store, clock, tmp_path, *more)
        assert [None] * 3 == [ticking.tick("watch") for _ in range(3)]
        return ticking, source

    return make


def damage(store: MemoryStore, version: int) -> None:
    reader = ChainReader(store, "run")
    key = reader.keys.chunk(reader.manifest(version).chunks[0].blake3)
    found = store.get(key, max_bytes=1 << 20)
    assert found is not None
    store.put(key, found.data[:-1] + bytes([found.data[-1] ^ 1]))


@pytest.mark.parametrize("due", [("--anchor-every", "2"), ("--anchor-every", "0", "--skip-every", "2")])
def test_an_anchor_comes_from_the_writers_base_where_a_damaged_delta_leaves_the_keeper_no_way(
    ticking: Callable[..., Any], store: MemoryStore, reading: Any, same_bits: Any, write: Any, due: tuple[str, ...]
) -> None:
    running, source = ticking(*due, "--anchor-ratio", "0")
    damage(store, 2)
    assert "does not hash to its name" in (running.tick("keep") or "")
    assert None is running.tick("watch")
    assert [1, 3] == ChainReader(store, "run").anchors()
    assert same_bits(source.weights, reading.units(store, 3))
    assert None is running.tick("keep")
    assert None is running.service._keeper.stuck
    write("checkpoint-4", source.step())
    running.tick("watch")
    assert [1, 3] == ChainReader(store, "run").anchors()
    assert same_bits(source.weights, reading.units(store, 4))


def test_a_base_that_rotted_too_gives_no_anchor_and_is_tried_once(
    ticking: Callable[..., Any], store: MemoryStore, tmp_path: Path
) -> None:
    running, _ = ticking("--anchor-every", "2")
    damage(store, 2)
    running.tick("keep")
    file = tmp_path / "state" / "base" / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    with file.open("r+b") as out:
        out.write(raw)
    with capture_logs() as said:
        assert [None] * 3 == [running.tick("watch") for _ in range(3)]
    assert [1] == ChainReader(store, "run").anchors()
    errors = [line["error"] for line in said if line["log_level"] == "error"]
    assert 1 == len(errors)
    assert "is not as version 3 has it; no anchor; put the object back from a mirror" in errors[0]


def test_a_version_that_was_marked_bad_gets_no_anchor_from_the_base(
    ticking: Callable[..., Any], store: MemoryStore, clock: ManualClock
) -> None:
    running, _ = ticking("--anchor-every", "2")
    damage(store, 2)
    running.tick("keep")
    mark_bad(ChainReader(store, "run"), 3, "the reward collapsed", clock=clock)
    running.tick("watch")
    assert [1] == ChainReader(store, "run").anchors()


def test_without_a_way_the_message_says_what_to_do_and_that_helps(
    publisher: Any, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any, tmp_path: Path
) -> None:
    source, first = trainer(), publisher(disk="one")
    for _ in range(3):
        first.publish(source.step())
    damage(store, 2)
    with pytest.raises(Corrupt, match="publish a version that carries all weights: end the writer and"):
        reading.units(store, 3)
    fresh = publisher(disk="two")  # as `syncline publish` with a new --state-dir
    assert None is fresh.publish(source.weights).manifest.base
    assert same_bits(source.weights, reading.units(store, 5))
