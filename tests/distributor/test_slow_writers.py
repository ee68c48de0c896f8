"""Retention against writers and joiners that take longer than a lease period, and against anchors that only look whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.errors import StoreUnavailable
from syncline.metrics import Metrics
from syncline.store.base import ObjectInfo
from syncline.store.memory import MemoryStore
from syncline.wire.records import AnchorManifest, LeaseRecord, SkipManifest
from syncline_distributor import Publisher
from syncline_distributor.keeper import Keeper
from syncline_distributor.settings import AnchorSettings, RetentionSettings
from syncline_distributor.steps import run_steps
from syncline_distributor.sweeper import Sweeper
from syncline_distributor.vetoes import mark_bad

Make = Callable[..., Publisher]
LEASE_S = 100.0


class SlowStore(MemoryStore):
    """Does something else whenever an object of some folder is about to be created, or leases are listed."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.folder = "nothing"
        self.meanwhile: Callable[[], object] = lambda: None
        self.leases_listed: Callable[[], object] = lambda: None

    def put_if_absent(self, key: str, data: Any) -> str:
        if self.folder in key:
            self.meanwhile()
        return super().put_if_absent(key, data)

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        if prefix.endswith("/leases/"):
            self.leases_listed()
        return super().list_after(prefix, after=after, limit=limit)


