"""An engine of several ranks as its agent meets it over a real socket: ranks that hold parts, and a gate that holds none.

For tests of islands. Its gate keeps the order of its calls and can be made to break at one of them; a rank's memory can be
held against a version's weights.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from syncline import faults
from syncline.clock import SystemClock
from syncline.errors import EngineUnavailable
from syncline.testing.weight_run import WeightRun, Weights
from syncline.versions import Policy
from syncline_agent.arm import messages
from syncline_agent.arm.client import ArmClient, ArmIdentity, Backoff
from syncline_agent.arm.committing import ArmTimeouts
from syncline_agent.arm.gate import Gate, OpenGate
from syncline_agent.arm.host_memory import HostMemory, Units
from syncline_agent.arm.layout import Block, Layout, row_major, shape_of
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.server import ArmServer

QUICK = Backoff(0.01, 0.05)
TIMES = ArmTimeouts(stage_s=60, ready_s=5, scatter_s=5, other_s=5)
WAIT_S = 10.0
HELLO = messages.Hello(
    protocol=messages.PROTOCOL,
    engine="e",
    pool="p",
    pod="o",
    rank=0,
    ranks=1,
    gate=True,
    token="t",
    instance=None,
    holds=None,
    state=messages.State(applied=None, error=None, failed=None),
)


class ScriptedGate(OpenGate):
    """An engine with one request in flight."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.calls: list[str] = []
        self.breaks: dict[str, Callable[[], object]] = {}
        """By call: done once, in its place."""
        self.serves: int | None = None
        """The version that requests are let in to."""
        self.is_open = False
        """It serves as without an agent."""
        self.stands = self.withholds = False
        self.released = threading.Event()

    def _called(self, call: str, said: object = "") -> None:
        self.calls.append(f"{call} {said}".rstrip())
        self.breaks.pop(call, lambda: None)()

    def hold(self, policy: Policy) -> Mapping[str, int]:
        self._called("hold", policy)
        super().hold(policy)
        return {"request-0": 3}

    def write(self) -> None:
        self._called("write")
        self.stands = True

    def resume(self, version: int) -> float:
        self._called("resume", version)
        assert self.stands
        self.stands, self.withholds = False, True
        self.serves = version if self.serves is not None else None
        return super().resume(version)

    def publish(self) -> None:
        self._called("publish")
        self.withholds = False

    def release(self) -> None:
        self.released.set()

    def fail(self, reason: str) -> None:
        self._called("fail")
        self.stands, self.withholds, self.serves, self.is_open = False, False, None, False

    def prove(self, version: int) -> None:
        self._called("prove", version)
        assert not self.stands
        self.withholds, self.serves, self.is_open = False, version, False

    def open(self) -> None:
        self._called("open")
        self.is_open = True


@dataclass
class IslandRank:
    """One rank and what lies in its memory."""

    layout: Layout
    live: LiveWeights
    stores: list[Units]
    client: ArmClient

    def holds(self, weights: Weights) -> bool:
        return all(np.array_equal(s, b) for s, b in zip(self.stores, slices(self.layout, weights), strict=True))


@dataclass
class WholeRank:
    """A rank that holds the view whole, and its memory by tensor."""

    client: ArmClient
    live: LiveWeights
    memory: Weights

    def holds(self, weights: Weights) -> bool:
        return all(np.array_equal(self.memory[name], units) for name, units in weights.items())


@dataclass
class IslandEngine:
    """All ranks, and a gate in a process of its own."""

    ranks: list[IslandRank]
    gate: ScriptedGate
    client: ArmClient
    """The gate's."""

    def holds(self, weights: Weights) -> bool:
        return all(rank.holds(weights) for rank in self.ranks)


