"""A fleet in one process under one seeded scheduler: trainer, keeper, retention, replicas, and a store that fails.

Everything that happens is an event of an actor: the scheduler takes the actor that is due next, lets it do one step and asks when it
wants to come again. Clocks, randomness and faults come from the seed, so a run is replayed by its seed alone. After every event the fleet
checks what must always hold; after the last one faults end, and it checks what must come true in the end.

`SYNCLINE_SEEDS=5000 pytest tests/simulation` runs more of it.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from syncline import faults
from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.delta import digest_tensor
from syncline.errors import Fenced, NotFound, SynclineError
from syncline.metrics import Metrics
from syncline.store.faulty import Fault, FaultKind, FaultyStore, RandomFaults
from syncline.store.memory import MemoryStore
from syncline.wire.digest import total
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.fetch import Source
from syncline_agent.policy import Target, encode_target
from syncline_agent.replica import Replica
from syncline_agent.settings import AgentSettings, FollowSettings
from syncline_agent.testing.bits import stores_of
from syncline_distributor.keeper import Keeper
from syncline_distributor.publisher import Publisher
from syncline_distributor.settings import AnchorSettings, PublishSettings, RetentionSettings
from syncline_distributor.sweeper import Sweeper
from syncline_distributor.vetoes import mark_bad, unmark
from syncline_distributor.weights import mapping_weights

SHAPES = {"embed.weight": (24, 16), "layers.0.o_proj.weight": (24, 24), "layers.0.norm.weight": (33,)}
CHANCES = {
    FaultKind.UNAVAILABLE: 0.03,
    FaultKind.LOST_REPLY: 0.02,
    FaultKind.FLIPPED: 0.02,
    FaultKind.TRUNCATED: 0.01,
    FaultKind.DELAY: 0.02,
    FaultKind.FULL: 0.01,
}
CALM_SECONDS = 900.0
"""How long the fleet may take to converge once faults have ended."""
SCATTER = {"apply.scattering", "apply.scattered"}


class Killed(BaseException):
    """The process died here. No `except Exception` of the code under test may stop it."""


class Skewed:
    """A machine's clock: its wall clock is off by `offset`."""

    def __init__(self, clock: ManualClock, offset: float) -> None:
        self._clock = clock
        self._offset = offset

    def now(self) -> float:
        return self._clock.now() + self._offset

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.advance(seconds)


@dataclass(order=True)
class Actor:
    """Who is due when; `step` returns the seconds until it wants to come again."""

    due: float
    order: int
    name: str = field(compare=False)
    step: Callable[[], float] = field(compare=False)


class Weather:
    """Faults that can be ended."""

    def __init__(self, seed: random.Random) -> None:
        self._random = RandomFaults(seed, CHANCES, delay_s=2.0)
        self.calm = False

    def draw(self, operation: str, key: str) -> Fault | None:
        return None if self.calm else self._random.draw(operation, key)