class Scene:
    """One run, its keeper and its sweeper."""

    def __init__(self, clock: ManualClock, folder: Path, publisher: Make, source: Any) -> None:
        self.clock, self.source = clock, source
        self.store = SlowStore(clock)
        self.reader = ChainReader(self.store, "run")
        self.publisher = publisher(on=self.store)
        self._folder = folder
        self.sweeper = Sweeper(
            self.store, self.reader, RetentionSettings(lease_period_s=LEASE_S, keep_anchors=1), Metrics()
        )

    def publish(self, versions: int) -> None:
        for _ in range(versions):
            self.publisher.publish(self.source.step())

    def keeper(self, **settings: Any) -> Keeper:
        reader = ChainReader(self.store, "run")
        return Keeper(
            self.store, reader, AnchorSettings(**settings), self._folder, self.clock, random.Random(7), Metrics()
        )

    def sweep(self, seconds: float = LEASE_S * 0.6, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(seconds)
            self.sweeper.sweep()


@pytest.fixture
def scene(clock: ManualClock, tmp_path: Path, publisher: Make, trainer: Any) -> Scene:
    return Scene(clock, tmp_path / "keeper", publisher, trainer())


def test_an_anchor_that_uploads_for_many_lease_periods_keeps_its_files(
    scene: Scene, reading: Any, same_bits: Any
) -> None:
    scene.publish(3)
    scene.store.folder, scene.store.meanwhile = "/anchors/", scene.sweep
    written = run_steps(scene.keeper(anchor_every=2, max_shard_bytes=500).steps())
    assert isinstance(written, AnchorManifest)
    assert len(written.anchor.files) > 6
    scene.sweep(times=6)
    assert [3] == scene.reader.versions()
    assert same_bits(scene.source.weights, reading.units(scene.store, 3))


def test_an_anchor_whose_files_are_taken_all_the_same_is_not_committed(scene: Scene) -> None:
    scene.publish(3)
    steps = scene.keeper(anchor_every=2).steps()
    assert "publish.anchor_files_put" == next(steps)
    scene.sweep(seconds=LEASE_S + 1, times=3)
    with pytest.raises(StoreUnavailable, match="slower than a lease period"):
        next(steps)
    assert [1] == scene.reader.anchors()


def test_a_skip_delta_that_is_slow_has_all_its_chunks(scene: Scene, reading: Any, same_bits: Any) -> None:
    scene.publish(5)
    named = {c.blake3 for v in scene.reader.versions() for c in scene.reader.manifest(v).chunks}
    scene.store.folder, scene.store.meanwhile = "/skips/", lambda: scene.sweep(seconds=LEASE_S + 1, times=3)
    written = run_steps(scene.keeper(anchor_every=0, anchor_ratio=0, skip_every=4).steps())
    assert isinstance(written, SkipManifest)
    left = {i.key.rpartition("/")[2] for i in scene.store.list_after("run/main/chunks/")}
    assert {c.blake3 for c in written.chunks} <= left - named
    assert same_bits(scene.source.weights, reading.units(scene.store, 5))


@pytest.mark.parametrize("tensors", [1, 3])
def test_tensors_that_come_back_do_not_lose_their_table_to_a_sweep(
    scene: Scene, reading: Any, same_bits: Any, tensors: int
) -> None:
    # The first table is left behind by versions that were collected, and marked, when a publish needs it again.
    first = dict(list(scene.source.weights.items())[4 : 4 + tensors])
    other = dict(list(scene.source.weights.items())[7:9])
    scene.publisher.publish(first)
    scene.publisher.publish(other)
    scene.sweep(seconds=LEASE_S + 1)
    steps = scene.publisher.publish_steps(first)
    for point in steps:
        if point == "publish.anchor_files_put":
            scene.sweep(seconds=LEASE_S + 1)
    assert [2, 3] == scene.reader.versions()
    assert same_bits(first, reading.units(scene.store, 3))


@pytest.mark.parametrize("harm", ["manifest", "file", "size"])
def test_an_anchor_that_cannot_be_read_never_lets_the_last_good_one_go(
    scene: Scene, reading: Any, same_bits: Any, harm: str
) -> None:
    scene.publish(3)
    written = run_steps(scene.keeper(anchor_every=2).steps())
    assert isinstance(written, AnchorManifest)
    scene.publish(1)
    keys = scene.reader.keys
    file = keys.anchor_file(3, written.nonce, written.anchor.files[-1].name)
    match harm:
        case "manifest":
            scene.store.put(keys.anchor(3), b"{}")
        case "file":
            scene.store.delete(file)
        case _:
            scene.store.put(file, b"short")
    scene.sweep(seconds=LEASE_S + 1, times=4)
    assert [1, 2, 3, 4] == scene.reader.versions()
    assert same_bits(scene.source.weights, reading.units(scene.store, 4))


def test_a_joiner_keeps_the_anchor_that_it_found_however_many_appear_meanwhile(
    scene: Scene, reading: Any, same_bits: Any
) -> None:
    scene.publish(4)
    keeper = scene.keeper(anchor_every=1)
    expected = scene.source.weights
    lease = LeaseRecord(
        lineage=scene.reader.run_record().lineage, owner="joiner", ttl_ms=int(LEASE_S * 3000), version=None
    )
    for _ in range(6):
        scene.store.put(scene.reader.keys.lease("joiner"), lease.encode())
        scene.sweep(seconds=LEASE_S + 1)
        scene.publish(1)
        run_steps(keeper.steps())
    assert 1 == scene.reader.versions()[0]
    assert same_bits(expected, reading.units(scene.store, 4))
    scene.clock.advance(LEASE_S * 3 + 1)
    scene.sweep(seconds=LEASE_S + 1, times=3)
    assert [10] == scene.reader.versions()


def test_a_vetoed_version_of_other_tensors_gets_an_anchor_behind_it(
    scene: Scene, reading: Any, same_bits: Any, clock: ManualClock
) -> None:
    scene.publish(2)
    smaller = dict(list(scene.source.weights.items())[:5])
    scene.publisher.publish(smaller)
    mark_bad(scene.reader, 3, "the reward collapsed", clock=clock)
    smaller = dict(list(scene.source.step().items())[:5])
    scene.publisher.publish(smaller)
    keeper = scene.keeper(anchor_every=0, anchor_ratio=0, skip_every=1)
    written = run_steps(keeper.steps())
    assert isinstance(written, AnchorManifest)
    assert 4 == written.version
    scene.publisher.publish(smaller)
    scene.publisher.publish(smaller)
    assert isinstance(run_steps(keeper.steps()), SkipManifest)
    assert same_bits(smaller, reading.units(scene.store, 6))


def test_what_a_sleeping_writer_commits_during_a_sweep_is_not_deleted(scene: Scene, reading: Any) -> None:
    # The manifest appears when the sweep has looked and has begun to delete.
    scene.publish(3)
    steps = scene.publisher.publish_steps(scene.source.step())
    for point in steps:
        if point == "publish.chunks_put":
            break
    scene.sweep(seconds=LEASE_S + 1)

    def commit() -> None:
        for point in steps:
            if point == "publish.manifest_put":
                break

    scene.store.leases_listed = commit
    scene.sweep(seconds=LEASE_S + 1)
    assert 4 == scene.reader.versions()[-1]
    reading.units(scene.store, 4)
