"""Held frames as arrays are launched as the same frames are one by one, and geometry that does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.delta.device.held import HeldFrame, HeldFrames
from syncline.kernels.gpu.batch import FrameBatch
from syncline.kernels.gpu.digest import TensorPlaces
from syncline.wire.digest import seeds
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Frame, Tiling

TILING = Tiling(min_units=8, max_units=64, ways=4)
TABLE = TensorTable(tensors=[TensorSpec(name=name, dtype="BF16", shape=[16, 12], axis=1) for name in ("a", "b")])


def held(tensor: int, index: int, store: int, base: int, stride: int) -> HeldFrame:
    frame = TABLE.tensors[tensor].grid(TILING).frame(index)
    return HeldFrame(tensor, index, frame, store, Frame(base, frame.runs, frame.length, stride))


@settings(max_examples=60)
@given(
    shifts=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    places=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 40), st.sampled_from([3, 8, 12, 16])), min_size=1, max_size=8
    ),
    data=st.data(),
)
def test_any_frames_are_launched_as_each_by_itself(shifts, places, data: st.DataObject) -> None:
    stores = [torch.arange(400, dtype=torch.int16)[shift:] for shift in shifts]
    count = TABLE.tensors[0].grid(TILING).count
    keys = [(tensor, index) for tensor in (0, 1) for index in range(count)][: len(places)]
    frames = [held(*key, store, base, stride) for key, (store, base, stride) in zip(keys, places, strict=False)]
    (kind,) = HeldFrames.of(TABLE, TILING, stores, frames).kinds
    rows = data.draw(st.lists(st.sampled_from(range(len(frames))), min_size=1, unique=True))
    batch, places_there = kind.launch(torch.tensor(rows).numpy())
    wanted = FrameBatch.of([kind.anchor, *stores], [(1 + frames[row].store, frames[row].there) for row in rows])
    for name in ("bases", "lengths", "strides", "units"):
        assert getattr(wanted, name).tolist() == getattr(batch, name).tolist()
    assert wanted.walk == batch.walk
    names = [TABLE.tensors[frames[row].tensor].name for row in rows]
    in_tensor = TensorPlaces.of(
        [(seeds(name), frames[row].frame) for name, row in zip(names, rows, strict=True)], kind.anchor.device
    )
    assert in_tensor.flat == places_there.flat
    for name in ("seeds", "bases", "lengths", "strides"):
        assert getattr(in_tensor, name).tolist() == getattr(places_there, name).tolist()
    for row in rows:
        there, store = frames[row].there, stores[frames[row].store]
        expected = [int(store[there.offset(position)]) for position in range(there.units)]
        assert expected == kind.view(row).reshape(-1).tolist()


def test_tensors_that_are_held_whole_are_held_frame_by_frame() -> None:
    shapes = {"a": ("BF16", [16, 12], 1), "b": ("F32", [40], 0), "c": ("BF16", [0, 4], 0), "d": ("BF16", [7, 9], 0)}
    table = TensorTable(
        tensors=[TensorSpec(name=n, dtype=dtype, shape=shape, axis=axis) for n, (dtype, shape, axis) in shapes.items()]
    )
    kinds = {"BF16": torch.int16, "F32": torch.int32}
    stores = [torch.zeros(spec.units + 3, dtype=kinds[spec.dtype])[3:] for spec in table.tensors]
    grids = [spec.grid(TILING) for spec in table.tensors]
    each = [
        HeldFrame(tensor, index, grids[tensor].frame(index), tensor, grids[tensor].frame(index))
        for tensor in range(4)
        for index in range(grids[tensor].count)
    ]
    wanted = HeldFrames.of(table, TILING, stores, each)
    found = HeldFrames.whole(table, TILING, list(enumerate(stores)))
    assert len(wanted.kinds) == len(found.kinds) == 2
    for kind, same in zip(wanted.kinds, found.kinds, strict=True):
        assert (kind.anchor.data_ptr(), kind.device) == (same.anchor.data_ptr(), same.device)
        for name in ("tensors", "indices", "wide", "narrow", "walks", "runs", "store_of"):
            assert getattr(kind, name).tolist() == getattr(same, name).tolist()
            assert getattr(kind, name).dtype == getattr(same, name).dtype
    assert found.of_tensor(2) is None
    for tensor in (0, 1, 3):
        one, other = wanted.of_tensor(tensor), found.of_tensor(tensor)
        assert one is not None
        assert other is not None
        assert (one[0], one[1].tolist()) == (other[0], other[1].tolist())


def test_launches_of_any_number_of_frames_are_aligned_alike_so_that_none_waits_for_a_compiler() -> None:
    stores = [torch.zeros(1100, dtype=torch.int16)]
    frames = [held(tensor, index, 0, 130 * (4 * tensor + index), 8) for tensor in (0, 1) for index in range(4)]
    (kind,) = HeldFrames.of(TABLE, TILING, stores, frames).kinds
    for count in range(1, 9):
        batch, places = kind.launch(torch.arange(count).numpy())
        for owner, names in (
            (batch, ("bases", "lengths", "strides", "units")),
            (places, ("bases", "lengths", "strides")),
        ):
            arrays = [getattr(owner, name) for name in names]
            assert [True] * len(names) == [array.is_contiguous() and array.data_ptr() % 16 == 0 for array in arrays]


def test_a_frame_that_does_not_fit_its_store_is_refused() -> None:
    stores = [torch.zeros(60, dtype=torch.int16)]
    for wrong in (held(0, 0, 0, 30, 3), held(0, 0, 0, -1, 3), held(0, 0, 0, 0, 4)):
        with pytest.raises(ValueError, match="in store 0 of 60 units does not hold"):
            HeldFrames.of(TABLE, TILING, stores, [wrong])
    with pytest.raises(ValueError, match="no flat row"):
        two = [torch.zeros(60, dtype=torch.int16), torch.zeros(120, dtype=torch.int16)[::2]]
        HeldFrames.of(TABLE, TILING, two, [held(0, 0, 0, 0, 3), held(0, 1, 1, 0, 3)])


def test_frames_are_found_among_those_that_are_held_and_no_other() -> None:
    store = torch.zeros(400, dtype=torch.int16)
    count = TABLE.tensors[0].grid(TILING).count
    found = HeldFrames.of(TABLE, TILING, [store], [held(1, index, 0, 0, 12) for index in (2, 0)])
    tensors, indices = np.repeat(np.arange(4), count), np.tile(np.arange(count), 4)
    kinds, rows = found.find(tensors, indices)
    keys = zip(tensors.tolist(), indices.tolist(), strict=True)
    there = {key: (kind, row) for key, kind, row in zip(keys, kinds.tolist(), rows.tolist(), strict=True) if row >= 0}
    assert {(1, 2): (0, 0), (1, 0): (0, 1)} == there
    assert (kinds < 0).tolist() == (rows < 0).tolist()
    nowhere = HeldFrames.of(TABLE, TILING, [], []).find(tensors, indices)
    assert {-1} == set(np.concatenate(nowhere).tolist())
