"""Anchors and skip deltas beside the chain: when they are due, what they hold, what a joiner saves by them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline.chain import AnchorStep, ChainReader, SkipStep, plan
from syncline.clock import ManualClock
from syncline.metrics import Metrics
from syncline.store.memory import MemoryStore
from syncline.versions import Link
from syncline.wire.records import AnchorManifest, SkipManifest
from syncline_distributor import Publisher
from syncline_distributor.keeper import Keeper, Standing, anchor_due, skip_due
from syncline_distributor.settings import AnchorSettings
from syncline_distributor.steps import run_steps
from syncline_distributor.vetoes import mark_bad, unmark

Make = Callable[..., Publisher]


@pytest.fixture
def keeper(store: MemoryStore, clock: ManualClock, tmp_path: Path) -> Callable[..., Keeper]:
    def make(folder: str = "keeper", **settings: Any) -> Keeper:
        reader = ChainReader(store, "run")
        return Keeper(store, reader, AnchorSettings(**settings), tmp_path / folder, clock, random.Random(7), Metrics())

    return make


@pytest.mark.parametrize(
    ("standing", "settings", "anchor", "skip"),
    [
        (Standing(5, None, None, 0, 100), AnchorSettings(), True, False),
        (Standing(5, 5, None, 0, 100), AnchorSettings(anchor_every=1, skip_every=1), False, False),
        (Standing(9, 5, None, 10, 100), AnchorSettings(anchor_every=4), True, False),
        (Standing(8, 5, None, 10, 100), AnchorSettings(anchor_every=4, skip_every=3), False, True),
        (Standing(8, 5, 7, 10, 100), AnchorSettings(anchor_every=0, skip_every=3), False, False),
        (Standing(10, 5, 7, 10, 100), AnchorSettings(anchor_every=0, skip_every=3), False, True),
        (Standing(6, 5, None, 51, 100), AnchorSettings(anchor_every=0, anchor_ratio=0.5, skip_every=1), True, False),
        (Standing(6, 5, None, 10, 100), AnchorSettings(anchor_every=0, anchor_ratio=0, skip_every=1), False, False),
        (Standing(99, 5, None, 999, 100), AnchorSettings(anchor_every=0, anchor_ratio=0, skip_every=0), False, False),
    ],
)
def test_an_anchor_or_a_skip_delta_is_due_by_policy(
    standing: Standing, settings: AnchorSettings, anchor: bool, skip: bool
) -> None:
    assert (anchor, skip) == (anchor_due(standing, settings), skip_due(standing, settings))


def test_nothing_is_written_for_a_run_that_does_not_exist(keeper: Callable[..., Keeper]) -> None:
    assert run_steps(keeper().steps()) is None


def test_an_anchor_holds_the_very_bits_and_the_files_beside_them(
    keeper: Callable[..., Keeper], publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    publish, source = publisher(files={"config.json": b'{"model_type": "tiny"}'}), trainer()
    for _ in range(4):
        publish.publish(source.step())
    written = run_steps(keeper(anchor_every=3, max_shard_bytes=4000).steps())
    assert isinstance(written, AnchorManifest)
    assert 4 == written.version
    assert "config.json" in {f.name for f in written.anchor.files}
    assert 1 < sum(f.name.endswith(".safetensors") for f in written.anchor.files)
    for version in (2, 3):
        store.delete(f"run/main/versions/{version:012d}.json")
    assert isinstance(plan(None, 4, ChainReader(store, "run")).steps[0], AnchorStep)
    assert same_bits(source.weights, reading.units(store, 4))


def test_a_skip_delta_spares_a_joiner_the_deltas_in_between(
    keeper: Callable[..., Keeper], publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    publish, source, keep = publisher(), trainer(), keeper(anchor_every=0, anchor_ratio=0, skip_every=3)
    written: list[SkipManifest] = []
    for _ in range(8):
        publish.publish(source.step(changes=2))
        made = run_steps(keep.steps())
        written += [made] if isinstance(made, SkipManifest) else []
    assert [(4, 1), (7, 1)] == [(s.version, s.base) for s in written]
    way = plan(None, 7, ChainReader(store, "run"))
    assert [AnchorStep, SkipStep] == [type(s) for s in way.steps]
    for version in range(2, 7):
        store.delete(f"run/main/chunks/{ChainReader(store, 'run').manifest(version).chunks[0].blake3}")
    assert same_bits(source.weights, reading.units(store, 8))


def test_a_skip_delta_forgets_what_was_changed_and_changed_back(
    keeper: Callable[..., Keeper], publisher: Make, trainer: Any
) -> None:
    publish, source = publisher(), trainer()
    start = source.weights
    publish.publish(start)
    for weights in (source.step(), start, source.step(), start):
        publish.publish(weights)
    skip = run_steps(keeper(skip_every=4).steps())
    assert isinstance(skip, SkipManifest)
    assert (5, [], 0) == (skip.version, skip.chunks, skip.statistics.changed_units)


def test_an_anchor_is_due_once_deltas_outweigh_it(keeper: Callable[..., Keeper], publisher: Make, trainer: Any) -> None:
    publish, source, keep = publisher(), trainer(), keeper(anchor_every=0, anchor_ratio=0.5, skip_every=0)
    for _ in range(12):
        publish.publish(source.step(changes=400))
        run_steps(keep.steps())
    anchors = publish.reader.anchors()
    assert 1 == anchors[0] and len(anchors) > 1


def test_a_keeper_that_starts_anew_goes_on_from_the_store(
    keeper: Callable[..., Keeper], publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    publish, source = publisher(), trainer()
    for folder in ("one", "two", "one"):
        for _ in range(3):
            publish.publish(source.step())
        assert isinstance(run_steps(keeper(folder, anchor_every=2).steps()), AnchorManifest)
    assert [1, 3, 6, 9] == publish.reader.anchors()
    assert same_bits(source.weights, reading.units(store, 9))


def test_a_damaged_folder_of_the_keeper_never_gets_into_an_anchor(
    keeper: Callable[..., Keeper],
    publisher: Make,
    trainer: Any,
    store: MemoryStore,
    reading: Any,
    same_bits: Any,
    tmp_path: Path,
) -> None:
    publish, source = publisher(), trainer()
    for _ in range(3):
        publish.publish(source.step())
    run_steps(keeper(anchor_every=2).steps())
    for file in (tmp_path / "keeper" / "anchor").glob("*.safetensors"):
        raw = np.memmap(file, np.uint8, "r+")
        raw[-3] ^= 1
        raw.flush()
        del raw
    for _ in range(2):
        publish.publish(source.step())
    assert isinstance(run_steps(keeper(anchor_every=2).steps()), AnchorManifest)
    assert same_bits(source.weights, reading.units(store, 5))


def test_a_vetoed_version_gets_no_anchor(
    keeper: Callable[..., Keeper], publisher: Make, trainer: Any, clock: ManualClock
) -> None:
    publish, source, keep = publisher(), trainer(), keeper(anchor_every=1)
    for _ in range(2):
        publish.publish(source.step())
    mark_bad(publish.reader, 2, "the reward collapsed", clock=clock)
    assert run_steps(keep.steps()) is None
    assert {2: "the reward collapsed"} == {v: r.reason for v, r in publish.reader.vetoes().items()}
    unmark(publish.reader, 2)
    assert isinstance(run_steps(keep.steps()), AnchorManifest)


def test_two_keepers_do_not_disturb_each_other(
    keeper: Callable[..., Keeper], publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    publish, source = publisher(), trainer()
    for _ in range(3):
        publish.publish(source.step())
    one, other = keeper("one", anchor_every=2).steps(), keeper("two", anchor_every=2).steps()
    assert ("publish.anchor_files_put", "publish.anchor_files_put") == (next(one), next(other))
    run_steps(one)
    run_steps(other)
    assert [1, 3] == ChainReader(store, "run").anchors()
    assert same_bits(source.weights, reading.units(store, 3))


def test_a_plan_from_a_version_held_may_use_the_skip_delta_too(
    keeper: Callable[..., Keeper], publisher: Make, trainer: Any, store: MemoryStore
) -> None:
    publish, source = publisher(), trainer()
    for _ in range(5):
        publish.publish(source.step())
    run_steps(keeper(skip_every=4).steps())
    first = publish.reader.manifest(1)
    way = plan(Link(first.lineage, 1, None, first.epoch), 5, ChainReader(store, "run"))
    assert [SkipStep] == [type(s) for s in way.steps]
