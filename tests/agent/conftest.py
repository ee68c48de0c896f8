"""A store, a trainer that publishes into it, and replicas that follow, all in one process under a clock moved by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from syncline.chain import ChainReader
from syncline.checkpoint import materialize
from syncline.clock import ManualClock
from syncline.delta import digest_tensor
from syncline.store.base import WeightStore
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.memory import MemoryStore
from syncline.wire.digest import total
from syncline.wire.records import AnchorManifest
from syncline.wire.tiling import Tiling
from syncline_agent.fetch import Source
from syncline_agent.policy import Target, encode_target
from syncline_agent.replica import Replica
from syncline_agent.settings import AgentSettings, FollowSettings
from syncline_agent.status import Status
from syncline_agent.testing.bits import stores_of
from syncline_distributor.publisher import Publisher
from syncline_distributor.settings import PublishSettings
from syncline_distributor.whole import BodyWriter

SHAPES = {"embed.weight": (40, 16), "layers.0.o_proj.weight": (24, 24), "layers.0.norm.weight": (33,)}


class World:
    """One run in one store."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.folder = folder
        self.rng = np.random.default_rng(seed)
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.store_clock = ManualClock(self.clock.now() - 1234.5)
        """The store's clock disagrees with the node's on purpose."""
        self.store = MemoryStore(self.store_clock)
        self.weights = {n: self.rng.integers(0, 2**16, s, dtype=np.uint16) for n, s in SHAPES.items()}
        self.publisher = self.new_publisher()
        self.reader = ChainReader(self.store, "run")

    def new_publisher(self) -> Publisher:
        settings = PublishSettings(tiling=Tiling(64, 256, 4))
        return Publisher(self.store, "run", settings=settings, clock=self.clock, random=self.random)

    def publish(self, count: int = 1) -> int:
        """Publish versions that change a few weights each; returns the newest."""
        version = 0
        for _ in range(count):
            for flat in (w.reshape(-1) for w in self.weights.values()):
                places = self.rng.choice(flat.size, 5, replace=False)
                flat[places] ^= self.rng.integers(1, 2**16, 5, dtype=np.uint16)
            version = self.publisher.publish(self.weights).version
        return version

    def anchor(self, version: int) -> Callable[[], None]:
        """Bring the files of an anchor of a version into the store; calling what is returned commits it."""
        manifest = self.reader.manifest(version)
        checkpoint = materialize(ChainReader(self.store, "run"), version, self.folder / f"anchor-{version}", streams=1)
        nonce = f"{version:032x}"
        body = BodyWriter(self.store, self.reader.keys, spool=None, max_shard_bytes=1 << 30).write(
            version,
            nonce,
            table=checkpoint.table,
            read=lambda tensor: checkpoint.units(checkpoint.table.tensors[tensor].name),
            files={},
        )
        anchor = AnchorManifest(
            run=manifest.run,
            lineage=manifest.lineage,
            view=manifest.view,
            version=version,
            digest=manifest.digest,
            writer=nonce,
            nonce=nonce,
            created_ms=0,
            manifest=manifest.identity(),
            anchor=body,
        )

        def commit() -> None:
            self.store.put(self.reader.keys.anchor(version), anchor.encode())

        return commit

    def scripted(self, *script: tuple[str, str, FaultKind]) -> FaultyStore:
        """The store with faults of its operations on keys that hold a part, each once and in order."""
        faults = ScriptedFaults([(operation, part, Fault(kind)) for operation, part, kind in script])
        return FaultyStore(self.store, faults, clock=self.clock, rng=random.Random(1))

    def digest(self, version: int) -> str:
        return self.reader.manifest(version).digest

    def replica(
        self,
        name: str = "node-0",
        *,
        target: Target | None = None,
        stores: dict[str, WeightStore] | None = None,
        consumers: WeightStore | None = None,
        follow: FollowSettings | None = None,
    ) -> Replica:
        folder = self.folder / name
        folder.mkdir()
        settings = AgentSettings(
            stores=["memory:"],
            target=folder / "target.json",
            node_dir=folder / "node",
            node=name,
            follow=follow or FollowSettings(),
        )
        settings.target.write_text(encode_target(target or Target("run", generation=1)))
        sources = [Source(n, s) for n, s in (stores or {"origin": self.store}).items()]
        return Replica(
            settings,
            sources=sources,
            consumers=consumers or sources[-1].store,
            clock=self.clock,
            random=random.Random(self.random.random()),
            log=structlog.get_logger(),
        )

    def aim(self, replica: Replica, **changes: Any) -> None:
        """Edit the replica's target file."""
        path = replica.settings.target
        self.targets = getattr(self, "targets", 1) + 1
        current = Target("run", generation=self.targets)
        path.write_text(encode_target(replace(current, **changes)))

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.store_clock.advance(seconds)

    def run(self, replica: Replica, until: Callable[[Status], bool], *, seconds: float = 300.0) -> Status:
        """Tick follower and heart until `until` holds; an engine starts as soon as it can."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.pass_time(replica.node.follower.tick())
            replica.node.heart.tick()
            if replica.live is None:
                replica.start_engine()
            status = replica.node.reporter.status
            if until(status):
                return status
        pytest.fail(f"not within {seconds} s: {replica.node.reporter.status}")

    def follow(self, replica: Replica, version: int, *, seconds: float = 300.0) -> Status:
        """Run until the replica serves `version`, proven, and check its bits against the trainer's digest."""
        status = self.run(
            replica,
            lambda s: s.in_service and s.applied is not None and s.applied.version == version and s.lag_versions == 0,
            seconds=seconds,
        )
        assert self.digest(version) == memory_digest(replica)
        return status


def memory_digest(replica: Replica) -> str:
    """Digest of the bits in the engine's memory, computed by nobody's bookkeeping."""
    live = replica.live
    assert live is not None
    return total(digest_tensor(s, stores_of(live)[i]) for i, s in enumerate(live.table.tensors)).hex


@pytest.fixture
def world(tmp_path: Path) -> World:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    return World(tmp_path)
