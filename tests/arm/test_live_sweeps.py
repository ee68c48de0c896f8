"""Sweeps of live weights while versions change: they end, and prove nothing that was not read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from syncline import faults
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain
from syncline.testing.weight_run import WeightRun, Weights
from syncline_agent.arm.live import LiveWeights
from syncline_agent.engine import StageRequest
from syncline_agent.testing.switching import Sleeper, commit, place_of, same, slowly, undo, write

Ask = Callable[..., StageRequest]


def test_a_sweep_between_whose_slices_a_commit_falls_still_matches(
    run: WeightRun, memory: Weights, ask: Ask, live: LiveWeights
) -> None:
    clock = Sleeper(lambda slept: commit(slow, 2) if slept == 3 else None)
    slow = slowly(run, memory, clock)
    slow.stage(ask(1, 2))
    assert 2 == slow.sweep(rest=1.0, slice_units=100).version
    assert clock.slept > 20
    assert slow.in_service


def test_a_sweep_ends_however_often_commits_fall_into_it(
    run: WeightRun, memory: Weights, ask: Ask, live: LiveWeights
) -> None:
    def commit_or_undo(slept: int) -> None:
        assert slept < 1000, "the sweep starts over and over"
        if slept % 2:
            slow.stage(ask(1, 2))
            commit(slow, 2)
        else:
            undo(slow, 1)
            assert slow._applied is not None
            slow._error, slow._applied = None, replace(slow._applied, proven=True)  # so that the next may follow

    clock = Sleeper(commit_or_undo)
    slow = slowly(run, memory, clock)
    slow.sweep(rest=1.0, slice_units=100)
    assert clock.slept > 20
    place = place_of(run, "a.weight", changed=False)
    memory["a.weight"][place] ^= 1
    with pytest.raises(DigestMismatch, match=r"a\.weight"):
        slow.sweep(rest=1.0, slice_units=100)


def test_a_sweep_that_another_waits_for_no_longer_rests(run: WeightRun, memory: Weights, live: LiveWeights) -> None:
    pause, resting, answers = threading.Event(), threading.Event(), []

    def rest(_slept: int) -> None:
        assert not resting.is_set(), "it rests on while another waits"
        resting.set()
        for _ in range(1000):
            if slow._impatient:
                return
            pause.wait(0.01)

    slow = slowly(run, memory, Sleeper(rest))
    at_leisure = threading.Thread(target=lambda: answers.append(slow.sweep(rest=4.0, slice_units=100)))
    at_leisure.start()
    assert resting.wait(10)
    answers.append(slow.sweep())
    at_leisure.join(10)
    assert [1, 1] == [applied.version for applied in answers]


@pytest.mark.parametrize("ends", [3, 18], ids=["early", "late"])
def test_no_sweep_that_ends_over_an_undo_proves_anything(
    run: WeightRun, memory: Weights, live: LiveWeights, ask: Ask, ends: int
) -> None:
    """It began before the undo, and ends before that was read back."""

    def go_back(slept: int) -> None:
        if slept == ends:
            slow.ready_undo(1)
            slow.scatter(1)

    slow = slowly(run, memory, Sleeper(go_back))
    slow.stage(ask(1, 2))
    commit(slow, 2)
    slow.sweep(rest=1.0, slice_units=100)
    assert not slow.in_service
    assert not slow.confirm(1).proven
    with pytest.raises(EngineUnavailable, match="sweep first"):
        slow.proved(1, run.digest(1))
    assert slow.sweep().proven


def test_no_sweep_that_ends_between_a_write_and_its_reading_back_ends_a_doubt(
    run: WeightRun, live: LiveWeights, memory: Weights, ask: Ask, tmp_path: Path
) -> None:
    memory["a.weight"][7] ^= 1
    with pytest.raises(DigestMismatch):
        live.sweep()
    run.checkpoint(tmp_path / "whole", 2)
    write(live, ask(1, 2, checkpoint=tmp_path / "whole"))
    live.sweep()
    assert not live.in_service
    assert live.applied is not None
    assert (1, False) == (live.applied.version, live.applied.proven)  # of 1 nothing is known, and 2 was not confirmed
    live.confirm(2)
    assert live.sweep().proven


def test_a_write_that_fails_half_way_and_is_undone_while_a_sweep_walks_does_not_mislead_it(
    run: WeightRun, memory: Weights, live: LiveWeights, ask: Ask
) -> None:
    def fail(point: str) -> None:
        if point == "apply.scattered":
            raise MemoryError("at the end")

    def fail_and_go_back(slept: int) -> None:
        if slept == 12:
            faults.install_hook(fail)
            try:
                with pytest.raises(EngineUncertain):
                    write(slow, ask(1, 2))
            finally:
                faults.install_hook(None)
            undo(slow, 1)

    slow = slowly(run, memory, Sleeper(fail_and_go_back))
    assert not slow.sweep(rest=1.0, slice_units=100).proven
    assert same(memory, run.weights(1))
    assert slow.sweep().proven


def test_two_sweeps_that_have_come_equally_far_are_two(
    run: WeightRun, memory: Weights, live: LiveWeights, ask: Ask
) -> None:
    """One stands behind the last slice of a tensor when another passes it, and then a commit comes."""
    last: list[int] = []

    def pass_and_commit(slept: int) -> None:
        walks = slow._walks._under_way
        if not last and walks and walks[0].done == len(slow._memory.parts(walks[0].tensor)):
            last.append(slept)
            with pytest.raises(DigestMismatch, match="nothing was written"):
                slow.stage(ask(1, 2, target_digest=run.digest(3)))  # refused, and memory is looked at for it
            slow.stage(ask(1, 2))
            commit(slow, 2)

    slow = slowly(run, memory, Sleeper(pass_and_commit))
    assert slow.sweep(rest=1.0, slice_units=100).proven
    assert last
    assert [] == slow._walks._under_way
