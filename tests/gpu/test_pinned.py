"""Weights in pinned host memory: where they lie there, and that all which kernels need beside them is on the device."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from syncline.delta.device.held import HeldFrame, HeldFrames
from syncline.delta.device.pinned import pinned_units
from syncline.delta.device.slabs import Slab
from syncline.kernels.gpu.batch import FrameBatch
from syncline.kernels.gpu.host import reached_from
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

TILING = Tiling(min_units=32, max_units=64, ways=2)
ELSEWHERE = torch.device("meta")


def table(*shapes: tuple[str, list[int]]) -> TensorTable:
    return TensorTable(
        tensors=[
            TensorSpec(name=f"{at:02}", dtype=dtype, shape=shape, axis=0) for at, (dtype, shape) in enumerate(shapes)
        ]
    )


def test_each_tensor_has_room_of_its_own_in_few_blocks() -> None:
    mixed = table(("BF16", [70]), ("F32", [600]), ("U8", [3]), ("F64", [40]), ("BF16", [0, 4]), ("BF16", [500]))
    rooms = pinned_units(mixed, torch.device("cpu"), block_bytes=2048)
    assert [(s.units, s.unit_bytes) for s in mixed.tensors] == [(r.numel(), r.element_size()) for r in rooms]
    spans = sorted((room.data_ptr(), room.data_ptr() + room.nbytes) for room in rooms if room.numel())
    assert all(end <= first for (_, end), (first, _) in pairwise(spans))
    blocks = {room.untyped_storage().data_ptr(): room.untyped_storage().nbytes() for room in rooms}
    # The largest takes a block of 4096 bytes, whose rest others fill; each begins at a multiple of 256, and no block has room left over.
    assert [2560 + 1024 + 512, 256 + 256] == sorted(blocks.values(), reverse=True)
    for at, room in enumerate(rooms):
        room.fill_(at)
    assert all(bool((room == at).all()) for at, room in enumerate(rooms))


def test_memory_that_is_not_pinned_is_not_reached_from_elsewhere() -> None:
    one = table(("BF16", [64]))
    units = torch.zeros(64, dtype=torch.int16)
    frame = one.tensors[0].grid(TILING).frame(0)
    with pytest.raises(ValueError, match="64 units on cpu cannot be reached from meta: pin that memory"):
        reached_from(FrameBatch.of([units], [(0, frame)]), ELSEWHERE)
    with pytest.raises(ValueError, match="64 units on cpu cannot be reached from meta: pin that memory"):
        HeldFrames.of(one, TILING, [units], [HeldFrame(0, 0, frame, 0, frame)], device=ELSEWHERE)


def test_all_but_the_weights_is_where_the_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    one = table(("BF16", [64]))
    units = torch.zeros(64, dtype=torch.int16)
    frame = one.tensors[0].grid(TILING).frame(0)
    held = HeldFrames.of(one, TILING, [units], [HeldFrame(0, 0, frame, 0, frame)], device=ELSEWHERE)
    batch, places = held.kinds[0].launch(np.zeros(1, np.int64))
    slab = Slab.of(held.kinds[0], np.zeros(1, np.int64))
    reached = reached_from(FrameBatch.of([units], [(0, frame)]), ELSEWHERE)
    assert [torch.device("cpu")] * 2 == [batch.anchor.device, reached.anchor.device]
    beside = [batch, reached, slab.batch(np.zeros(1, np.int64))]
    arrays = [array for b in beside for array in (b.bases, b.lengths, b.strides, b.units)]
    arrays += [places.seeds, places.bases, places.lengths, places.strides, slab.before, slab.after]
    assert {ELSEWHERE} == {array.device for array in arrays} | {b.device for b in beside}
