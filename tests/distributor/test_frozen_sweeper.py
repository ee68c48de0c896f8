"""Retention against a sweeper, writers and a keeper that may each stand still at any call, for any time, in any order.

Every run is one seed: before each call that a sweeper makes to the store it may be left standing while the clock moves
on by lease periods and everybody else, another sweeper included, goes on. What must hold after every single event:
from the newest usable anchor to head, everything that a manifest names is there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.errors import ChainBroken, Corrupt, Fenced, StoreUnavailable
from syncline.metrics import Metrics
from syncline.store.memory import MemoryStore
from syncline_distributor import Publisher
from syncline_distributor.keeper import Keeper
from syncline_distributor.listing import anchor_files, version_keys
from syncline_distributor.retention import ChainMap, walk_down
from syncline_distributor.settings import AnchorSettings, RetentionSettings
from syncline_distributor.steps import Steps
from syncline_distributor.sweeper import Sweeper

Make = Callable[..., Publisher]
LEASE_S = 100.0
EVENTS = 80
STRETCH = 8
MOODS = ((6, 1, 1, 1), (1, 1, 3, 3), (2, 4, 1, 1), (0, 0, 1, 1))
"""How often publishing, keeping, waiting and sweeping come in a stretch of events: in some of them all writers sleep."""


class Standing:
    """The store as one sweeper calls it: before each call that sweeper may stand still."""

    def __init__(self, store: MemoryStore, stand: Callable[[str], None]) -> None:
        self._store, self._stand = store, stand

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:
            self._stand(name)
            return found(*args, **named)

        return call


class World:
    """One seed: two tensor sets in turn, a writer that is killed and started again, sleepers that wake up."""

    def __init__(self, seed: int, folder: Path, clock: ManualClock, publisher: Make, trainer: Any) -> None:
        self.random = random.Random(seed)
        self.clock = clock
        self.store = MemoryStore(clock)
        self._publisher, self._source = publisher, trainer(seed)
        self.writer = publisher(on=self.store)
        self.publishing: Steps[Any] | None = None
        self.asleep: list[Steps[Any]] = []
        self.counts: Counter[str] = Counter()
        self._standing: Sweeper | None = None
        self._reader = ChainReader(self.store, "run")
        self.writer.publish(self._source.step())
        self.sweepers = [self._sweeper(), self._sweeper()]
        self.keeper = Keeper(
            self.store,
            ChainReader(self.store, "run"),
            AnchorSettings(anchor_every=3, skip_every=2, max_shard_bytes=4000),
            folder,
            clock,
            random.Random(seed),
            Metrics(),
        )
        self.keeping: Steps[Any] | None = None

    def _sweeper(self) -> Sweeper:
        store: Any = Standing(self.store, lambda operation: self._stand(sweeper, operation))
        settings = RetentionSettings(lease_period_s=LEASE_S, keep_anchors=1)
        sweeper = Sweeper(store, ChainReader(store, "run"), settings, Metrics())
        return sweeper

    def _stand(self, sweeper: Sweeper, operation: str) -> None:
        """A sweeper is about to ask the store; it may be left standing here."""
        chance = 0.5 if operation == "delete" else 0.02
        if self._standing is not None or self.random.random() > chance:
            return
        self._standing = sweeper
        self.go_on(self.random.randrange(1, 12))
        self._standing = None

    def go_on(self, events: int) -> None:
        for at in range(events):
            if at % STRETCH == 0:
                weights = self.random.choice(MOODS)
            (happens,) = self.random.choices([self.write, self.keep, self.wait, self.sweep], weights)
            happens()
            self.check()

    def wait(self) -> None:
        self.clock.advance(self.random.choice([1.0, LEASE_S / 2, LEASE_S + 1, LEASE_S * 3]))

    def sweep(self) -> None:
        try:
            swept = self.random.choice([s for s in self.sweepers if s is not self._standing]).sweep()
        except ChainBroken:
            return  # the other one took a manifest between this one's listing and reading
        self.counts["collected"] += swept.deleted
        self.counts["held"] += swept.held

    def write(self) -> None:
        """One step of the publish on its way; or a new one; or the writer falls asleep and another one takes over."""
        chance = self.random.random()
        if chance < 0.05 and self.publishing is not None:
            self.asleep.append(self.publishing)
            self.writer, self.publishing = self._publisher(on=self.store), None
        elif chance < 0.15 and self.asleep:
            sleeper = self.asleep[self.random.randrange(len(self.asleep))]
            self.counts["woke up"] += 1
            if self._goes_on(sleeper) is None:
                self.asleep.remove(sleeper)
        else:
            if self.publishing is None:
                weights = self._source.step()
                some = dict(list(weights.items())[:5]) if self.random.random() < 0.15 else weights
                self.publishing = self.writer.publish_steps(some)
            if self._goes_on(self.publishing) is None:
                self.publishing = None

    def keep(self) -> None:
        if self.keeping is None:
            self.keeping = self.keeper.steps()
        try:
            next(self.keeping)
        except StopIteration as end:
            self.keeping = None
            self.counts["kept"] += end.value is not None
        except (StoreUnavailable, ChainBroken, Corrupt):
            self.keeping = None

    def _goes_on(self, steps: Steps[Any]) -> str | None:
        """Where the publish came to; None when it has ended."""
        try:
            return next(steps)
        except StopIteration:
            self.counts["published"] += 1
        except Fenced:
            self.counts["fenced"] += 1
        except (StoreUnavailable, ChainBroken):
            self.counts["failed"] += 1
        return None

    def check(self) -> None:
        """Whoever starts from the newest usable anchor comes to head."""
        reader = self._reader
        there = {info.key for info in self.store.list_after("")}
        bases = {version: reader.manifest(version).base for version in reader.versions()}
        anchors = {v for v in reader.anchors() if v in bases and self._usable(reader, v, there)}
        needed: set[str] = set()
        walked = walk_down(ChainMap(bases, frozenset(anchors)))
        for version in walked:
            needed |= version_keys(reader, version)
            if version in anchors:
                break
        else:
            assert [] == walked, f"no usable anchor on the way down from {max(bases, default=None)}"
        assert set() == needed - there

    def _usable(self, reader: ChainReader, version: int, there: set[str]) -> bool:
        return anchor_files(reader.keys, version, reader.anchor(version).body) <= there


@pytest.fixture
def world_of(tmp_path: Path, clock: ManualClock, publisher: Make, trainer: Any) -> Callable[[int], World]:
    return lambda seed: World(seed, tmp_path / f"keeper-{seed}", clock, publisher, trainer)


@pytest.mark.parametrize("seed", range(20))
def test_no_sweeper_takes_what_a_writer_comes_to_need_however_long_either_stands_still(
    world_of: Callable[[int], World], seed: int
) -> None:
    world_of(seed).go_on(EVENTS)


def test_the_runs_meet_what_they_are_meant_to_meet(world_of: Callable[[int], World]) -> None:
    counts: Counter[str] = Counter()
    for seed in range(20, 24):
        world = world_of(seed)
        world.go_on(EVENTS)
        counts += world.counts
    assert {"published", "collected", "held", "woke up", "fenced", "kept"} <= counts.keys()
