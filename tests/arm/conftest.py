"""A run of odd-shaped tensors of every unit width, and ways to hold and to ask for its versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from syncline import faults
from syncline.testing.weight_run import WeightRun, Weights
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.client import ArmClient
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import DeltaFiles, StageRequest
from syncline_agent.testing.islands import TIMES, IslandEngine, IslandRank, Islands, ScriptedGate, WholeRank

TABLE = TensorTable(
    tensors=[
        TensorSpec(name="a.weight", dtype="BF16", shape=[37, 53], axis=0),
        TensorSpec(name="b.down_proj.weight", dtype="BF16", shape=[31, 64], axis=1),
        TensorSpec(name="c.codes", dtype="F8_E4M3", shape=[999], axis=0),
        TensorSpec(name="d.empty", dtype="F32", shape=[0, 4], axis=0),
        TensorSpec(name="e.ids", dtype="I64", shape=[129], axis=0, aliases=["z.ids"]),
        TensorSpec(name="f.scalar", dtype="F32", shape=[], axis=0),
    ]
)


@pytest.fixture
def run(tmp_path: Path) -> WeightRun:
    """Version 1 is random bits."""
    bits = np.random.default_rng(5)
    first = {spec.name: np.frombuffer(bits.bytes(spec.size_bytes), f"<u{spec.unit_bytes}") for spec in TABLE.tensors}
    return WeightRun(tmp_path / "node", TABLE, first)


@pytest.fixture
def hold(run: WeightRun) -> Callable[..., LiveWeights]:
    """Live weights proven to hold a version, in `memory` where the test wants to reach it."""

    def make(version: int, memory: dict[str, np.ndarray] | None = None) -> LiveWeights:
        live = LiveWeights(run.table, run.tiling.tiling, run.copy(version) if memory is None else memory)
        live.prove(run.lineage, "main", version, run.digest(version))
        return live

    return make


@pytest.fixture
def memory(run: WeightRun) -> Weights:
    return run.copy(1)


@pytest.fixture
def live(run: WeightRun, memory: Weights, hold: Callable[..., LiveWeights]) -> LiveWeights:
    """Holds version 1 of a run with five, in `memory`."""
    for _ in range(4):
        run.step()
    return hold(1, memory)


@pytest.fixture
def ask(run: WeightRun) -> Callable[..., StageRequest]:
    """A stage request for every delta between two versions, one a step; keywords replace its fields."""

    def make(base: int, target: int, *, codec: str | None = None, **changes: object) -> StageRequest:
        between = range(base + 1, target + 1) if "deltas" not in changes and "checkpoint" not in changes else ()
        fields: dict[str, object] = {
            "lineage": run.lineage,
            "view": "main",
            "base": base,
            "base_digest": run.digest(base),
            "target": target,
            "target_digest": run.digest(target),
            "table": run.table_file,
            "tiling": run.tiling.tiling,
            "deltas": [DeltaFiles(v, run.digest(v), run.delta(v - 1, v, codec=codec)) for v in between],
        }
        return StageRequest(**(fields | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def reached() -> Iterator[list[str]]:
    """The kill points that execution comes to."""
    points: list[str] = []
    faults.install_hook(points.append)
    yield points
    faults.install_hook(None)


# --- an engine of several ranks ----------------------------------------------------------------------------------------

CUT = {"a.weight": 0, "b.down_proj.weight": 1, "c.codes": 0}


@pytest.fixture
def node(run: WeightRun) -> Path:
    for _ in range(3):
        run.step()
    return run.folder


@pytest.fixture
def server(node: Path) -> Iterator[ArmServer]:
    with ArmServer(node / "arm.sock", timeouts=TIMES) as server:
        yield server


@pytest.fixture
def islands(run: WeightRun, node: Path) -> Iterator[Islands]:
    islands = Islands(run, node, CUT)
    yield islands
    islands.stop()


@pytest.fixture
def join(islands: Islands) -> Callable[..., IslandRank]:
    return islands.join


@pytest.fixture
def join_gate(islands: Islands) -> Callable[[int], tuple[ScriptedGate, ArmClient]]:
    return islands.join_gate


@pytest.fixture
def start(islands: Islands) -> Callable[[int], IslandEngine]:
    return islands.start


@pytest.fixture
def connect(islands: Islands) -> Callable[..., WholeRank]:
    return islands.join_whole
