"""What a single wrong bit does, or a write that fails half-way: found, never claimed, and whole again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from syncline import faults
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain
from syncline.testing.weight_run import WeightRun, Weights
from syncline_agent.arm.live import LiveWeights
from syncline_agent.engine import StageRequest
from syncline_agent.testing.switching import commit, place_of, same, undo, write

Ask = Callable[..., StageRequest]


@pytest.mark.parametrize("bit", [0, 9])  # bit 0 is the one that the delta changes
@pytest.mark.parametrize("codec", ["sparse", "xor-zstd", "raw"])
def test_a_live_bit_flipped_inside_a_delta_is_found_before_it_is_written(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask, tmp_path: Path, codec: str, bit: int
) -> None:
    place = place_of(run, "a.weight", changed=True)
    memory["a.weight"][place] ^= 1 << bit
    with pytest.raises(DigestMismatch, match=r"a\.weight"):
        live.stage(ask(1, 2, codec=codec))
    assert not live.in_service
    make_whole(run, live, memory, ask, tmp_path)


def test_a_live_bit_flipped_outside_a_delta_is_found_by_the_sweep(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask, tmp_path: Path
) -> None:
    place = place_of(run, "a.weight", changed=False)
    memory["a.weight"][place] ^= 1
    live.stage(ask(1, 2, codec="sparse"))
    commit(live, 2)
    with pytest.raises(DigestMismatch, match=r"a\.weight"):
        live.sweep()
    assert not live.in_service
    with pytest.raises(DigestMismatch, match="in doubt"):
        live.stage(ask(2, 3))
    make_whole(run, live, memory, ask, tmp_path)


def test_a_checkpoint_staged_over_a_doubt_outlives_a_sweep_that_finds_the_same(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask, tmp_path: Path
) -> None:
    memory["a.weight"][7] ^= 1
    with pytest.raises(DigestMismatch):
        live.sweep()
    run.checkpoint(tmp_path / "whole", 2)
    live.stage(ask(1, 2, checkpoint=tmp_path / "whole"))
    live.ready(2)
    with pytest.raises(DigestMismatch):
        live.sweep()  # the engine's own, on its way when the agent came
    live.scatter(2)
    live.confirm(2)
    assert live.sweep().proven
    assert (run.weights(2)["a.weight"] == memory["a.weight"]).all()


def test_what_was_staged_before_a_doubt_is_not_written(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask
) -> None:
    live.stage(ask(1, 2))
    live.ready(2)
    memory["c.codes"][3] ^= 1
    with pytest.raises(DigestMismatch):
        live.sweep()
    with pytest.raises(EngineUnavailable, match="nothing was written"):
        live.scatter(2)
    assert 1 == live.version


def make_whole(run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask, tmp_path: Path) -> None:
    run.checkpoint(tmp_path / "whole", 3)
    assert live.version is not None
    live.stage(ask(live.version, 3, checkpoint=tmp_path / "whole"))
    commit(live, 3)
    assert not live.in_service  # a doubt ends with a sweep
    assert live.sweep().proven
    assert live.in_service
    assert same(memory, run.weights(3))


def test_a_bit_that_does_not_stick_is_found_by_the_read_back(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask
) -> None:
    write(live, ask(1, 2))
    place = place_of(run, "b.down_proj.weight", changed=True)
    memory["b.down_proj.weight"][place] ^= 1
    with pytest.raises(EngineUncertain, match=r"b\.down_proj\.weight"):
        live.confirm(2)
    assert not live.in_service
    undo(live, 1)
    assert not live.in_service
    live.sweep()
    assert live.in_service
    assert same(memory, run.weights(1))


def test_a_commit_that_fails_half_way_is_uncertain_until_undone_and_swept(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask
) -> None:
    def fail(point: str) -> None:
        if point == "apply.scattering":
            raise MemoryError("in the middle")

    live.stage(ask(1, 2))
    live.ready(2)
    faults.install_hook(fail)
    try:
        with pytest.raises(EngineUncertain, match="half-way"):
            live.scatter(2)
    finally:
        faults.install_hook(None)
    assert not same(memory, run.weights(1))
    assert not same(memory, run.weights(2))
    assert not live.in_service
    with pytest.raises(DigestMismatch):
        live.sweep()
    undo(live, 1)
    live.sweep()
    assert live.in_service
    assert same(memory, run.weights(1))


def test_the_middle_kill_point_lies_between_two_tensors(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask
) -> None:
    written: list[tuple[str, int]] = []

    def look(point: str) -> None:
        new = sum(bool(units.size) and np.array_equal(memory[n], units) for n, units in run.weights(2).items())
        written.append((point, new))

    live.stage(ask(1, 2))
    live.ready(2)
    faults.install_hook(look)
    try:
        live.scatter(2)
    finally:
        faults.install_hook(None)
    assert [("apply.scattering", 2), ("apply.scattered", 5)] == written


def test_a_write_that_cannot_be_read_back_is_never_claimed(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object, **__: object) -> bool:
        raise MemoryError("the device is full")

    write(live, ask(1, 2))
    monkeypatch.setattr(live._memory, "read_back", out_of_memory)
    with pytest.raises(EngineUncertain, match="the device is full"):
        live.confirm(2)
    assert not live.in_service
    assert live.applied is not None
    assert not live.applied.proven
    assert 2 == live.applied.version  # which is what memory holds, as far as anybody knows
    monkeypatch.undo()
    assert live.sweep().proven
    undo(live, 1)
    assert live.sweep().proven
    assert same(memory, run.weights(1))
