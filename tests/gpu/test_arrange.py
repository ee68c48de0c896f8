"""The order of staged changes: runs of a frame's slots sorted by position, nothing lost, nothing of other frames moved."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.kernels.gpu import reference_decode
from syncline.kernels.gpu.arrange import RUN, arrange
from syncline.kernels.gpu.batch import Staged
from syncline.testing.device_frames import device_case
from syncline.wire.limits import FRAME_MAX_UNITS
from syncline.wire.tiling import Frame

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@settings(max_examples=5)
@given(
    size=st.sampled_from([1, 2, 4, 8]),
    counts=st.lists(st.sampled_from([0, 1, RUN - 1, RUN, 2 * RUN + 7]), min_size=1, max_size=3),
    gap=st.integers(0, 3),
    seed=st.integers(0, 1 << 30),
)
def test_kernel_and_reference_agree(size: int, counts: list[int], gap: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    slots = sum(counts) + gap * len(counts)
    kind = f"i{size}" if size > 1 else "u1"
    old, new = (torch.from_numpy(np.frombuffer(generator.bytes(size * slots), kind).copy()) for _ in range(2))
    positions = np.concatenate(
        [np.zeros(0, np.int32)]
        + [generator.choice(FRAME_MAX_UNITS, count + gap, replace=False).astype(np.int32) for count in counts]
    )
    changed = torch.tensor(counts, dtype=torch.int32)
    firsts = torch.cumsum(changed.to(torch.int64) + gap, 0) - changed - gap
    parts = (firsts, changed, torch.from_numpy(positions), old, new)
    staged = Staged(*(part.clone().to(DEVICE) for part in parts))
    expected = Staged(*(part.clone() for part in parts))
    arrange(staged)
    reference_decode.arrange(expected)
    assert torch.equal(expected.positions, staged.positions.cpu())
    assert torch.equal(expected.old, staged.old.cpu())
    assert torch.equal(expected.new, staged.new.cpu())


def test_what_several_lanes_left_in_no_order_ascends_in_runs_and_is_the_same_change() -> None:
    frames = [Frame(0, 1, 640, 640), Frame(650, 16, 40, 44)]
    case = device_case("BF16", frames, share=0.2, lane_shift=7, seed=3, device=DEVICE)
    reference_decode.decode(case.batch, case.coded, case.staged)
    before = [case.changes(frame) for frame in range(2)]
    decoded = case.staged.positions.clone()
    arrange(case.staged)
    assert before == [case.changes(frame) for frame in range(2)]
    assert case.gaps_untouched()
    assert not torch.equal(decoded, case.staged.positions)
    for first, count in zip(case.staged.firsts.tolist(), case.staged.changed.tolist(), strict=True):
        for run in case.staged.positions[first : first + count].split(RUN):
            assert torch.equal(run.sort().values, run)


def test_no_frames_are_no_work() -> None:
    arrange(Staged.empty(torch.zeros(0, dtype=torch.int32), 0, torch.int16))
