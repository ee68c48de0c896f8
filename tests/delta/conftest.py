"""Small tensor tables with everything in them, and weights for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from syncline.delta import CodecChoice, Delta, DeltaEncoder, EncodedDelta, TensorChange
from syncline.wire.dtypes import DTYPES
from syncline.wire.records import ChunkRef
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

Units = NDArray[np.unsignedinteger]

TILING = Tiling(min_units=16, max_units=128, ways=4)
"""So small that a few hundred units are many frames, some of them strided."""


@dataclass(slots=True)
class Encoded:
    """What an encoder gave out."""

    chunks: list[tuple[ChunkRef, bytes]] = field(default_factory=list)
    changes: list[TensorChange] = field(default_factory=list)
    delta: EncodedDelta | None = None


class Weights:
    """A table, random weights for it, and steps of them."""

    def __init__(self, table: TensorTable, *, seed: int = 0) -> None:
        self.table = table
        self.random = np.random.default_rng(seed)
        self.tiling = TILING

    def draw(self) -> list[Units]:
        return [np.frombuffer(self.random.bytes(t.size_bytes), f"<u{t.unit_bytes}").copy() for t in self.table.tensors]

    def step(self, old: Sequence[Units], share: float = 0.03) -> list[Units]:
        """Another version: about `share` of the units differ."""
        new = []
        for flat in old:
            where = self.random.random(flat.size) < share
            shifts = self.random.integers(0, 8 * flat.itemsize, flat.size).astype(flat.dtype)
            new.append(flat ^ np.where(where, flat.dtype.type(1) << shifts, flat.dtype.type(0)))
        return new

    def encode(
        self,
        old: Sequence[Units],
        new: Sequence[Units],
        *,
        codec: str | None = None,
        executor: Executor | None = None,
        **settings: int,
    ) -> Encoded:
        result = Encoded()
        encoder = DeltaEncoder(
            self.table,
            self.tiling,
            nonce=lambda: self.random.bytes(16),
            sink=lambda ref, data: result.chunks.append((ref, data)),
            choice=CodecChoice(forced=codec),
            executor=executor,
            **settings,
        )
        result.changes = [encoder.add(t, a, b) for t, (a, b) in enumerate(zip(old, new, strict=True))]
        result.delta = encoder.finish()
        return result

    def delta(self, old: Sequence[Units], new: Sequence[Units], *, codec: str | None = None) -> Delta:
        return self.parse(self.encode(old, new, codec=codec))

    def parse(self, encoded: Encoded) -> Delta:
        return Delta.parse(self.table, self.tiling, encoded.chunks)


def every_kind_of_tensor() -> TensorTable:
    """Every dtype, as a matrix cut by rows and one cut by columns; 0-d, empty and odd shapes; packed rows of no whole bytes."""
    tensors: list[TensorSpec] = []
    for name, dtype in DTYPES.items():
        tensors.append(TensorSpec(name=f"{name}.rows", dtype=name, shape=[24, 32], axis=0))
        tensors.append(TensorSpec(name=f"{name}.columns", dtype=name, shape=[8, 64], axis=1))
        tensors.append(TensorSpec(name=f"{name}.empty", dtype=name, shape=[0, 8], axis=0))
        if dtype.bits % 8 == 0:
            tensors.append(TensorSpec(name=f"{name}.scalar", dtype=name, shape=[], axis=0))
            tensors.append(TensorSpec(name=f"{name}.odd", dtype=name, shape=[7, 5, 11], axis=1))
    tensors.append(TensorSpec(name="F4.flat", dtype="F4", shape=[40, 5], axis=1))
    tensors.append(TensorSpec(name="F6_E3M2.flat", dtype="F6_E3M2", shape=[16, 9], axis=0))
    return TensorTable(tensors=sorted(tensors, key=lambda t: t.name))


@pytest.fixture
def weights() -> Weights:
    return Weights(every_kind_of_tensor())


@pytest.fixture
def make_weights() -> Callable[..., Weights]:
    def make(*shapes: Sequence[int], dtype: str = "BF16", axis: int = 0, seed: int = 0) -> Weights:
        tensors = [TensorSpec(name=f"t{i:03d}", dtype=dtype, shape=list(s), axis=axis) for i, s in enumerate(shapes)]
        return Weights(TensorTable(tensors=tensors), seed=seed)

    return make


@pytest.fixture(params=["one thread", "three threads"])
def executor(request: pytest.FixtureRequest) -> object:
    if request.param == "one thread":
        yield None
        return
    with ThreadPoolExecutor(3) as pool:
        yield pool
