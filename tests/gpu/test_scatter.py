"""The commit's writes, their undoing and the read-back, against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.kernels.gpu import reference_decode
from syncline.kernels.gpu.batch import FrameBatch, Staged, programs_a_frame
from syncline.kernels.gpu.scatter import count_missing, scatter, undo
from syncline.testing.device_frames import device_case
from syncline.wire.tiling import Frame

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def staged_case(dtype: str, frames: list[Frame], seed: int, share: float = 0.1):
    case = device_case(dtype, frames, share=share, lane_shift=20, seed=seed, device=DEVICE)
    reference_decode.decode(case.batch, case.coded, case.staged)
    return case


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F32"])
def test_a_scatter_makes_the_new_weights_and_undo_the_old(dtype: str) -> None:
    case = staged_case(dtype, [Frame(0, 1, 257, 257), Frame(260, 7, 33, 40)], seed=2)
    total = int(case.staged.changed.sum())
    assert total == int(count_missing(case.batch, case.staged))
    for _ in range(2):  # again is the same
        scatter(case.batch, case.staged)
        assert np.array_equal(case.new, case.live)
    assert 0 == int(count_missing(case.batch, case.staged)) == reference_decode.count_missing(case.batch, case.staged)
    undo(case.batch, case.staged)
    assert np.array_equal(case.old, case.live)


@settings(max_examples=20)
@given(
    size=st.sampled_from([1, 2, 4, 8]), runs=st.integers(1, 5), length=st.integers(1, 300), seed=st.integers(0, 1 << 30)
)
def test_kernel_and_reference_agree(size: int, runs: int, length: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    frame = Frame(seed % 3, runs, length, length + seed % 5)
    kind = f"i{size}" if size > 1 else "u1"
    live = torch.from_numpy(np.frombuffer(generator.bytes(size * (frame.offset(frame.units - 1) + 4)), kind).copy())
    twin = live.clone()
    changed = int(generator.integers(0, frame.units + 1))
    staged = Staged.empty(torch.tensor([changed], dtype=torch.int32), changed, live.dtype)
    positions = generator.permutation(frame.units)[:changed].astype(np.int32)
    staged.positions.copy_(torch.from_numpy(positions))
    for part in (staged.old, staged.new):
        part.copy_(torch.from_numpy(np.frombuffer(generator.bytes(size * changed), kind).copy()))
    places = torch.tensor([frame.offset(int(p)) for p in positions], dtype=torch.int64)
    twin[places] = staged.new
    batch = FrameBatch.of([live], [(0, frame)])
    assert reference_decode.count_missing(batch, staged) == int(count_missing(batch, staged))
    scatter(batch, staged)
    assert torch.equal(twin, live)
    undo(batch, staged)
    reference_decode.scatter(replace(batch, anchor=twin), staged, back=True)
    assert torch.equal(twin, live)


def test_read_back_finds_one_flipped_bit() -> None:
    case = staged_case("BF16", [Frame(0, 1, 300, 300)], seed=4)
    scatter(case.batch, case.staged)
    place = int(case.staged.positions[int(case.staged.firsts[0])])
    case.batch.anchor[place] ^= 1
    assert 1 == int(count_missing(case.batch, case.staged))


@pytest.mark.parametrize("position", [-1, 300, 0x7FFF_FFFF, -(1 << 31)])
def test_a_position_outside_its_frame_is_not_written_and_counts_as_missing(position: int) -> None:
    case = staged_case("BF16", [Frame(8, 1, 300, 300)], seed=5)
    slot = int(case.staged.firsts[0])
    outside = case.staged.positions.clone()
    kept = int(outside[slot])
    outside[slot] = position
    staged = replace(case.staged, positions=outside)
    scatter(case.batch, staged)
    expected = case.new.copy()
    expected[8 + kept] = case.old[8 + kept]
    assert np.array_equal(expected, case.live)
    assert 1 == int(count_missing(case.batch, staged))


def test_a_frame_s_programs_are_as_many_as_the_mean_frame_needs_and_an_eighth_more() -> None:
    cases = ((0, 1), (0, 0), (911, 1), (912, 1), (1 << 20, 1), (1 << 20, 1 << 10))
    assert [1, 1, 1, 2, 1152, 2] == [programs_a_frame(slots, frames, 1024) for slots, frames in cases]


@pytest.mark.parametrize("many", [0, 3, 5])
def test_a_frame_with_far_more_changes_than_the_others_is_written_whole(many: int) -> None:
    units, frames = 9000, 6
    counts = torch.tensor([units if k == many else k % 2 for k in range(frames)], dtype=torch.int32, device=DEVICE)
    slots = int(counts.sum())
    assert 1024 * programs_a_frame(slots, frames, 1024) < units
    live = torch.zeros(frames * units, dtype=torch.int16, device=DEVICE)
    batch = FrameBatch.of([live], [(0, Frame(k * units, 1, units, units)) for k in range(frames)])
    staged = Staged.empty(counts, slots, torch.int16)
    for k, (first, count) in enumerate(zip(staged.firsts.tolist(), counts.tolist(), strict=True)):
        staged.positions[first : first + count] = torch.arange(count, device=DEVICE)
        staged.new[first : first + count] = k + 1
    assert slots == int(count_missing(batch, staged))
    scatter(batch, staged)
    assert counts.tolist() == [int((part == k + 1).sum()) for k, part in enumerate(live.split(units))]
    assert slots == int((live != 0).sum())
    assert 0 == int(count_missing(batch, staged))


def test_frames_of_several_tensors_are_reached_from_the_first() -> None:
    tensors = [torch.full((64,), k, dtype=torch.int16, device=DEVICE) for k in range(3)]
    batch = FrameBatch.of(tensors, [(k, Frame(8 * k, 1, 8, 8)) for k in (2, 0, 1)])
    staged = Staged.empty(torch.full((3,), 8, dtype=torch.int32, device=DEVICE), 24, torch.int16)
    staged.positions.copy_(torch.arange(8, device=DEVICE).repeat(3))
    staged.new.copy_(torch.arange(100, 124, device=DEVICE))
    scatter(batch, staged)
    expected = [torch.full((64,), k, dtype=torch.int16) for k in range(3)]
    for first, k in ((100, 2), (108, 0), (116, 1)):
        expected[k][8 * k : 8 * k + 8] = torch.arange(first, first + 8, dtype=torch.int16)
    assert [t.tolist() for t in expected] == [t.tolist() for t in tensors]


def test_no_frames_are_no_work() -> None:
    batch = FrameBatch.of([torch.zeros(8, dtype=torch.int16)], [])
    staged = Staged.empty(torch.zeros(0, dtype=torch.int32), 0, torch.int16)
    scatter(batch, staged)
    assert 0 == int(count_missing(batch, staged))
