"""Frames cover a tensor exactly once, stay within bounds, and fall on tensor-parallel cuts."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import FormatInvalid
from syncline.wire.limits import DIMENSION_MAX
from syncline.wire.tiling import Frame, FrameGrid, Tiling, grid

SMALL = Tiling(min_units=8, max_units=64, ways=16)


def units_of(frame: Frame) -> np.ndarray:
    rows = frame.base + np.arange(frame.runs)[:, None] * frame.stride
    return (rows + np.arange(frame.length)[None, :]).ravel()


shapes = st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(lambda s: prod(s) <= 20_000)


@given(shape=shapes, data=st.data())
def test_frames_cover_every_unit_exactly_once(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    cut = grid(shape, axis, SMALL)
    covered = np.concatenate([np.zeros(0, np.int64), *(units_of(cut.frame(i)) for i in range(cut.count))])
    assert np.array_equal(np.arange(prod(shape)), np.sort(covered))


@given(shape=shapes, data=st.data())
def test_the_columns_of_a_grid_are_its_frames(shape: list[int], data: st.DataObject) -> None:
    cut = grid(shape, data.draw(st.integers(0, len(shape) - 1)), SMALL)
    found = cut.columns()
    rows = zip(found.bases.tolist(), found.runs.tolist(), found.lengths.tolist(), found.strides.tolist(), strict=True)
    assert [cut.frame(i) for i in range(cut.count)] == [Frame(*row) for row in rows]


def test_the_columns_of_the_largest_tensor_are_exact() -> None:
    cut = FrameGrid(1, DIMENSION_MAX, 1, (1 << 12) - 1, 1)
    assert [cut.frame(i).base for i in (1, 77, cut.count - 1)] == cut.columns().bases[[1, 77, -1]].tolist()


@pytest.mark.parametrize(
    "cut",
    [
        FrameGrid(1, DIMENSION_MAX, 1, DIMENSION_MAX // 7, 1),
        FrameGrid(1, 3, DIMENSION_MAX // 3, 3, DIMENSION_MAX // 9),
        FrameGrid(3, (1 << 33) + 1, 5, (1 << 31) - 1, 1),
        FrameGrid(3, (1 << 33) + 1, 5, 1 << 31, 1),
    ],
)
def test_some_frames_of_a_grid_of_any_size_are_exact(cut: FrameGrid) -> None:
    indices = [0, 1, 77, cut.count // 2, cut.count - 2, cut.count - 1]
    found = cut.at(np.array(indices, np.int64))
    rows = zip(found.bases.tolist(), found.runs.tolist(), found.lengths.tolist(), found.strides.tolist(), strict=True)
    assert [cut.frame(i) for i in indices] == [Frame(*row) for row in rows]


@given(shape=shapes, data=st.data())
def test_no_frame_is_empty_or_larger_than_the_tiling_allows(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    cut = grid(shape, axis, SMALL)
    sizes = [cut.frame(i).units for i in range(cut.count)]
    assert all(0 < size <= SMALL.max_units for size in sizes)
    assert all(cut.least_units <= size for size in sizes)


@given(shape=shapes, data=st.data())
def test_offset_agrees_with_the_frame_as_rows(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    cut = grid(shape, axis, SMALL)
    for index in range(min(cut.count, 5)):
        frame = cut.frame(index)
        assert units_of(frame).tolist() == [frame.offset(p) for p in range(frame.units)]


@pytest.mark.parametrize("ways", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("shape", "axis"), [((4096, 4096), 0), ((4096, 4096), 1), ((128256, 4096), 0), ((11008, 512), 1)]
)
def test_slices_of_large_tensors_are_unions_of_frames(shape: tuple[int, int], axis: int, ways: int) -> None:
    cut = grid(shape, axis, Tiling())
    edges = {band * shape[axis] // cut.bands for band in range(cut.bands + 1)}
    assert {way * shape[axis] // ways for way in range(ways + 1)} <= edges


def test_a_tensor_below_the_minimum_is_one_frame() -> None:
    assert grid((32767,), 0, Tiling()).count == 1


def test_a_row_beyond_the_largest_frame_is_cut_inside() -> None:
    cut = grid((3, 1 << 22), 0, Tiling())
    assert (3, 4) == (cut.bands, cut.pieces)
    assert Frame(base=(1 << 22) + (1 << 20), runs=1, length=1 << 20, stride=3 << 22) == cut.frame(5)


def test_column_bands_of_too_many_rows_fall_back_to_rows() -> None:
    assert 1 == grid(((1 << 20) + 1, 8), 1, Tiling()).outer


def test_positions_beyond_four_gib_are_64_bit() -> None:
    cut = grid((1 << 20, 1 << 14), 0, Tiling())
    last = cut.frame(cut.count - 1)
    assert (1 << 34) - 1 == last.offset(last.units - 1)


def test_an_empty_tensor_has_no_frames() -> None:
    assert 0 == grid((0, 5), 0, Tiling()).count


def test_a_frame_outside_the_grid_is_refused_by_number() -> None:
    with pytest.raises(FormatInvalid, match="frame 4 is outside the tensor's 4"):
        grid((704, 256), 0, Tiling()).frame(4)
