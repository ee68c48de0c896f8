"""Weights over the sleep of a worker with vLLM's own signatures: kept, thrown away, loaded anew; nothing is served unseen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from syncline.delta import Delta
from syncline.errors import EngineUnavailable
from syncline.logs import logger
from syncline.testing.weight_run import WeightRun
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.host_memory import HostMemory
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.memory import Changes
from syncline_agent.arm.periodic import sweep_for_ever
from syncline_agent.arm.torch_stores import constants_of
from syncline_agent.engine import DeltaFiles, StageRequest
from syncline_agent.vllm import absence
from syncline_agent.vllm.sleeping import Sleeper, SleepingMemory

TABLE = TensorTable(
    tensors=[
        TensorSpec(name="a.weight", dtype="BF16", shape=[37, 53], axis=0),
        TensorSpec(name="c.codes", dtype="F8_E4M3", shape=[999], axis=0),
    ]
)


class Slow(HostMemory):
    """Memory whose staging lasts until it is let go."""

    begun: threading.Event
    go_on: threading.Event

    def stage(self, deltas: Sequence[Delta], *, executor: Executor | None = None) -> Changes:
        self.begun.set()
        assert self.go_on.wait(20)
        return super().stage(deltas, executor=executor)


class Worker:
    """Holds version 1 of a run, sleeps and wakes as vLLM's does, and is armed."""

    def __init__(self, run: WeightRun) -> None:
        self.units = run.copy(1)
        self.constant = torch.arange(4.0)
        self.kept: dict[str, np.ndarray[Any, Any]] | None = None
        plain = HostMemory.whole(run.table, run.tiling.tiling, self.units)
        plain.__class__ = Slow
        self.slow: Any = plain
        self.slow.begun, self.slow.go_on = threading.Event(), threading.Event()
        self.slow.go_on.set()
        memory = SleepingMemory(plain)
        self.live = LiveWeights(run.table, run.tiling.tiling, memory)
        self.live.prove(run.lineage, "main", 1, run.digest(1))
        sleeper = Sleeper(self.live, memory, lambda: [self.constant], log=logger("worker"))
        self.syncline = SimpleNamespace(fall_asleep=sleeper.fall_asleep, wake=sleeper.wake)

    def _sleep(self, level: int = 1) -> None:
        self.kept = {name: units.copy() for name, units in self.units.items()} if level == 1 else None
        for units in self.units.values():
            units[:] = 0xAB
        self.constant.fill_(-1.0)

    def _wake_up(self, tags: list[str] | None = None) -> None:
        if self.kept is not None and (tags is None or "weights" in tags):
            for name, units in self.units.items():
                units[:] = self.kept[name]

    def _reload_weights(self, weights: dict[str, np.ndarray[Any, Any]]) -> None:
        assert self.live.applied is not None
        with pytest.raises(EngineUnavailable, match="loads other weights"):
            self.live.sweep()
        for name, units in self.units.items():
            units[:] = weights[name]

    sleep = absence.around_sleep(_sleep)
    wake_up = absence.around_wake_up(_wake_up)
    reload_weights = absence.around_reload(_reload_weights)


@pytest.fixture
def run(tmp_path: Path) -> WeightRun:
    bits = np.random.default_rng(5)
    first = {spec.name: np.frombuffer(bits.bytes(spec.size_bytes), f"<u{spec.unit_bytes}") for spec in TABLE.tensors}
    run = WeightRun(tmp_path / "node", TABLE, first)
    run.step()
    return run


@pytest.fixture
def worker(run: WeightRun) -> Worker:
    return Worker(run)


Ask = Callable[..., StageRequest]


@pytest.fixture
def ask(run: WeightRun) -> Ask:
    """How version 2 is asked for, by a delta from version 1 or by a checkpoint."""

    def make(checkpoint: Path | None = None) -> StageRequest:
        return StageRequest(
            lineage=run.lineage,
            view="main",
            base=1,
            base_digest=run.digest(1),
            target=2,
            target_digest=run.digest(2),
            table=run.table_file,
            tiling=run.tiling.tiling,
            deltas=[] if checkpoint else [DeltaFiles(2, run.digest(2), run.delta(1, 2))],
            checkpoint=checkpoint,
        )

    return make


def commit(live: LiveWeights) -> None:
    live.ready(2)
    live.scatter(2)
    live.confirm(2)


