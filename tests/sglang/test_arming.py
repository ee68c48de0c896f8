"""Ranks of an SGLang-shaped engine: armed by the plugin's door or by the custom loader's, and followed in place.

The model, its loader and the scheduler are shaped as SGLang's: `load_weights` of (name, tensor), static methods of a loader, a loop
that a process runs to its end. What stands on SGLang's side of the routes is `syncline.testing.sglang_routes`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch

from syncline.clock import SystemClock
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, LayoutRefused
from syncline.testing.sglang_routes import SglangStandIn
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.server import ArmServer
from syncline_agent.arm.settings import ArmSettings
from syncline_agent.engine import DeltaFiles, StageRequest
from syncline_agent.sglang.installing import around_loader, around_scheduler, tokens_of
from syncline_agent.sglang.loader import armed
from syncline_agent.sglang.placement import Placement, placement_of
from syncline_agent.sglang.rank import Rank, rank_of
from syncline_agent.sglang.scratch import aside
from syncline_agent.sglang.settings import SglangSettings

HEADS = {"q": 16, "k": 8, "v": 8}
SHAPES = {
    "embed.weight": [24, 16],
    "o.weight": [16, 16],
    **{f"{part}.weight": [rows, 16] for part, rows in HEADS.items()},
}
TABLE = TensorTable(
    tensors=[
        TensorSpec(name=name, dtype="BF16", shape=shape, axis=1 if name == "o.weight" else 0)
        for name, shape in sorted(SHAPES.items())
    ]
)


class Model(torch.nn.Module):
    """Fused qkv by rows, o by columns, an embedding by rows: one tensor-parallel rank's share of each."""

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        super().__init__()
        self.rank, self.ranks = rank, ranks

        def empty(rows: int, columns: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.zeros(rows, columns, dtype=torch.bfloat16), requires_grad=False)

        self.qkv = empty(sum(HEADS.values()) // ranks, 16)
        self.o = empty(16, 16 // ranks)
        self.embed = empty(24 // ranks, 16)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        at = {"q": 0, "k": 16 // self.ranks, "v": 24 // self.ranks}
        for name, tensor in weights:
            part = name.removesuffix(".weight")
            if part == "o":
                self.o.data.copy_(tensor.chunk(self.ranks, 1)[self.rank])
                continue
            mine = tensor.chunk(self.ranks)[self.rank]
            into = self.embed if part == "embed" else self.qkv.narrow(0, at[part], len(mine))
            into.data.copy_(mine)


class Requantizing(Model):
    """Its weights are not what was loaded."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        super().load_weights((name, tensor * 0.5) for name, tensor in weights)


class Summing(Model):
    """Its weights are what was loaded; beside them it keeps what its loader makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.Buffer(torch.zeros(16))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        loaded = dict(weights)
        super().load_weights(loaded.items())
        self.norm.copy_(loaded["o.weight"].float().norm(dim=1))


@dataclass
class Node:
    """A node directory with a checkpoint of version 1, and what an engine on it is told."""

    folder: Path
    run: WeightRun
    settings: SglangSettings
    ranks: list[Rank] = field(default_factory=list[Rank])

    def weights(self, version: int) -> Iterator[tuple[str, torch.Tensor]]:
        for name, units in self.run.weights(version).items():
            yield name, torch.from_numpy(units.copy()).view(torch.bfloat16).reshape(SHAPES[name])

    def holds(self, model: Model, version: int) -> bool:
        """Whether a model's memory is what its loader makes of a version, bit for bit."""
        fresh = Model(model.rank, model.ranks)
        fresh.load_weights(self.weights(version))
        return all(
            torch.equal(mine.view(torch.int16), its.view(torch.int16))
            for mine, its in zip(model.parameters(), fresh.parameters(), strict=True)
        )

    def request(self, base: int, target: int) -> StageRequest:
        deltas = [DeltaFiles(v, self.run.digest(v), self.run.delta(v - 1, v)) for v in range(base + 1, target + 1)]
        return StageRequest(
            lineage=self.run.lineage,
            view="main",
            base=base,
            base_digest=self.run.digest(base),
            target=target,
            target_digest=self.run.digest(target),
            table=self.run.table_file,
            tiling=self.run.tiling.tiling,
            deltas=deltas,
        )

    def load(self, model: Model, version: int = 1) -> Model:
        model.load_weights(self.weights(version))
        return model

    def arm(self, model: Model) -> Rank:
        """By the custom loader's door; started."""
        where = Placement(model.rank, model.ranks, None)
        rank = armed(model, self.settings, where, clock=SystemClock(), log=structlog.get_logger())
        self.ranks.append(rank)
        rank.start(dict[str, int])
        return rank


@pytest.fixture
def server() -> Iterator[SglangStandIn]:
    with SglangStandIn() as server:
        yield server


@pytest.fixture
def node(tmp_path: Path, server: SglangStandIn) -> Iterator[Node]:
    rng = np.random.default_rng(1)
    first = {t.name: rng.integers(0, 0x7F00, t.units, dtype=np.uint16) for t in TABLE.tensors}
    run = WeightRun(tmp_path / "n" / "chunks", TABLE, first)
    run.checkpoint(tmp_path / "n" / "checkpoint", 1)
    run.step()
    run.step()
    settings = SglangSettings(ArmSettings(tmp_path / "n" / "arm.sock"), server.url)
    node = Node(tmp_path / "n", run, settings)
    yield node
    for rank in node.ranks:
        rank.stop()


@pytest.fixture
def arms(node: Node) -> Iterator[ArmServer]:
    with ArmServer(node.settings.arm.socket) as arms:
        yield arms


def wait(until: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if until():
            return
        pause.wait(0.02)
    pytest.fail("it did not come to be within 20 s")


def proven(arms: ArmServer) -> Callable[[], bool]:
    def look() -> bool:
        try:
            said = arms.describe()
        except EngineUnavailable:
            return False
        return said.applied is not None and said.applied.proven and said.error is None

    return look


def test_a_running_server_is_armed_without_touching_its_weights(node: Node) -> None:
    model = node.load(Model())
    places = [p.data_ptr() for p in model.parameters()]
    node.settings.arm.socket.parent.joinpath("arm.token").write_text("t")
    rank = node.arm(model)
    assert (None, True) == (rank.refusal, rank.live is not None and rank.live.in_service)
    assert places == [p.data_ptr() for p in model.parameters()]
    assert node.holds(model, 1)
    assert rank is rank_of(model)


def test_versions_come_in_place_while_requests_go_on(node: Node, arms: ArmServer, server: SglangStandIn) -> None:
    model = node.load(Model())
    places = [p.data_ptr() for p in model.parameters()]
    node.arm(model)
    wait(proven(arms))
    server.running = 2
    arms.stage(node.request(1, 2))
    stood: list[bool] = []
    flush = server.routes["POST", "/flush_cache"]

    def seen(call: Any) -> Any:
        stood.append(server.stands and node.holds(model, 2))
        return flush(call)

    server.routes["POST", "/flush_cache"] = seen
    result = arms.commit(2, Policy.KEEP)
    assert (2, [True]) == (result.version, stood)
    assert (True, False, 2, 0) == (node.holds(model, 2), server.paused, server.running, server.ended)
    assert ("2", 0) == (server.weight_version, server.loads)
    assert places == [p.data_ptr() for p in model.parameters()]
    assert arms.sweep().proven
    arms.undo(1)
    assert node.holds(model, 1)
    arms.sweep()
    wait(lambda: not server.paused)


def test_ranks_of_one_engine_commit_as_one(node: Node, arms: ArmServer, server: SglangStandIn) -> None:
    server.ranks = 2
    models = [node.load(Model(rank, 2)) for rank in range(2)]
    for model in models:
        node.arm(model)
    wait(proven(arms))
    wait(lambda: not server.paused)
    arms.stage(node.request(1, 3))
    arms.commit(3, Policy.ABORT)
    assert all(node.holds(model, 3) for model in models)
    assert arms.describe().applied == arms.sweep()


@pytest.mark.parametrize("refused", [0, 1])
def test_an_engine_of_which_one_rank_is_refused_serves_on(
    node: Node, arms: ArmServer, server: SglangStandIn, refused: int
) -> None:
    server.ranks, server.running = 2, 3
    for rank in range(2):
        node.arm(node.load(Requantizing(rank, 2) if rank == refused else Model(rank, 2)))
    wait(lambda: arms.wait_connected(1))
    said = arms.describe()
    assert said.applied is None
    assert f"rank {refused} of" in (said.error or "")
    wait(lambda: not server.paused and "/continue_generation" in server.paths if refused else not server.paused)
    assert (3, 0, "default") == (server.running, server.ended, server.weight_version)
    with pytest.raises(LayoutRefused):
        arms.stage(node.request(1, 2))


def test_other_base_weights_are_not_served_as_the_checkpoint_s(node: Node, arms: ArmServer) -> None:
    node.arm(node.load(Model(), version=2))
    wait(lambda: arms.wait_connected(1))
    said = arms.describe()
    assert said.applied is not None
    assert (1, False) == (said.applied.version, said.applied.proven)
    assert "other base weights" in (said.error or "")
    with pytest.raises(DigestMismatch):
        arms.stage(node.request(1, 2))


def test_weights_that_the_engine_moved_are_refused_by_name_and_never_written(node: Node, arms: ArmServer) -> None:
    model = node.load(Model())
    node.arm(model)
    wait(proven(arms))
    arms.stage(node.request(1, 2))
    left = model.qkv.data
    model.qkv.data = left.clone()
    with pytest.raises(EngineUncertain, match="the engine moved qkv"):
        arms.commit(2, Policy.KEEP)
    with pytest.raises(LayoutRefused, match="the engine moved qkv"):
        arms.sweep()
    assert node.holds(model, 1)
    assert torch.equal(left.view(torch.int16), model.qkv.data.view(torch.int16))


def test_weights_that_are_converted_are_refused_by_name(node: Node, arms: ArmServer) -> None:
    model = Requantizing()
    node.load(model)
    held = [p.clone() for p in model.parameters()]
    rank = node.arm(model)
    assert rank.live is None
    wait(lambda: arms.wait_connected(1))
    said = arms.describe()
    assert (None, rank.refusal) == (said.applied, said.error)
    with pytest.raises(LayoutRefused):
        arms.stage(node.request(1, 2))
    assert all(torch.equal(mine, its) for mine, its in zip(model.parameters(), held, strict=True))


def test_what_a_loader_computes_beside_the_weights_is_refused_by_name(node: Node) -> None:
    model = Summing()
    node.load(model)
    rank = node.arm(model)
    assert rank.live is None
    assert "norm" in (rank.refusal or "")


def test_a_folder_that_is_no_checkpoint_is_a_refusal_and_the_model_stays(node: Node, tmp_path: Path) -> None:
    told = ArmSettings(node.settings.arm.socket, checkpoint=tmp_path / "nothing")
    settings = SglangSettings(told, node.settings.url)
    model = node.load(Model())
    where = Placement(0, 1, None)
    rank = armed(model, settings, where, clock=SystemClock(), log=structlog.get_logger())
    assert "is no node checkpoint" in (rank.refusal or "")
    assert node.holds(model, 1)


def test_a_loader_that_fails_while_it_is_probed_leaves_the_live_weights(node: Node) -> None:
    class Broken(Model):
        broken = False

        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
            super().load_weights(weights)
            if self.broken:
                raise RuntimeError("no such layer")

    model = Broken()
    node.load(model)
    model.broken = True
    where = Placement(0, 1, None)
    rank = armed(model, node.settings, where, clock=SystemClock(), log=structlog.get_logger())
    assert "no such layer" in (rank.refusal or "")
    assert node.holds(model, 1)


def test_tensors_that_share_memory_share_it_in_scratch_too(node: Node) -> None:
    model = node.load(Model())
    model.view = torch.nn.Parameter(model.qkv.data.narrow(0, 4, 8), requires_grad=False)
    with aside(model):
        assert model.view.data_ptr() == model.qkv.data_ptr() + 4 * 16 * 2
        model.qkv.data.fill_(1.0)
        assert bool((model.view == 1.0).all())
    del model.view
    assert node.holds(model, 1)


@pytest.mark.parametrize(
    ("parallel", "why"),
    [({"pp_size": 2}, "pipeline"), ({"dp_size": 2}, "data-parallel"), ({"num_dp_ranks": 4}, "data-parallel")],
)
def test_engines_that_are_not_followed_are_refused_by_name(node: Node, parallel: dict[str, int], why: str) -> None:
    class Parallel:
        tp_rank, tp_size, pp_size, dp_size = 1, 2, 1, 1

    said = Parallel()
    assert Placement(1, 2, None) == placement_of(said)
    for name, size in parallel.items():
        setattr(said, name, size)
    where = placement_of(said)
    assert why in (where.unfit or "")
    rank = armed(node.load(Model()), node.settings, where, clock=SystemClock(), log=structlog.get_logger())
    assert (None, where.unfit) == (rank.live, rank.refusal)


# --- the plugin's door -----------------------------------------------------------------------------------------------


def doors(node: Node) -> tuple[type[Any], type[Any]]:
    """A loader and a scheduler with the arm around them."""

    class Loader:
        @staticmethod
        def load_weights_and_postprocess(model: Model, weights: Any, target_device: Any) -> str:
            Loader.load_weights_only(model, weights, target_device)
            if isinstance(model, Deriving):
                model.scale = model.o.data.float().amax(1)
            return "loaded"

        @staticmethod
        def load_weights_only(model: Model, weights: Any, target_device: Any) -> None:
            model.load_weights(weights)

    class Scheduler:
        def __init__(self, model: Model) -> None:
            self.tp_worker = type("Worker", (), {"model_runner": type("Runner", (), {"model": model})})
            self.running_batch = type("Batch", (), {"reqs": [request("a", 3), request("new", 0)]})
            self.waiting_queue = [request("b", 5)]
            self.over = threading.Event()

        def run_event_loop(self) -> str:
            self.over.wait(30)
            return "ended"

    where = Placement(0, 1, None)
    around_loader(Loader, node.settings, lambda: where, clock=SystemClock(), log=structlog.get_logger())
    around_loader(
        Loader, node.settings, lambda: where, clock=SystemClock(), log=structlog.get_logger()
    )  # once is enough
    around_scheduler(Scheduler)
    return Loader, Scheduler


class Deriving(Model):
    """Work on its loaded weights leaves what a change of them would not reach."""


def request(rid: str, tokens: int) -> Any:
    return type("Req", (), {"rid": rid, "output_ids": [0] * tokens})


def test_a_model_is_armed_while_it_is_loaded_and_connected_while_its_loop_runs(
    node: Node, arms: ArmServer, server: SglangStandIn
) -> None:
    loader_class, scheduler_class = doors(node)
    model = Model()
    assert "loaded" == loader_class.load_weights_and_postprocess(model, node.weights(1), "cpu")
    assert node.holds(model, 1)
    scheduler = scheduler_class(model)
    loop = threading.Thread(target=scheduler.run_event_loop, daemon=True)
    loop.start()
    wait(proven(arms))
    arms.stage(node.request(1, 2))
    assert {"a": 3, "b": 5} == arms.commit(2, Policy.KEEP).spans
    assert node.holds(model, 2)
    scheduler.over.set()
    loop.join(20)
    wait(lambda: not arms.wait_connected(0))


def test_only_the_first_model_of_a_process_is_followed(node: Node) -> None:
    loader_class, scheduler_class = doors(node)
    served, draft = Model(), Model()
    for model in (served, draft):
        loader_class.load_weights_and_postprocess(model, node.weights(1), "cpu")
    assert (True, None) == (rank_of(served) is not None, rank_of(draft))
    scheduler = scheduler_class(draft)
    scheduler.over.set()
    assert "ended" == scheduler.run_event_loop()


def test_a_process_that_does_not_know_its_rank_serves_on(node: Node) -> None:
    class Loader:
        @staticmethod
        def load_weights_and_postprocess(model: Model, weights: Any, target_device: Any) -> None:
            Loader.load_weights_only(model, weights, target_device)

        @staticmethod
        def load_weights_only(model: Model, weights: Any, target_device: Any) -> None:
            model.load_weights(weights)

    def unknown() -> Placement:
        raise RuntimeError("nothing is published")

    around_loader(Loader, node.settings, unknown, clock=SystemClock(), log=structlog.get_logger())
    model = Model()
    Loader.load_weights_and_postprocess(model, node.weights(1), "cpu")
    assert (True, None) == (node.holds(model, 1), rank_of(model))


def test_what_is_computed_from_loaded_weights_is_refused_by_name(node: Node) -> None:
    loader_class, _ = doors(node)
    model = Deriving()
    loader_class.load_weights_and_postprocess(model, node.weights(1), "cpu")
    rank = rank_of(model)
    assert rank is not None
    assert "scale" in (rank.refusal or "")


def test_tokens_are_counted_of_requests_that_have_some() -> None:
    scheduler = type(
        "Scheduler",
        (),
        {"running_batch": type("B", (), {"reqs": [request("a", 2)]}), "waiting_queue": [request("b", 0)]},
    )
    assert {"a": 2} == tokens_of(scheduler)
