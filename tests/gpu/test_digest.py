"""Digests on the device equal the plain formula, at any position, for every unit width."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.kernels.gpu import reference_decode
from syncline.kernels.gpu.batch import FrameBatch, Staged, Walk
from syncline.kernels.gpu.digest import TensorPlaces, change_digest, sweep
from syncline.kernels.gpu.scatter import scatter
from syncline.wire.digest import MASK64, Digest, seeds
from syncline.wire.tiling import Frame

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def digests(sums: torch.Tensor) -> list[Digest]:
    rows = cast("list[list[int]]", sums.tolist())
    return [Digest(one & MASK64, two & MASK64) for one, two in rows]


def drawn(generator: np.random.Generator, size: int, count: int) -> torch.Tensor:
    kind = f"i{size}" if size > 1 else "u1"
    return torch.from_numpy(np.frombuffer(generator.bytes(size * count), kind).copy()).to(DEVICE)


@settings(max_examples=15)
@given(
    size=st.sampled_from([1, 2, 4, 8]),
    runs=st.integers(1, 4),
    length=st.integers(1, 200),
    base=st.sampled_from([0, 5, (1 << 31) - 100, (1 << 32) - 100, (1 << 40) + 7]),
    seed=st.integers(0, 1 << 30),
)
def test_a_sweep_and_a_change_equal_the_formula(size: int, runs: int, length: int, base: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    live_frame = Frame(seed % 3, runs, length, length + seed % 5)
    chain_frame = Frame(base, runs, length, length + seed % 11)
    live = drawn(generator, size, live_frame.offset(live_frame.units - 1) + 1)
    batch = FrameBatch.of([live], [(0, live_frame)])
    places = TensorPlaces.of([(seeds(f"tensor {seed}"), chain_frame)], DEVICE)
    before = sweep(batch, places)
    assert reference_decode.sweep(batch, places) == digests(before)
    changed = int(generator.integers(1, live_frame.units + 1))
    staged = Staged.empty(torch.tensor([changed], dtype=torch.int32, device=DEVICE), changed, live.dtype)
    positions = np.sort(generator.permutation(live_frame.units)[:changed]).astype(np.int32)
    staged.positions.copy_(torch.from_numpy(positions))
    staged.old.copy_(live[torch.tensor([live_frame.offset(int(p)) for p in positions]).to(DEVICE)])
    staged.new.copy_(drawn(generator, size, changed))
    added = change_digest(batch, staged, places)
    assert reference_decode.change_digest(batch, staged, places) == digests(added)
    scatter(batch, staged)
    assert digests(before + added) == digests(sweep(batch, places))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("base", [0, (1 << 32) - 1500])
def test_many_whole_frames_are_swept_each_by_itself(size: int, base: int) -> None:
    units = 2000
    live = drawn(np.random.default_rng(size), size, 3 * units)
    frames = [Frame(k * units, 1, units, units) for k in range(3)]
    batch = FrameBatch.of([live], [(0, frame) for frame in frames])
    assert Walk.FLAT == batch.walk
    chain = [
        (seeds(name), Frame(base + frame.base, 1, units, units)) for name, frame in zip("aba", frames, strict=True)
    ]
    places = TensorPlaces.of(chain, DEVICE)
    assert reference_decode.sweep(batch, places) == digests(sweep(batch, places))


def test_one_flipped_bit_is_found() -> None:
    live = drawn(np.random.default_rng(9), 2, 600)
    frame = Frame(0, 1, 600, 600)
    batch = FrameBatch.of([live], [(0, frame)])
    places = TensorPlaces.of([(seeds("weight"), frame)], DEVICE)
    before = digests(sweep(batch, places))
    live[417] ^= 1 << 9
    assert before != digests(sweep(batch, places))