class Fleet:
    """One seed's world."""

    def __init__(self, folder: Path, seed: int, *, replicas: int = 3) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.bits = np.random.default_rng(seed)
        self.clock = ManualClock()
        self.store = MemoryStore(Skewed(self.clock, self.random.uniform(-1e6, 1e6)))
        self.weather = Weather(self._stream())
        self.truth = ChainReader(self.store, "run")
        self.weights = {n: self.bits.integers(0, 2**16, s, dtype=np.uint16) for n, s in SHAPES.items()}
        self.tried: set[str] = set()
        """Digests of everything that the trainer ever wanted published."""
        self.calm = False
        self.trace = hashlib.sha256()
        self.events = 0
        self.counts: dict[str, int] = {}
        self._order = 0
        self._actors: list[Actor] = []
        self._publishing: Any = None
        self.publisher = self._new_publisher()
        self._add("trainer", self._train)
        self._add("keeper", self._keep)
        self._add("retention", self._collect)
        self._add("vetoer", self._veto)
        self.replicas = [self._new_replica(i) for i in range(replicas)]
        self._keeper: Keeper | None = None
        self._keeping: Any = None
        self._sweeper: Sweeper | None = None

    def _stream(self) -> random.Random:
        return random.Random(self.random.getrandbits(64))

    def _faulty(self) -> FaultyStore:
        return FaultyStore(self.store, self.weather, clock=self.clock, rng=self._stream())

    def _add(self, name: str, step: Callable[[], float]) -> None:
        self._order += 1
        heapq.heappush(self._actors, Actor(self.clock.monotonic() + self.random.random(), self._order, name, step))

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- the writer's side

    def _new_publisher(self) -> Publisher:
        return Publisher(
            self._faulty(),
            "run",
            settings=PublishSettings(tiling=Tiling(64, 256, 4)),
            clock=Skewed(self.clock, self.random.uniform(-100, 100)),
            random=self._stream(),
        )

    def _train(self) -> float:
        if self._publishing is None:
            if self.calm:
                return 5.0
            for weights in self.weights.values():
                flat = weights.reshape(-1)
                places = self.bits.choice(flat.size, int(self.bits.integers(0, 6)), replace=False)
                flat[places] ^= self.bits.integers(1, 2**16, places.size, dtype=np.uint16)
            source = mapping_weights({n: w.copy() for n, w in self.weights.items()})
            self.tried.add(total(digest_tensor(s, source.units(i)) for i, s in enumerate(source.table.tensors)).hex)
            self._publishing = self.publisher.publish_steps(source)
        if not self.calm and self.random.random() < 0.05:
            self._publishing.close()
            self._publishing, self.publisher = None, self._new_publisher()
            self.count("trainer killed")
            return self.random.uniform(1, 20)
        try:
            next(self._publishing)
            return self.random.uniform(0, 0.3)
        except StopIteration:
            self._publishing = None
            self.count("published")
            return self.random.uniform(1, 15)
        except Fenced:
            self._publishing, self.publisher = None, self._new_publisher()
            self.count("fenced")
        except SynclineError:
            self._publishing = None
            self.count("publish failed")
        return self.random.uniform(0.5, 3)

    def _keep(self) -> float:
        try:
            if self._keeper is None:
                settings = AnchorSettings(anchor_every=6, anchor_ratio=0, skip_every=2)
                store = self._faulty()
                self._keeper = Keeper(
                    store,
                    ChainReader(store, "run"),
                    settings,
                    self.folder / "keeper",
                    self.clock,
                    self._stream(),
                    Metrics(),
                )
            self._keeping = self._keeping or self._keeper.steps()
            next(self._keeping)
        except StopIteration as done:
            self._keeping = None
            self.count("kept" if done.value is not None else "kept nothing")
            return self.random.uniform(2, 8)
        except SynclineError:
            self._keeping = None
            self.count("keeper failed")
        return self.random.uniform(0, 2)

    def _collect(self) -> float:
        oldest = self.truth.versions()[:1]
        try:
            if self._sweeper is None:
                store = self._faulty()
                settings = RetentionSettings(lease_period_s=60.0, keep_anchors=1)
                self._sweeper = Sweeper(store, ChainReader(store, "run"), settings, Metrics())
            self._sweeper.sweep()
        except SynclineError:
            self.count("sweep failed")  # it may have deleted before that
        if oldest != self.truth.versions()[:1]:
            self.count("collected")
        return self.random.uniform(10, 40)

    def _veto(self) -> float:
        try:
            vetoed = self.truth.vetoes()
            head = self.truth.listed_head()
            if head is not None and not self.calm:
                if vetoed and self.random.random() < 0.6:
                    unmark(self.truth, self.random.choice(sorted({mark.version for mark in vetoed.values()})))
                elif self.random.random() < 0.5:
                    mark_bad(
                        self.truth, max(1, head.version - self.random.randrange(2)), "reward fell", clock=self.clock
                    )
                    self.count("vetoed")
        except NotFound:
            pass  # no run yet, or the version was collected
        return self.random.uniform(20, 80)

    # --- the readers' side

    def _new_replica(self, index: int) -> Replica:
        folder = self.folder / f"node-{index}"
        folder.mkdir()
        settings = AgentSettings(
            stores=["memory:"],
            target=folder / "target.json",
            node_dir=folder / "node",
            node=f"node-{index}",
            follow=FollowSettings(advance_every=self.random.choice((1, 3, 8))),
        )
        settings.target.write_text(encode_target(Target("run")))
        store = self._faulty()
        replica = Replica(
            settings,
            sources=[Source("origin", store)],
            consumers=store,
            clock=Skewed(self.clock, self.random.uniform(-1e5, 1e5)),
            random=self._stream(),
            log=structlog.get_logger(),
        )
        name = settings.node
        self._add(f"{name} follower", lambda: self._perhaps_killed(replica, replica.node.follower.tick))
        self._add(f"{name} heart", lambda: replica.node.heart.tick())
        self._add(f"{name} background", lambda: self._perhaps_killed(replica, replica.node.background.tick))
        self._add(f"{name} engine", lambda: self._engine(replica))
        self._add(f"{name} operator", lambda: self._operate(replica))
        return replica

    def _perhaps_killed(self, replica: Replica, tick: Callable[[], float]) -> float:
        """Run a tick; sometimes the process dies at the n-th kill point that it comes to."""
        left = self.random.randrange(1, 6) if not self.calm and self.random.random() < 0.1 else 0

        def hook(point: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.count(f"killed at {point}")
                raise Killed(point)

        faults.install_hook(hook)
        try:
            return tick()
        except Killed as killed:
            if str(killed) in SCATTER:
                replica.stop_engine()
            replica.restart_agent()
            return self.random.uniform(0, 5)
        finally:
            faults.install_hook(None)

    def _engine(self, replica: Replica) -> float:
        live = replica.live
        if live is None:
            try:
                replica.start_engine()
            except SynclineError:
                self.count("engine refused its checkpoint")
        elif not self.calm and self.random.random() < 0.05:
            replica.stop_engine()
            self.count("engine killed")
        elif not self.calm and self.random.random() < 0.05:
            units = stores_of(live)[self.random.randrange(len(live.table.tensors))]
            units[self.random.randrange(units.size)] ^= 1 << self.random.randrange(16)
            self._sweep(replica)  # what no sweep has looked at is not promised
            self.count("bit flipped")
        else:
            self._sweep(replica)
        return self.random.uniform(1, 20)

    def _sweep(self, replica: Replica) -> None:
        try:
            replica.slot.sweep()
        except SynclineError:
            self.count("sweep found damage")

    def _operate(self, replica: Replica) -> float:
        head = (
            self.truth.listed_head()
            if self.truth.store.list_after("run/run.json") and self.counts.get("published")
            else None
        )
        pinned = None
        if head is not None and not self.calm and self.random.random() < 0.4:
            pinned = self.random.randrange(max(1, head.version - 4), head.version + 2)
        suspend = not self.calm and self.random.random() < 0.1
        replica.settings.target.write_text(encode_target(Target("run", pinned=pinned, suspend=suspend)))
        return self.random.uniform(20, 60)

    # --- running and checking

    def run(self, events: int) -> None:
        """Let that many things happen."""
        for _ in range(events):
            actor = heapq.heappop(self._actors)
            self.clock.advance(max(0.0, actor.due - self.clock.monotonic()))
            delay = actor.step()
            actor.due = self.clock.monotonic() + max(delay, 0.001)
            heapq.heappush(self._actors, actor)
            self.events += 1
            self._check(actor)

    def _check(self, actor: Actor) -> None:
        serving = []
        for replica in self.replicas:
            applied = replica.serving
            serving.append(applied and applied.version)
            if applied is not None:
                assert memory_digest(replica) == applied.digest, (
                    f"{actor.name}: {replica.settings.node} claims {applied}"
                )
                assert applied.digest in self.tried, f"{actor.name}: {applied} was never published"
        self.trace.update(repr((actor.name, round(self.clock.now(), 6), serving)).encode())

    def settle(self) -> int:
        """End all faults, follow head, and let everybody converge; returns head."""
        self.calm = self.weather.calm = True
        end = self.clock.monotonic() + CALM_SECONDS
        while self.clock.monotonic() < end:
            for replica in self.replicas:
                replica.settings.target.write_text(encode_target(Target("run")))
            for version in self.truth.vetoes():
                unmark(self.truth, version)
            self.run(50)
            head = self.truth.listed_head()
            assert head is not None
            if self._publishing is None and all(
                r.serving is not None and r.serving.version == head.version for r in self.replicas
            ):
                for replica in self.replicas:
                    assert head.digest == memory_digest(replica)
                return head.version
        states = [r.node.reporter.status for r in self.replicas]
        raise AssertionError(
            f"no convergence: {[(s.phase, s.applied, s.target, s.error) for s in states]} {self.counts}"
        )


def memory_digest(replica: Replica) -> str:
    """Digest of the bits in the engine's memory, whatever anybody's books say."""
    live = replica.live
    assert live is not None
    table: TensorTable = live.table
    return total(digest_tensor(spec, stores_of(live)[i]) for i, spec in enumerate(table.tensors)).hex


@pytest.fixture
def fleet_of(tmp_path: Path) -> Callable[[int], Fleet]:
    """Makes a fleet from a seed."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    made: list[Fleet] = []

    def make(seed: int) -> Fleet:
        folder = tmp_path / f"{len(made)}"
        folder.mkdir()
        made.append(Fleet(folder, seed))
        return made[-1]

    return make