def test_nobody_reads_or_writes_while_the_engine_sleeps_and_it_goes_on_proven(
    run: WeightRun, worker: Worker, ask: Ask
) -> None:
    worker.sleep(level=1)
    for work in (lambda: worker.live.stage(ask()), worker.live.sweep):
        with pytest.raises(EngineUnavailable, match="the engine sleeps"):
            work()
    worker.wake_up(tags=["kv_cache"])
    with pytest.raises(EngineUnavailable, match="the engine sleeps"):
        worker.live.sweep()
    worker.wake_up(tags=["weights"])
    assert worker.live.in_service
    worker.live.stage(ask())
    commit(worker.live)
    assert worker.live.in_service
    assert all(np.array_equal(worker.units[name], units) for name, units in run.weights(2).items())


def test_sweeps_from_time_to_time_are_left_out_while_the_engine_sleeps(worker: Worker) -> None:
    said: list[str] = []
    swept, stopping = threading.Semaphore(0), threading.Event()
    log: Any = SimpleNamespace(
        **{level: lambda event, **_: said.append(event) for level in ("info", "error", "exception")}
    )
    arm: Any = SimpleNamespace(notify=swept.release)
    worker.sleep()
    sweeping = threading.Thread(
        target=sweep_for_ever, args=(worker.live, arm, stopping), kwargs={"interval_s": 0.01, "log": log}
    )
    sweeping.start()
    assert swept.acquire(timeout=20)
    worker.wake_up()
    for _ in range(2):  # one may have begun before it woke
        assert swept.acquire(timeout=20)
    stopping.set()
    sweeping.join(20)
    assert "no sweep" == said[0]
    assert {"no sweep", "sweep matched"} == set(said)


def test_a_sleep_waits_for_who_reads_and_nothing_that_was_staged_is_written_in_it(
    run: WeightRun, worker: Worker, ask: Ask
) -> None:
    worker.live.stage(ask())
    worker.live.ready(2)
    worker.slow.begun.clear()
    worker.slow.go_on.clear()
    staging = threading.Thread(target=worker.live.stage, args=(ask(),))
    staging.start()
    assert worker.slow.begun.wait(20)
    sleeping = threading.Thread(target=worker.sleep)
    sleeping.start()
    sleeping.join(0.05)
    assert sleeping.is_alive()
    worker.slow.go_on.set()
    for thread in (staging, sleeping):
        thread.join(20)
        assert not thread.is_alive()
    worker.wake_up()
    with pytest.raises(EngineUnavailable, match="is not staged"):
        worker.live.ready(2)
    assert all(np.array_equal(worker.units[name], units) for name, units in run.weights(1).items())


def test_weights_that_were_thrown_away_are_not_served_until_a_checkpoint_heals_them(
    run: WeightRun, worker: Worker, ask: Ask, tmp_path: Path
) -> None:
    worker.sleep(2)
    worker.wake_up()
    assert not worker.live.in_service
    assert worker.live.error is not None
    assert torch.arange(4.0).tolist() == worker.constant.tolist()  # what no checkpoint has is as it was
    run.checkpoint(tmp_path / "whole", 2)
    worker.live.stage(ask(tmp_path / "whole"))
    commit(worker.live)
    assert not worker.live.in_service
    assert worker.live.sweep().proven
    assert worker.live.in_service


def test_weights_that_a_worker_loads_anew_are_served_only_if_they_are_the_versions(
    run: WeightRun, worker: Worker
) -> None:
    worker.reload_weights(run.weights(2))
    assert not worker.live.in_service
    worker.reload_weights(run.weights(1))
    assert worker.live.in_service


def test_a_worker_that_is_not_armed_sleeps_as_it_always_did(run: WeightRun) -> None:
    worker: Any = Worker(run)
    del worker.syncline
    worker.sleep()
    worker.wake_up()
    assert all(np.array_equal(worker.units[name], units) for name, units in run.weights(1).items())


def test_ranks_are_looked_at_after_whatever_may_have_changed_them() -> None:
    seen: list[str] = []

    class Core:
        syncline: Any = None

        def _collective_rpc(self, method: str) -> str:
            seen.append(method)
            return "answer"

        collective_rpc = absence.around_change(_collective_rpc)

    core = Core()
    assert "answer" == core.collective_rpc("a")
    core.syncline = SimpleNamespace(look_at_ranks=lambda: seen.append("looked"))
    assert "answer" == core.collective_rpc("b")
    assert ["a", "b", "looked"] == seen


def test_constants_are_what_a_model_holds_beside_its_stores_each_once() -> None:
    model = torch.nn.Linear(3, 2, bias=False)
    model.register_buffer("table", torch.arange(6.0))
    model.again = model.get_buffer("table")[2:]
    model.kv_cache = torch.zeros(4)
    (found,) = constants_of(model, [model.weight.detach().reshape(-1)])
    assert torch.arange(6.0).tolist() == found.view(torch.float32).tolist()