class Islands:
    """Starts the arms of one pod's engine at a node's socket; `stop` ends them all."""

    def __init__(self, run: WeightRun, node: Path, cut: Mapping[str, int]) -> None:
        """`cut`: the axis that ranks share a tensor along; of any other each holds a copy."""
        self._run, self._node, self._cut = run, node, cut
        self._clients: list[ArmClient] = []

    def stop(self) -> None:
        for client in self._clients:
            client.stop()

    def layout_of(self, rank: int, ranks: int) -> Layout:
        """Bands of what is cut, copies of the rest; each lies in a store of its own."""
        blocks: list[Block] = []
        for tensor, spec in enumerate(self._run.table.tensors):
            shape = shape_of(spec)
            start, size, axis = [0] * len(shape), list(shape), self._cut.get(spec.name)
            if axis is not None:
                low, high = (shape[axis] * n // ranks for n in (rank, rank + 1))
                start[axis], size[axis] = low, high - low
            if spec.units:
                blocks.append(Block(tensor, tuple(start), tuple(size), len(blocks), 0, row_major(size)))
        return Layout.of(self._run.table, blocks)

    def join(
        self,
        rank: int,
        ranks: int,
        *,
        layout: Layout | None = None,
        version: int = 1,
        gate: Gate | None = None,
        instance: str | None = None,
        spoil: Callable[[list[Units]], None] = lambda stores: None,
    ) -> IslandRank:
        """Start a rank; `spoil` is done to its stores after they were loaded."""
        run, layout = self._run, layout or self.layout_of(rank, ranks)
        stores = slices(layout, run.weights(version))
        spoil(stores)
        memory = HostMemory(layout, run.tiling.tiling, stores, loaded=run.weights(version).__getitem__)
        live = LiveWeights(run.table, run.tiling.tiling, memory)
        live.prove(run.lineage, "main", version, run.digest(version))
        return IslandRank(layout, live, stores, self.connect(rank, ranks, live, gate, instance=instance))

    def join_whole(
        self, rank: int = 0, ranks: int = 1, *, gate: Gate | None = None, version: int = 1, pod: str = "pod"
    ) -> WholeRank:
        """Start a rank that holds everything; the first one is the engine's gate as well."""
        run, memory = self._run, self._run.copy(version)
        live = LiveWeights(run.table, run.tiling.tiling, memory)
        live.prove(run.lineage, "main", version, run.digest(version))
        both = gate or (ScriptedGate() if rank == 0 else None)
        return WholeRank(self.connect(rank, ranks, live, both, pod=pod), live, memory)

    def join_gate(self, ranks: int, *, instance: str | None = None) -> tuple[ScriptedGate, ArmClient]:
        gate = ScriptedGate()
        return gate, self.connect(None, ranks, None, gate, instance=instance)

    def start(self, ranks: int, *, instance: str | None = None) -> IslandEngine:
        """A whole engine."""
        gate, client = self.join_gate(ranks, instance=instance)
        return IslandEngine([self.join(rank, ranks, instance=instance) for rank in range(ranks)], gate, client)

    def connect(
        self,
        rank: int | None,
        ranks: int,
        live: LiveWeights | None,
        gate: Gate | None,
        *,
        refusal: str | None = None,
        pod: str = "pod",
        instance: str | None = None,
    ) -> ArmClient:
        """Start an arm, whatever it is."""
        client = ArmClient(
            self._node / "arm.sock",
            ArmIdentity("test", "pool", pod, rank, ranks, instance),
            live,
            gate,
            refusal=refusal,
            randomness=random.Random(99 if rank is None else rank),
            backoff=QUICK,
        )
        client.start()
        self._clients.append(client)
        return client


def slices(layout: Layout, weights: Weights) -> list[Units]:
    """What the blocks' stores hold at these weights."""
    found: list[Units] = []
    for block in (b for held in layout.blocks for b in held):
        spec = layout.table.tensors[block.tensor]
        box = tuple(slice(start, start + size) for start, size in zip(block.start, block.size, strict=True))
        found.append(weights[spec.name].reshape(shape_of(spec))[box].reshape(-1).copy())
    return found


def silence(server: ArmServer) -> str:
    """Why there is no engine to be called; empty when there is one."""
    try:
        server.describe()
    except EngineUnavailable as error:
        return str(error)
    return ""


def described_error(server: ArmServer) -> str | None:
    try:
        return server.describe().error
    except EngineUnavailable:
        return None


def described_version(server: ArmServer) -> int | None:
    try:
        applied = server.describe().applied
    except EngineUnavailable:
        return None
    return applied.version if applied else None


def is_proven(server: ArmServer, version: int) -> bool:
    """Whether the agent would serve it."""
    try:
        described = server.describe()
    except EngineUnavailable:
        return False
    applied = described.applied
    return described.error is None and applied is not None and (version, True) == (applied.version, applied.proven)


def wait_until(true: Callable[[], bool]) -> None:
    """AssertionError when it does not come to be in time."""
    pause = threading.Event()
    for _ in range(int(WAIT_S * 100)):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError(f"it did not happen within {WAIT_S:g} seconds")


@contextmanager
def breaking_once(point: str, error: Exception) -> Iterator[None]:
    """Whichever rank comes to `point` first meets `error` there; the others pass."""
    broken = threading.Event()

    def break_first(reached: str) -> None:
        if reached == point and not broken.is_set():
            broken.set()
            raise error

    faults.install_hook(break_first)
    try:
        yield
    finally:
        faults.install_hook(None)
