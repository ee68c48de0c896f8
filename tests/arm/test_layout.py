"""What a rank may hold of tensors, and where the frames of a run then lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.layout import Band, Block, Layout, row_major, shape_of
from syncline_agent.arm.placing import InPlace, Strewn, place, rows, rows_in_tensor

TABLE = TensorTable(
    tensors=[
        TensorSpec(name="a", dtype="BF16", shape=[6, 8], axis=1),
        TensorSpec(name="b", dtype="BF16", shape=[6, 8], axis=0),
        TensorSpec(name="c.empty", dtype="BF16", shape=[0, 8], axis=0),
        TensorSpec(name="d.codes", dtype="F4", shape=[3, 3, 2], axis=1),
        TensorSpec(name="e.scalar", dtype="F32", shape=[], axis=0),
        TensorSpec(name="f.codes", dtype="F4", shape=[4, 5], axis=1),
    ]
)


def box(tensor: int, start: tuple[int, ...], size: tuple[int, ...], offset: int = 0, *strides: int) -> Block:
    return Block(tensor, start, size, 0, offset, strides or row_major(size))


def test_every_tensor_whole_is_a_layout_of_one_band_each() -> None:
    layout = Layout.whole(TABLE)
    assert layout.is_whole
    assert [Band(0, 1, 0, 8), Band(1, 0, 0, 6), Band(3, 1, 0, 3), Band(4, 0, 0, 1), Band(5, 0, 0, 10)] == list(
        layout.all_bands
    )
    assert layout == Layout.of(TABLE, [block for held in layout.blocks for block in held])


def test_blocks_that_touch_are_one_band_and_others_are_apart() -> None:
    layout = Layout.of(
        TABLE,
        [
            box(0, (0, 4), (6, 2), 0),
            box(0, (0, 2), (2, 2), 20),
            box(0, (2, 2), (4, 2), 40),
            box(0, (0, 7), (6, 1), 60),
            box(1, (5, 0), (1, 8), 70),
        ],
    )
    assert [[Band(0, 1, 2, 6), Band(0, 1, 7, 8)], [Band(1, 0, 5, 6)], [], [], [], []] == layout.bands
    assert not layout.is_whole


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ([box(6, (0,), (1,))], "tensor 6, the table has 6"),
        ([box(0, (0,), (6,))], r"a has other dimensions than the tensor's \[6, 8\]"),
        ([box(0, (0, 4), (6, 5))], r"a block of a at \(0, 4\) of \(6, 5\) is outside"),
        ([box(0, (-1, 0), (1, 1))], "outside"),
        ([box(0, (0, 0), (0, 8))], "outside"),
        ([box(0, (0, 0), (6, 8), -1)], "outside its store"),
        ([box(0, (0, 0), (6, 8), 0, 8, 0)], "lies over itself"),
        ([box(0, (0, 0), (6, 8), 0, 7, 1)], "lies over itself"),
        ([box(0, (0, 0), (3, 4))], r"what is held of a \[6, 8\] is no band"),
        ([box(0, (0, 0), (6, 4)), box(0, (0, 3), (6, 4), 24)], r"a is held twice: at \(0, 0\) and at \(0, 3\)"),
        (
            [box(0, (0, 0), (6, 8)), box(1, (0, 0), (6, 8), 47)],
            r"b at \(0, 0\) lies where another block of store 0 lies",
        ),
        ([box(0, (0, 0), (6, 4), 0, 8, 1), box(1, (0, 0), (6, 4), 3, 8, 1)], "lies where another"),
        ([box(0, (0, 0), (6, 4), 0, 8, 1), box(0, (0, 4), (6, 4), 3, 8, 1)], "lies where another"),
    ],
)
def test_what_cannot_be_held_is_refused_by_name(blocks: list[Block], says: str) -> None:
    with pytest.raises(LayoutRefused, match=says):
        Layout.of(TABLE, blocks)


def test_column_slices_of_two_tensors_may_lie_between_each_other_in_one_store() -> None:
    layout = Layout.of(TABLE, [box(0, (0, 0), (6, 8), 0, 16, 1), box(1, (0, 0), (6, 8), 8, 16, 1)])
    assert [[Band(0, 1, 0, 8)], [Band(1, 0, 0, 6)]] == list(layout.bands)[:2]


def test_a_frame_of_columns_in_a_fused_store_lies_in_place_as_rows_that_are_further_apart() -> None:
    layout = Layout.of(TABLE, [box(0, (0, 4), (6, 4), 100, 50, 1)])
    frames = place(layout, 0, Tiling(min_units=4, max_units=12, ways=1)).frames
    assert [2, 3] == list(frames)
    for index, frame in frames.items():
        assert isinstance(frame, InPlace)
        assert (100 + 2 * (index - 2), 6, 2, 50) == (
            frame.there.base,
            frame.there.runs,
            frame.there.length,
            frame.there.stride,
        )


def test_a_row_of_a_turned_store_lies_in_place_unit_by_unit_and_several_do_not() -> None:
    layout = Layout.of(TABLE, [box(1, (0, 0), (6, 8), 0, 1, 6)])
    single = place(layout, 1, Tiling(min_units=1, max_units=8, ways=1)).frames
    assert {InPlace} == {type(frame) for frame in single.values()}
    double = place(layout, 1, Tiling(min_units=1, max_units=16, ways=1)).frames
    assert [Strewn] * 3 == [type(frame) for frame in double.values()]
    assert all(frame.is_whole for frame in double.values() if isinstance(frame, Strewn))


@pytest.mark.parametrize(("shape", "axis"), [([2, 1, 3, 5], 1), ([2, 4, 3, 5], 1), ([3, 7, 9], 0), ([1, 1, 40], 1)])
def test_what_lies_as_the_tensor_does_is_in_place_however_it_is_cut(shape: list[int], axis: int) -> None:
    table = TensorTable(tensors=[TensorSpec(name="t", dtype="U8", shape=shape, axis=axis)])
    frames = place(Layout.whole(table), 0, Tiling(min_units=1, max_units=4, ways=1)).frames
    assert len(frames) == table.tensors[0].grid(Tiling(min_units=1, max_units=4, ways=1)).count
    for frame in frames.values():
        assert isinstance(frame, InPlace)
        units = range(frame.frame.units)
        assert [frame.frame.offset(p) for p in units] == [frame.there.offset(p) for p in units]


@st.composite
def held(draw: st.DrawFn) -> tuple[Layout, Tiling, dict[int, int]]:
    """Bands of a tensor in one store, in any order of dimensions and with gaps; and where each unit lies."""
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    axis, cut = (draw(st.integers(0, len(shape) - 1)) for _ in range(2))
    edges = sorted(draw(st.sets(st.integers(0, shape[cut]), max_size=4)))
    order = draw(st.permutations(range(len(shape))))
    places: dict[int, int] = {}
    blocks: list[Block] = []
    end = draw(st.integers(0, 3))
    for low, high in zip(edges[::2], edges[1::2], strict=False):
        start, size, strides, reach = [0] * len(shape), list(shape), [0] * len(shape), 1
        start[cut], size[cut] = low, high - low
        for dimension in reversed(order):
            strides[dimension] = reach
            reach *= size[dimension] + draw(st.integers(0, 1))
        blocks.append(Block(0, tuple(start), tuple(size), 0, end, tuple(strides)))
        for index in np.ndindex(*size):
            at = np.ravel_multi_index([i + s for i, s in zip(index, start, strict=True)], shape)
            places[int(at)] = end + sum(i * s for i, s in zip(index, strides, strict=True))
        end = max(places.values()) + 1
    table = TensorTable(tensors=[TensorSpec(name="t", dtype="U8", shape=shape, axis=axis)])
    least = draw(st.sampled_from([1, 4, 16]))
    tiling = Tiling(least, draw(st.sampled_from([2 * least, 64])), draw(st.sampled_from([1, 2, 4])))
    return Layout.of(table, blocks), tiling, places


@given(held())
def test_placed_frames_lead_from_every_held_unit_to_its_place(drawn: tuple[Layout, Tiling, dict[int, int]]) -> None:
    layout, tiling, expected = drawn
    spec = layout.table.tensors[0]
    placed = place(layout, 0, tiling)
    found: dict[int, int] = {}
    counted = [0] * len(placed.parts)
    for index, frame in placed.frames.items():
        assert spec.grid(tiling).frame(index) == frame.frame
        if isinstance(frame, InPlace):
            pairs = [(frame.frame.offset(p), frame.there.offset(p)) for p in range(frame.frame.units)]
            parts = [frame.part] * len(pairs)
        else:
            pairs, parts = [], []
            for spot in frame.spots:
                units = [r.offset(p) for r in rows_in_tensor(shape_of(spec), spot) for p in range(r.units)]
                at = [r.offset(p) for r in rows(spot.base, spot.size, spot.strides) for p in range(r.units)]
                there = [r.offset(p) for r in rows(spot.first, spot.size, frame.strides) for p in range(r.units)]
                assert [frame.frame.offset(p) for p in there] == units
                pairs += zip(units, at, strict=True)
                parts += [spot.part] * len(units)
        for (unit, at), part in zip(pairs, parts, strict=True):
            band = layout.bands[0][placed.parts[part].band]
            assert band.low <= np.unravel_index(unit, shape_of(spec))[band.axis] < band.high
            assert index == placed.parts[part].frame
            counted[part] += 1
            found[unit] = at
    assert expected == found
    assert counted == [part.units for part in placed.parts]
