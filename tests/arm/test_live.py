"""Live weights: what is staged, written, proven, undone, and what a single wrong bit does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from syncline import faults
from syncline.clock import ManualClock
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, FrameCorrupt, LayoutRefused
from syncline.testing.weight_run import WeightRun, Weights
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.live import LiveWeights
from syncline_agent.engine import StageRequest

Hold = Callable[..., LiveWeights]
Ask = Callable[..., StageRequest]


def same(memory: Weights, expected: Weights) -> bool:
    return all(np.array_equal(memory[name], units) for name, units in expected.items())


def place_of(run: WeightRun, name: str, *, changed: bool) -> int:
    """The first unit that version 2 changes, or the first that it does not."""
    return int(np.flatnonzero((run.weights(1)[name] != run.weights(2)[name]) == changed)[0])


def commit(live: LiveWeights, target: int) -> None:
    live.ready(target)
    live.scatter(target)
    live.confirm(target)


def undo(live: LiveWeights, version: int) -> None:
    live.ready_undo(version)
    live.scatter(version)
    live.confirm(version)


def write(live: LiveWeights, request: StageRequest) -> None:
    """Everything but the reading back."""
    live.stage(request)
    live.ready(request.target)
    live.scatter(request.target)


class Sleeper(ManualClock):
    """A clock whose sleeps something is done in: it is called with their number."""

    def __init__(self, during: Callable[[int], None]) -> None:
        super().__init__()
        self.slept = 0
        self._during = during

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self._during(self.slept)

    def monotonic(self) -> float:
        return float(self.slept)


def slowly(run: WeightRun, memory: Weights, clock: ManualClock) -> LiveWeights:
    """Version 1 in memory, swept under a clock of the test's own."""
    slow = LiveWeights(run.table, run.tiling.tiling, memory, clock=clock)
    slow.prove(run.lineage, "main", 1, run.digest(1))
    return slow


@pytest.fixture
def memory(run: WeightRun) -> Weights:
    return run.copy(1)


@pytest.fixture
def live(run: WeightRun, memory: Weights, hold: Hold) -> LiveWeights:
    """Holds version 1 of a run with five."""
    for _ in range(4):
        run.step()
    return hold(1, memory)


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


def test_a_sweep_between_whose_slices_a_commit_falls_still_matches(
    run: WeightRun, memory: Weights, ask: Ask, live: LiveWeights
) -> None:
    clock = Sleeper(lambda slept: commit(slow, 2) if slept == 3 else None)
    slow = slowly(run, memory, clock)
    slow.stage(ask(1, 2))
    assert 2 == slow.sweep(rest=1.0, slice_units=100).version
    assert clock.slept > 20
    assert slow.in_service


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
