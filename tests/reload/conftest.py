"""A run in a store, a node that follows it by its engine's reload route, and a clock moved by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import structlog

from syncline.chain import ChainReader
from syncline.checkpoint import materialize
from syncline.clock import ManualClock
from syncline.metrics import Metrics
from syncline.store.memory import MemoryStore
from syncline.testing.stored_runs import StoredRun
from syncline.testing.vllm_routes import VllmStandIn
from syncline_agent.engine import Crossing
from syncline_agent.fetch import Source
from syncline_agent.policy import Target, encode_target
from syncline_agent.process import Node
from syncline_agent.reload.base import Reloading
from syncline_agent.reload.engine import Place, ReloadEngine
from syncline_agent.reload.routes import Routes, RouteTimeouts
from syncline_agent.reload.vllm import VllmReloading
from syncline_agent.settings import AgentSettings, FollowSettings
from syncline_agent.status import Phase, Status

QUICK = RouteTimeouts(look_s=5, pause_s=5, drain_s=5, load_s=5, checks_s=5)


class World:
    """One run in one store, one node, one engine that reloads."""

    def __init__(self, folder: Path, client: httpx.Client, server: VllmStandIn) -> None:
        self.folder = folder
        self.client = client
        self.server = server
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.run = StoredRun(self.store)
        self.run.first()
        self.random = random.Random(1)
        self.serve_unproven = False
        self.seen_as: Path | None = None
        self.node_dir = folder / "node"
        self.told: list[tuple[Crossing, bool]] = []
        """Every change of version, and whether the engine was paused when it was told."""
        self.reloading: Reloading = VllmReloading(Routes(server.url, client), QUICK)
        self.aim()

    def start_agent(self) -> Node:
        """A new agent on the node's files."""
        self.log = structlog.get_logger()
        self.engine = ReloadEngine(
            self.reloading,
            Place("pool", "pod", self.node_dir, self.seen_as),
            clock=self.clock,
            witness=lambda crossing: self.told.append((crossing, self.server.paused)),
            log=self.log,
        )
        settings = AgentSettings(
            stores=["memory:"],
            target=self.folder / "target.json",
            node_dir=self.node_dir,
            follow=FollowSettings(serve_unproven=self.serve_unproven),
        )
        self.node = Node(
            settings,
            self.engine,
            sources=[Source("origin", self.store)],
            consumers=self.store,
            clock=self.clock,
            random=self.random,
            metrics=Metrics(),
            log=self.log,
        )
        return self.node

    def aim(self, pinned: int | None = None) -> None:
        generation = getattr(self, "generation", 0) + 1
        self.generation = generation
        (self.folder / "target.json").write_text(encode_target(Target("run", pinned=pinned, generation=generation)))

    def start_engine(self, version: int = 1) -> None:
        """An engine of a checkpoint that this node knows nothing of."""
        folder = self.folder / f"elsewhere-{version}"
        if not folder.exists():
            materialize(ChainReader(self.store, "run"), version, folder, streams=1)
        self.server.restart(folder)

    def follow(self, version: int, *, ticks: int = 60) -> Status:
        """Tick until the version is applied and nothing is to be done."""
        for _ in range(ticks):
            self.clock.advance(self.node.follower.tick())
            status = self.node.reporter.status
            applied, unprovable = status.applied, status.engine and status.engine.unprovable
            if applied is None or not (applied.proven or unprovable) or status.phase is not Phase.IDLE:
                continue
            if (applied.version, status.target, status.failures) == (version, version, 0):
                return status
        pytest.fail(f"version {version} was not reached: {self.node.reporter.status}")

    def rest(self, version: int) -> Status:
        """`follow`, and one look more at what it has come to."""
        self.follow(version)
        self.clock.advance(self.node.follower.tick())
        return self.node.reporter.status

    def holds(self, version: int) -> bool:
        """Whether the engine's weights are the version's, by bytes."""
        return self.server.weights == {name: units.tobytes() for name, units in self.run.weights[version].items()}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with httpx.Client(trust_env=False) as client, VllmStandIn() as server:
        world = World(tmp_path, client, server)
        world.start_engine()
        world.start_agent()
        yield world
