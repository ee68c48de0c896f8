"""Encode, parse, stage, scatter, read back, undo: the live bits are the new ones, then the old ones again, for every kind of tensor."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syncline.codecs.registry import CODECS
from syncline.delta import Place, digest_tensor, read_back, scatter, stage_tensor, stage_whole
from syncline.errors import FrameCorrupt, LayoutRefused
from syncline.kernels import frames as kernels
from syncline.wire.digest import Digest, total
from syncline.wire.dtypes import DTYPES
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Frame

CODEC_NAMES = [*(c.name for c in CODECS.values()), "context"]


def same(expected: list[Any], found: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("codec", [*CODEC_NAMES, None])
@pytest.mark.parametrize("share", [0.002, 0.05, 1.0])
def test_a_step_goes_in_and_comes_out_again(weights: Any, codec: str | None, share: float, executor: Executor) -> None:
    old = weights.draw()
    new = weights.step(old, share)
    encoded = weights.encode(old, new, codec=codec, executor=executor)
    delta = weights.parse(encoded)
    live = [a.copy() for a in old]
    for tensor, spec in enumerate(weights.table.tensors):
        staged = stage_tensor(weights.table, weights.tiling, tensor, live[tensor], [delta], executor=executor)
        assert np.array_equal(old[tensor], live[tensor])
        before, after = (digest_tensor(spec, a, executor=executor) for a in (old[tensor], new[tensor]))
        assert after == before + staged.digest_change
        assert encoded.changes[tensor].digest_change == staged.digest_change
        assert int(np.count_nonzero(old[tensor] != new[tensor])) == staged.changed == encoded.changes[tensor].changed
        assert staged.nbytes == staged.changed * (4 + 2 * spec.unit_bytes)
        assert staged.changed == 0 or not read_back(spec, weights.tiling, live[tensor], staged)
        for _ in range(2):  # writing twice is writing once
            scatter(spec, weights.tiling, live[tensor], staged)
        assert np.array_equal(new[tensor], live[tensor])
        assert read_back(spec, weights.tiling, live[tensor], staged)
        assert staged.changed == 0 or not read_back(spec, weights.tiling, live[tensor], staged, undo=True)
        scatter(spec, weights.tiling, live[tensor], staged, undo=True)
        assert read_back(spec, weights.tiling, live[tensor], staged, undo=True)
        assert np.array_equal(old[tensor], live[tensor])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    shape=st.lists(st.integers(1, 24), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    share=st.floats(0, 1),
    codec=st.sampled_from([*CODEC_NAMES, None]),
    seed=st.integers(0, 1 << 30),
)
def test_any_step_of_any_tensor_comes_out_again(
    make_weights: Any, dtype: str, shape: list[int], axis: int, share: float, codec: str | None, seed: int
) -> None:
    shape[-1] *= 8  # whole bytes, whatever the dtype
    weights = make_weights(shape, dtype=dtype, axis=axis % len(shape), seed=seed)
    old = weights.draw()
    new = weights.step(old, share)
    delta = weights.parse(weights.encode(old, new, codec=codec))
    staged = stage_tensor(weights.table, weights.tiling, 0, old[0], [delta])
    scatter(weights.table.tensors[0], weights.tiling, old[0], staged)
    assert np.array_equal(new[0], old[0])


def test_only_tensors_that_change_are_in_the_delta(weights: Any) -> None:
    old = weights.draw()
    new = [a.copy() for a in old]
    changed = [3, 17, 40]
    for tensor in changed:
        new[tensor] = weights.step([old[tensor]], 1.0)[0]
    expected = [t for t in changed if old[t].size]
    encoded = weights.encode(old, new)
    assert expected == weights.parse(encoded).tensors
    assert expected == [c.tensor for c in encoded.changes if c.changed]
    assert len(expected) == encoded.delta.statistics.changed_tensors


def test_a_version_without_changes_has_no_chunks(weights: Any) -> None:
    old = weights.draw()
    encoded = weights.encode(old, old)
    assert [] == encoded.chunks
    assert 0 == encoded.delta.statistics.payload_bytes
    assert [] == weights.parse(encoded).tensors


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("count", [2, 5])
def test_a_row_of_deltas_stages_as_one(weights: Any, codec: str, count: int, executor: Executor) -> None:
    versions = [weights.draw()]
    deltas = []
    for _ in range(count):
        versions.append(weights.step(versions[-1], 0.1))
        deltas.append(weights.delta(versions[-2], versions[-1], codec=codec))
    whole = weights.delta(versions[0], versions[-1], codec=codec)
    for tensor, live in enumerate(versions[0]):
        row, one = (
            stage_tensor(weights.table, weights.tiling, tensor, live, d, executor=executor) for d in (deltas, [whole])
        )
        assert one.changed == row.changed
        assert one.digest_change == row.digest_change
        for expected, found in zip(one.frames, row.frames, strict=True):
            assert expected.frame == found.frame
            assert np.array_equal(expected.positions, found.positions)
            assert np.array_equal(expected.new, found.new)
            assert np.array_equal(expected.old, found.old)


def test_a_step_and_its_way_back_stage_nothing(weights: Any) -> None:
    old = weights.draw()
    new = weights.step(old, 0.1)
    there, back = weights.delta(old, new), weights.delta(new, old)
    for tensor, live in enumerate(old):
        staged = stage_tensor(weights.table, weights.tiling, tensor, live, [there, back])
        assert (0, Digest()) == (staged.changed, staged.digest_change)
        assert [] == list(staged.frames)


def test_whole_weights_stage_like_a_delta(weights: Any, executor: Executor) -> None:
    old = weights.draw()
    new = weights.step(old, 0.2)
    for tensor, spec in enumerate(weights.table.tensors):
        live = old[tensor].copy()
        staged = stage_whole(spec, weights.tiling, tensor, live, new[tensor], executor=executor)
        assert digest_tensor(spec, new[tensor]) == digest_tensor(spec, live) + staged.digest_change
        scatter(spec, weights.tiling, live, staged)
        assert np.array_equal(new[tensor], live)


@pytest.mark.parametrize("codec", [None, "raw", "sparse"])
def test_frames_that_lie_elsewhere_are_changed_there_and_those_that_are_not_held_are_left_out(
    weights: Any, codec: str | None
) -> None:
    old = weights.draw()
    new = weights.step(old, 0.2)
    delta = weights.delta(old, new, codec=codec)
    for tensor in delta.tensors:
        spec = weights.table.tensors[tensor]
        grid = spec.grid(weights.tiling)
        held = range(1, grid.count) if grid.count > 1 else range(1)
        store: Any = np.zeros(2 * spec.units + 9, old[tensor].dtype)
        places: dict[int, Place] = {}  # every second unit of a store, frame after frame: one column each
        for index in held:
            frame, base = grid.frame(index), sum(2 * grid.frame(i).units for i in held if i < index)
            places[index] = Place(store, Frame(base + 5, frame.units, 1, 2))
            store[base + 5 : base + 5 + 2 * frame.units : 2] = kernels.view(old[tensor], frame)
        before = store.copy()
        staged = stage_tensor(weights.table, weights.tiling, tensor, places.get, [delta])
        again = stage_whole(spec, weights.tiling, tensor, places.get, new[tensor])
        assert [f.frame for f in staged.frames] == [f.frame for f in again.frames]
        assert staged.digest_change == again.digest_change == total(f.digest_change for f in staged.frames)
        scatter(spec, weights.tiling, places.get, staged)
        assert read_back(spec, weights.tiling, places.get, staged)
        for index, place in places.items():
            assert np.array_equal(kernels.view(new[tensor], grid.frame(index)), kernels.view(store, place.frame))
        assert not store[::2].any()
        scatter(spec, weights.tiling, places.get, staged, undo=True)
        assert np.array_equal(before, store)
        if staged.frames:
            with pytest.raises(IndexError, match="is not held"):
                scatter(spec, weights.tiling, lambda _: None, staged)


def test_a_step_taken_against_other_weights_is_corrupt_and_names_the_tensor(weights: Any) -> None:
    old = weights.draw()
    new = weights.step(old, 1.0)
    delta = weights.delta(old, new, codec="sparse")
    tensor = next(t for t in delta.tensors if weights.table.tensors[t].name == "BF16.rows")
    with pytest.raises(FrameCorrupt, match=r"frame 0 of BF16\.rows"):
        stage_tensor(weights.table, weights.tiling, tensor, new[tensor], [delta])


def test_read_back_finds_one_bit_that_flipped_after_the_scatter(weights: Any) -> None:
    old = weights.draw()
    delta = weights.delta(old, weights.step(old, 0.05))
    for tensor in delta.tensors:
        spec = weights.table.tensors[tensor]
        live = old[tensor].copy()
        staged = stage_tensor(weights.table, weights.tiling, tensor, live, [delta])
        scatter(spec, weights.tiling, live, staged)
        frame = spec.grid(weights.tiling).frame(staged.frames[-1].frame)
        live[frame.offset(int(staged.frames[-1].positions[-1]))] ^= live.dtype.type(1)
        assert not read_back(spec, weights.tiling, live, staged)


def test_a_view_of_another_size_or_width_is_refused_by_name(weights: Any) -> None:
    old = weights.draw()
    delta = weights.delta(old, weights.step(old, 0.5))
    tensor = weights.table.index["BF16.rows"]
    for wrong in (old[tensor][:-1], old[tensor].astype(np.uint32), old[tensor].reshape(24, 32), old[tensor].view("i2")):
        with pytest.raises(LayoutRefused, match=r"BF16\.rows"):
            stage_tensor(weights.table, weights.tiling, tensor, wrong, [delta])
        with pytest.raises(LayoutRefused, match=r"BF16\.rows"):
            stage_whole(weights.table.tensors[tensor], weights.tiling, tensor, old[tensor], wrong)


def test_a_table_of_no_tensors_gives_an_empty_delta(make_weights: Any) -> None:
    none = make_weights()
    assert TensorTable(tensors=[]) == none.table
    assert [] == none.encode([], []).chunks
