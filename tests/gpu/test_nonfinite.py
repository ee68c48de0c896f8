"""Frames with NaN or Inf are found, in every dtype that has them, and no others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from syncline.delta.device.group import Group, HeldTensor
from syncline.delta.sums import digest_tensor
from syncline.kernels.gpu.batch import UNIT_TYPES, FrameBatch
from syncline.kernels.gpu.nonfinite import holds_nonfinite
from syncline.wire import dtypes
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Frame, Tiling

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [d.name for d in dtypes.DTYPES.values() if d.exponent_mask])
def test_only_frames_with_a_unit_of_all_the_mask_s_bits_are_found(only_own_memory: None, dtype: str) -> None:
    width, mask = 8 * dtypes.dtype(dtype).unit_bytes, dtypes.dtype(dtype).exponent_mask
    flat = torch.zeros(400, dtype=UNIT_TYPES[width])
    almost = mask & (mask - 1)  # all bits but the lowest of them
    flat[::3] = almost
    runs = [Frame(at, 1, 64, 64) for at in (0, 64, 128)]
    odd = [Frame(3, 1, 37, 37), Frame(200, 3, 7, 20), Frame(330, 3, 7, 20)]
    flat[191], flat[241] = mask, mask
    rows = [Frame(at, 4, 16, 48) for at in (0, 16, 32)]
    for frames, wanted in ((runs, [0, 0, 1]), (rows, [0, 0, 1]), (odd, [0, 1, 0])):
        batch = FrameBatch.of([flat], [(0, frame) for frame in frames])
        assert wanted == holds_nonfinite(batch, torch.full((3,), mask), 64).tolist()
        assert [0, 0, 0] == holds_nonfinite(batch, torch.zeros(3, dtype=torch.int64), 64).tolist()


def test_a_group_says_of_each_tensor_what_a_look_at_it_alone_says() -> None:
    specs = [
        TensorSpec(name="a", dtype="BF16", shape=[6, 40], axis=1),
        TensorSpec(name="b", dtype="F32", shape=[50], axis=0),
        TensorSpec(name="c", dtype="BF16", shape=[0], axis=0),
        TensorSpec(name="d", dtype="I64", shape=[9], axis=0),
        TensorSpec(name="e", dtype="BF16", shape=[3], axis=0),
    ]
    random = np.random.default_rng(1)
    new = [np.frombuffer(random.bytes(s.size_bytes), f"u{s.unit_bytes}").copy() for s in specs]
    new[0] &= np.uint16(0x3FFF)
    new[1] &= np.uint32(0x3FFF_FFFF)
    new[4] &= np.uint16(0x3FFF)
    old = [flat.copy() for flat in new]
    new[1][7] = old[1][7] = 0x7F80_0000  # was, and is
    new[1][[8, 49]] = 0x7FC0_0000
    new[4][2] = 0xFF80
    held = [
        HeldTensor(n, spec, *(torch.from_numpy(side[n].view(f"i{spec.unit_bytes}")) for side in (old, new)))
        for n, spec in enumerate(specs)
    ]
    group = Group.of(TensorTable(tensors=specs), Tiling(min_units=16, max_units=64, ways=2), held, CPU)
    assert [0, 2, 0, 0, 1] == group.nonfinite
    for side, before in ((old, True), (new, False)):
        assert [digest_tensor(*pair) for pair in zip(specs, side, strict=True)] == group.digests(before=before)
