"""Tensors beyond 4 GiB and 2^32 units: addressed right, without a disk or a memory that holds them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from syncline.delta import Delta, DeltaEncoder, read_back, scatter, stage_tensor
from syncline.kernels import frames as kernels
from syncline.kernels import reference
from syncline.kernels.digest import change_digest
from syncline.wire.digest import seeds
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Frame, Tiling

UNITS = (1 << 32) + (1 << 22)


@pytest.fixture
def sparse_memory(tmp_path: Path) -> Iterator[NDArray[np.uint8]]:
    """More than 4 GiB of zeros of which only touched pages exist: a file with a hole."""
    with (tmp_path / "hole").open("w+b") as file:
        file.truncate(UNITS)
        flat = np.frombuffer(mmap.mmap(file.fileno(), UNITS), np.uint8)
    yield flat
    (tmp_path / "hole").unlink()


@pytest.mark.parametrize("shape", [[1 << 20, 4100], [4100, 1 << 20]])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_frame_of_a_huge_tensor_lies_inside_it_and_the_last_ends_it(shape: list[int], axis: int) -> None:
    spec = TensorSpec(name="huge", dtype="BF16", shape=shape, axis=axis)
    grid = spec.grid(Tiling())
    ends = [grid.frame(i) for i in range(grid.count)]
    assert spec.units == sum(frame.units for frame in ends)
    assert spec.units - 1 == max(frame.offset(frame.units - 1) for frame in ends)


def test_a_frame_behind_four_gigabytes_is_written_where_it_lies(sparse_memory: NDArray[np.uint8]) -> None:
    frame = Frame((1 << 32) + 1000, 3, 500, 100_000)
    positions = np.array([0, 499, 500, 1499], np.uint32)
    values = np.array([1, 2, 3, 4], np.uint8)
    kernels.scatter(sparse_memory, frame, positions, values)
    assert kernels.matches(sparse_memory, frame, positions, values)
    assert values.tolist() == [int(sparse_memory[frame.offset(int(p))]) for p in positions]
    assert values.tolist() == kernels.take(sparse_memory, frame, positions).tolist()
    assert not sparse_memory[: 1 << 21].any()  # where 32-bit offsets would have wrapped to
    zeros = np.zeros(4, np.uint8)
    expected = reference.change_digest(frame, positions, zeros, values, seeds("huge"))
    assert expected == change_digest(frame, positions, zeros, values, seeds("huge"))


def test_a_delta_changes_the_end_of_a_tensor_beyond_four_gigabytes(sparse_memory: NDArray[np.uint8]) -> None:
    # The encoder reads whole tensors; to keep this short it sees the last frames only, of a tensor that begins there.
    tiling = Tiling()
    whole = TensorTable(tensors=[TensorSpec(name="huge", dtype="U8", shape=[UNITS >> 10, 1 << 10], axis=0)])
    grid = whole.tensors[0].grid(tiling)
    last = grid.frame(grid.count - 1)
    assert last.base > 1 << 32
    part = TensorTable(tensors=[TensorSpec(name="huge", dtype="U8", shape=[last.units], axis=0)])
    one_frame = Tiling(min_units=1 << 19, max_units=1 << 20, ways=1)
    assert 1 == part.tensors[0].grid(one_frame).count
    old = np.zeros(last.units, np.uint8)
    new = old.copy()
    new[[0, 77, last.units - 1]] = [5, 6, 7]
    chunks: list[bytes] = []
    encoder = DeltaEncoder(part, one_frame, nonce=lambda: bytes(16), sink=lambda _, data: chunks.append(data))
    encoder.add(0, old, new)
    encoder.finish()
    coded = Delta.parse(part, one_frame, [("part", chunks[0])]).frames(0)[0]
    delta = Delta.of({0: {grid.count - 1: coded}})
    staged = stage_tensor(whole, tiling, 0, sparse_memory, [delta])
    scatter(whole.tensors[0], tiling, sparse_memory, staged)
    assert read_back(whole.tensors[0], tiling, sparse_memory, staged)
    assert [5, 6, 7] == [int(sparse_memory[last.base + q]) for q in (0, 77, last.units - 1)]
    assert 3 == staged.changed
