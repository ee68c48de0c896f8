"""Live weights: what is staged, what is refused, and how a version becomes another and goes back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, FrameCorrupt, LayoutRefused
from syncline.testing.weight_run import WeightRun, Weights
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm import staging
from syncline_agent.arm.live import LiveWeights
from syncline_agent.engine import DeltaFiles, StageRequest
from syncline_agent.testing.switching import commit, same, undo

Ask = Callable[..., StageRequest]


@pytest.mark.parametrize("codec", [None, "raw", "sparse", "xor-zstd", "xor-lz4"])
def test_a_chain_of_deltas_becomes_one_commit_of_the_very_bits(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask, codec: str | None
) -> None:
    staged = live.stage(ask(1, 5, codec=codec))
    assert same(memory, run.weights(1))  # staging only reads
    commit(live, 5)
    assert same(memory, run.weights(5))
    assert live.applied is not None
    assert (5, run.digest(5), True) == (live.applied.version, live.applied.digest, live.applied.proven)
    different = sum(int((run.weights(1)[name] != run.weights(5)[name]).sum()) for name in memory)
    assert different == staged.changed


def test_version_after_version_stays_proven(run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask) -> None:
    for version in range(2, 6):
        live.stage(ask(version - 1, version))
        commit(live, version)
        assert live.in_service
        assert same(memory, run.weights(version))
    assert live.sweep() == live.applied


def test_an_unchanged_version_is_a_version(run: WeightRun, live: LiveWeights, ask: Ask, reached: list[str]) -> None:
    again = run.add(run.copy(5))
    live.stage(ask(1, 5))
    commit(live, 5)
    assert 0 == live.stage(ask(5, again)).changed
    reached.clear()
    commit(live, again)
    assert again == live.version
    assert ["apply.scattering", "apply.scattered"] == reached


def test_other_base_weights_are_refused_by_name(run: WeightRun) -> None:
    live = LiveWeights(run.table, run.tiling.tiling, run.copy(1))
    run.step()
    with pytest.raises(DigestMismatch, match="other base weights"):
        live.prove(run.lineage, "main", 2, run.digest(2))
    assert not live.in_service
    assert live.error is not None
    with pytest.raises(DigestMismatch):  # and no sweep makes them right
        live.sweep()


def test_live_weights_that_never_proved_take_no_changes(run: WeightRun, ask: Ask) -> None:
    run.step()
    live = LiveWeights(run.table, run.tiling.tiling, run.copy(1))
    with pytest.raises(EngineUnavailable, match="no version"):
        live.stage(ask(1, 2))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"base": 3}, DigestMismatch, "start from version 3"),
        ({"base_digest": "00" * 16}, DigestMismatch, "start from version 1"),
        ({"target_digest": "00" * 16}, DigestMismatch, "nothing was written"),
        ({"lineage": "cd" * 16}, LayoutRefused, "lineage"),
        ({"view": "fp8"}, LayoutRefused, "view"),
        ({"tiling": Tiling()}, LayoutRefused, "tiling"),
    ],
)
def test_a_request_for_something_else_is_refused_before_any_write(
    run: WeightRun,
    live: LiveWeights,
    memory: Weights,
    ask: Ask,
    change: dict[str, object],
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        live.stage(replace(ask(1, 2), **change))  # type: ignore[arg-type]
    with pytest.raises(EngineUnavailable):
        live.ready(2)
    assert same(memory, run.weights(1))
    assert live.in_service


def test_a_delta_of_another_step_is_refused_by_the_prediction(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask
) -> None:
    wrong = ask(2, 3, codec="sparse").deltas
    with pytest.raises((DigestMismatch, FrameCorrupt)):
        live.stage(ask(1, 2, deltas=wrong))
    assert same(memory, run.weights(1))
    assert live.in_service  # the delta was wrong, not the memory


def test_a_corrupt_chunk_is_refused(run: WeightRun, live: LiveWeights, ask: Ask) -> None:
    request = ask(1, 2)
    chunk = request.deltas[0].chunks[0]
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    with pytest.raises((FrameCorrupt, DigestMismatch)):
        live.stage(request)
    assert live.in_service


def test_a_chunk_that_is_gone_is_said_by_its_path(run: WeightRun, live: LiveWeights, ask: Ask) -> None:
    request = ask(1, 2)
    request.deltas[0].chunks[0].unlink()
    with pytest.raises(EngineUnavailable, match="chunk"):
        live.stage(request)


def test_a_table_with_another_tensor_is_refused_by_its_name(
    run: WeightRun, live: LiveWeights, ask: Ask, tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    tensors = [t.model_copy(update={"shape": [53, 37]}) if t.name == "a.weight" else t for t in run.table.tensors]
    other.write_bytes(TensorTable(tensors=tensors).encode())
    with pytest.raises(LayoutRefused, match=r"a\.weight"):
        live.stage(ask(1, 2, table=other))


def test_only_what_is_staged_can_be_committed_and_only_once(live: LiveWeights, ask: Ask) -> None:
    live.stage(ask(1, 2))
    with pytest.raises(EngineUnavailable, match="not staged"):
        live.ready(3)
    with pytest.raises(EngineUnavailable, match="not ready"):
        live.scatter(2)
    commit(live, 2)
    with pytest.raises(EngineUnavailable, match="not staged"):
        live.ready(2)


def test_discard_drops_what_is_staged(live: LiveWeights, ask: Ask) -> None:
    live.stage(ask(1, 2))
    live.discard()
    with pytest.raises(EngineUnavailable, match="not staged"):
        live.ready(2)


def test_undo_goes_back_to_the_bits_before_and_is_proven_by_a_sweep(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask
) -> None:
    live.stage(ask(1, 4))
    commit(live, 4)
    with pytest.raises(LayoutRefused, match="cannot be undone to"):
        live.ready_undo(3)
    undo(live, 1)
    assert same(memory, run.weights(1))
    assert not live.in_service
    assert 1 == live.sweep().version
    assert live.in_service
    with pytest.raises(LayoutRefused, match="kept: none"):
        live.ready_undo(4)
    undo(live, 1)  # which is held: nothing is written, and nothing in doubt
    assert live.in_service
    with pytest.raises(EngineUncertain, match="was not written"):
        live.confirm(1)
    live.stage(ask(1, 5))
    commit(live, 5)
    assert same(memory, run.weights(5))


def test_a_checkpoint_leads_anywhere_also_back(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask, tmp_path: Path
) -> None:
    live.stage(ask(1, 5))
    commit(live, 5)
    run.checkpoint(tmp_path / "checkpoint", 2)
    live.stage(ask(5, 2, checkpoint=tmp_path / "checkpoint"))
    commit(live, 2)
    assert same(memory, run.weights(2))
    assert live.in_service


def test_a_checkpoint_of_another_version_is_refused(
    run: WeightRun, live: LiveWeights, ask: Ask, tmp_path: Path
) -> None:
    run.checkpoint(tmp_path / "checkpoint", 3)
    with pytest.raises(DigestMismatch, match="was asked for"):
        live.stage(ask(1, 2, checkpoint=tmp_path / "checkpoint"))


def test_tied_tensors_are_one_place_and_count_once(run: WeightRun, live: LiveWeights, memory: Weights) -> None:
    assert "z.ids" not in memory
    assert run.digest(1) == live.sweep().digest


@pytest.mark.parametrize(
    ("name", "broken", "says"),
    [
        ("a.weight", None, "no tensor a.weight"),
        ("a.weight", np.zeros(37 * 53, "<u4"), "a.weight is uint32"),
        ("a.weight", np.zeros((37, 53), "<u2"), "contiguous units"),
        ("e.ids", np.zeros(258, "<u8")[::2], "contiguous"),
    ],
)
def test_memory_that_does_not_fit_the_table_is_refused_by_name(
    run: WeightRun, name: str, broken: np.ndarray | None, says: str
) -> None:
    views = run.copy(1)
    if broken is None:
        del views[name]
    else:
        views[name] = broken
    with pytest.raises(LayoutRefused, match=says):
        LiveWeights(run.table, run.tiling.tiling, views)


def test_read_only_memory_is_refused(run: WeightRun) -> None:
    views = run.copy(1)
    views["c.codes"].flags.writeable = False
    with pytest.raises(LayoutRefused, match=r"c\.codes is read-only"):
        LiveWeights(run.table, run.tiling.tiling, views)


def test_warming_up_touches_nothing(run: WeightRun, live: LiveWeights, memory: Weights) -> None:
    live.warm_up()
    assert same(memory, run.weights(1))


def test_a_delta_of_many_chunks_is_staged_where_no_further_thread_can_be_started(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Full(ThreadPoolExecutor):
        def submit(self, *given: Any, **named: Any) -> Any:
            asked.append("a thread")
            raise RuntimeError("can't start new thread")

    request = ask(1, 2, deltas=[DeltaFiles(2, run.digest(2), run.delta(1, 2, target_bytes=1))])
    assert len(request.deltas[0].chunks) > 1
    monkeypatch.setattr(staging, "ThreadPoolExecutor", Full)
    live.stage(request)
    commit(live, 2)
    assert asked
    assert same(memory, run.weights(2))
