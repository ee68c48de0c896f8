"""A writer that starts again commits an epoch on head, which has head's weights: a veto must survive that."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syncline.chain import ChainReader, newest_allowed
from syncline.checkpoint import materialize
from syncline.clock import ManualClock
from syncline.errors import VersionVetoed
from syncline.metrics import Metrics
from syncline.store.memory import MemoryStore
from syncline.wire.records import AnchorManifest
from syncline_distributor import Publisher
from syncline_distributor.keeper import Keeper
from syncline_distributor.settings import AnchorSettings, RetentionSettings
from syncline_distributor.status import Observer
from syncline_distributor.steps import run_steps
from syncline_distributor.sweeper import Sweeper
from syncline_distributor.vetoes import mark_bad, unmark

Make = Callable[..., Publisher]


class Scene:
    """Three versions, and a writer that can end and start again."""

    def __init__(self, make: Make, source: Any, store: MemoryStore, clock: ManualClock, folder: Path) -> None:
        self._make, self.source, self.store, self.clock, self.folder = make, source, store, clock, folder
        self.reader = ChainReader(store, "run")
        self.publisher = make()
        for _ in range(3):
            self.publisher.publish(source.step())

    def restart(self) -> None:
        self.publisher = self._make()
        self.publisher.open()

    def mark(self, version: int) -> None:
        mark_bad(self.reader, version, "the reward collapsed", clock=self.clock)

    def newest(self) -> int | None:
        head = ChainReader(self.store, "run").listed_head()
        assert head is not None
        return newest_allowed(head.version, self.reader.vetoes())

    def keeper(self) -> Keeper:
        settings = AnchorSettings(anchor_every=1)
        return Keeper(
            self.store,
            ChainReader(self.store, "run"),
            settings,
            self.folder / "keeper",
            self.clock,
            random.Random(7),
            Metrics(),
        )


@pytest.fixture
def scene(publisher: Make, trainer: Any, store: MemoryStore, clock: ManualClock, tmp_path: Path) -> Scene:
    return Scene(publisher, trainer(), store, clock, tmp_path)


@pytest.mark.parametrize("order", ["marked, then restarted", "restarted, then marked"])
def test_the_version_before_stays_the_newest_whichever_came_first(scene: Scene, order: str, tmp_path: Path) -> None:
    for act in order.split(", then "):
        scene.mark(3) if act == "marked" else scene.restart()
    scene.restart()
    assert (5, 2) == (scene.reader.versions()[-1], scene.newest())
    scene.publisher.publish(scene.source.weights)  # the weights of the version that was marked, once more
    assert (6, 2) == (scene.reader.versions()[-1], scene.newest())
    with pytest.raises(VersionVetoed, match="version 6 changes nothing on version 3"):
        materialize(scene.reader, 6, tmp_path / "checkpoint")
    scene.publisher.publish(scene.source.step())
    assert 7 == scene.newest()
    assert 7 == materialize(scene.reader, 7, tmp_path / "checkpoint").marker.version  # type: ignore[union-attr]


def test_taking_the_mark_back_frees_the_epoch_too(scene: Scene) -> None:
    scene.mark(3)
    scene.restart()
    unmark(scene.reader, 3)
    assert 4 == scene.newest()


def test_a_mark_on_the_epoch_leaves_the_version_below_it(scene: Scene) -> None:
    scene.restart()
    scene.mark(4)
    scene.restart()
    assert (5, 3) == (scene.reader.versions()[-1], scene.newest())


def test_an_epoch_on_a_vetoed_version_gets_no_anchor(scene: Scene) -> None:
    scene.mark(3)
    scene.restart()
    assert run_steps(scene.keeper().steps()) is None
    unmark(scene.reader, 3)
    assert isinstance(run_steps(scene.keeper().steps()), AnchorManifest)


def test_retention_counts_no_anchor_of_such_a_version_and_keeps_the_mark_as_long_as_it_bars_one(scene: Scene) -> None:
    sweeper = Sweeper(scene.store, scene.reader, RetentionSettings(lease_period_s=100, keep_anchors=1), Metrics())
    scene.restart()
    run_steps(scene.keeper().steps())
    assert {4} == sweeper.survey().kept.versions
    scene.mark(3)
    assert {1, 2, 3, 4} == sweeper.survey().kept.versions
    scene.store.delete(scene.reader.keys.version(3))  # a sweep was about to when the mark came
    for _ in range(3):
        scene.clock.advance(101)
        sweeper.reader = ChainReader(scene.store, "run")
        sweeper.sweep()
    assert ([4], [3, 4]) == (sweeper.reader.versions(), list(sweeper.reader.vetoes()))


def test_the_status_names_such_a_version_and_why(scene: Scene, clock: ManualClock) -> None:
    scene.mark(3)
    scene.restart()
    observer = Observer(ChainReader(scene.store, "run"), clock, Metrics())
    observer.tick()
    why = "version 4 changes nothing on version 3, which was marked bad (the reward collapsed)"
    assert {3: "the reward collapsed", 4: why} == observer.vetoes
