"""A whole replica in one process: the node's parts and live weights that nobody generates from.

For tools that follow a run without serving it, and for tests and simulations: nothing here starts a thread or reads a clock by itself,
so a seeded scheduler drives as many replicas as it likes by calling their ticks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from structlog.typing import FilteringBoundLogger

from syncline.checkpoint import Checkpoint
from syncline.clock import Clock
from syncline.errors import CheckpointBusy, EngineUnavailable, SourceNotReady
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.versions import Policy
from syncline_agent.arm.inprocess import InProcessEngine
from syncline_agent.arm.live import LiveWeights
from syncline_agent.engine import Applied, CommitResult, EngineDescription, StageRequest, StageResult
from syncline_agent.fetch import Source
from syncline_agent.process import Node
from syncline_agent.settings import AgentSettings


class EngineSlot:
    """The place of an engine that comes and goes, as a socket is: without one every call is EngineUnavailable."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.engine: InProcessEngine | None = None

    def load(self, checkpoint: Checkpoint) -> None:
        """Start an engine from a checkpoint. SourceNotReady while it holds no version; DigestMismatch for other weights."""
        with checkpoint.reading():
            marker = checkpoint.marker
            assert marker is not None
            tensors = {spec.name: np.array(checkpoint.units(spec.name)) for spec in checkpoint.table.tensors}
            live = LiveWeights(checkpoint.table, marker.tiling.tiling, tensors, clock=self._clock)
        self.engine = InProcessEngine(live, clock=self._clock)
        live.prove(marker.lineage, marker.view, marker.version, marker.digest)

    @property
    def _there(self) -> InProcessEngine:
        if self.engine is None:
            raise EngineUnavailable("no engine was started here")
        return self.engine

    def describe(self) -> EngineDescription:
        return self._there.describe()

    def stage(self, request: StageRequest) -> StageResult:
        return self._there.stage(request)

    def commit(self, target: int, policy: Policy) -> CommitResult:
        return self._there.commit(target, policy)

    def undo(self, version: int, policy: Policy = Policy.KEEP) -> CommitResult:
        return self._there.undo(version, policy)

    def discard(self) -> None:
        self._there.discard()

    def sweep(self) -> Applied:
        return self._there.sweep()


class Replica:
    """One node and its engine, each of which can be killed and started again by itself."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        sources: Sequence[Source],
        consumers: WeightStore,
        clock: Clock,
        random: random.Random,
        log: FilteringBoundLogger,
        metrics: Metrics | None = None,
    ) -> None:
        self.settings = settings
        self._sources = sources
        self._consumers = consumers
        self._clock = clock
        self._random = random
        self._log = log
        self._metrics = metrics
        self.slot = EngineSlot(clock)
        self.node = self._fresh_node()

    def _fresh_node(self) -> Node:
        return Node(
            self.settings,
            self.slot,
            sources=self._sources,
            consumers=self._consumers,
            clock=self._clock,
            random=self._random,
            metrics=self._metrics or Metrics(),
            log=self._log,
        )

    def restart_agent(self) -> None:
        """What kill -9 and a new start of the agent leave: the node's files, and the engine as it was."""
        self.node = self._fresh_node()

    def stop_engine(self) -> None:
        self.slot.engine = None

    def start_engine(self) -> bool:
        """Load an engine from the node checkpoint; False while there is none, or somebody writes it."""
        try:
            self.slot.load(Checkpoint.open(self.node.checkpoint.path))
        except (SourceNotReady, CheckpointBusy):
            return False
        return True

    @property
    def live(self) -> LiveWeights | None:
        return self.slot.engine.live if self.slot.engine is not None else None

    @property
    def serving(self) -> Applied | None:
        """What is served and proven; None while nothing is."""
        live = self.live
        return live.applied if live is not None and live.in_service else None
