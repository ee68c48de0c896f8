"""A small model spread over the ranks of an engine, for tests of arms: what each holds is said twice, as blocks and unit
by unit, so that one can be held against the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from syncline.delta import Delta, digest_tensor
from syncline.testing.tables import Weights, encode_delta
from syncline.wire.digest import Digest, total
from syncline.wire.records import TilingPart
from syncline.wire.tensors import TensorSpec, TensorTable, split_axis
from syncline_agent.arm.host_memory import HostMemory
from syncline_agent.arm.layout import Band, Block, Layout
from syncline_agent.arm.sweeping import band_digests

Indices = NDArray[np.int64]


@dataclass
class Rank:
    """A rank's stores, described twice: as blocks, and unit by unit as the place of each in all weights."""

    table: TensorTable
    starts: dict[str, int] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    stores: list[Indices] = field(default_factory=list)

    def store(self, *shape: int) -> Indices:
        self.stores.append(np.full(shape, -1, np.int64))
        return self.stores[-1]

    def put(self, name: str, cut: tuple[slice, ...], view: Indices) -> None:
        """Let `view`, which lies in the store made last, hold a box of the tensor."""
        tensor = self.table.index[name]
        shape = tuple(self.table.tensors[tensor].shape)
        units = np.arange(np.prod(shape)).reshape(shape)[cut]
        assert units.shape == view.shape
        if not units.size:
            return
        view[...] = self.starts[name] + units
        store = self.stores[-1]
        offset = (view.__array_interface__["data"][0] - store.__array_interface__["data"][0]) // 8
        start = tuple(range(n)[piece].start for n, piece in zip(shape, cut, strict=True))
        self.blocks.append(
            Block(tensor, start, view.shape, len(self.stores) - 1, offset, tuple(s // 8 for s in view.strides))
        )

    def expected(self, weights: Weights, padding: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        everything = np.concatenate([weights[spec.name] for spec in self.table.tensors])
        return [
            np.where(store.reshape(-1) >= 0, everything[store.reshape(-1)], pad)
            for store, pad in zip(self.stores, padding, strict=True)
        ]


@dataclass(frozen=True)
class Sizes:
    """A small model, and how it is spread."""

    ways: int
    hidden: int = 12
    heads: int = 8
    kv_heads: int = 2
    width: int = 4
    inner: int = 24
    experts: int = 3
    vocabulary: int = 37
    expert_parallel: bool = False
    dtype: str = "BF16"

    @property
    def table(self) -> TensorTable:
        h, w, i = self.hidden, self.width, self.inner
        shapes = {
            "q.weight": [self.heads * w, h],
            "k.weight": [self.kv_heads * w, h],
            "v.weight": [self.kv_heads * w, h],
            "v.bias": [self.kv_heads * w],
            "o_proj.weight": [h, self.heads * w],
            "turned.weight": [i, h],
            "turned.down_proj.weight": [h, i],
            "stack.gate_up": [self.experts, h, 2 * i],
            "norm.weight": [h],
            "embed.weight": [self.vocabulary, h],
            **{f"experts.{e}.{n}.weight": [i, h] for e in range(self.experts) for n in ("gate", "up")},
            **{f"experts.{e}.down_proj.weight": [h, i] for e in range(self.experts)},
        }
        specs = [
            TensorSpec(name=name, dtype=self.dtype, shape=shape, axis=split_axis(name, shape))
            for name, shape in sorted(shapes.items())
        ]
        tied = [s.model_copy(update={"aliases": ["lm_head.weight"]}) if s.name == "embed.weight" else s for s in specs]
        return TensorTable(tensors=tied)

    def rank(self, rank: int) -> Rank:
        """What tensor parallelism leaves to one rank, in fused stores."""
        held = Rank(self.table)
        held.starts = dict(zip((s.name for s in held.table.tensors), self._starts(held.table), strict=True))
        h, w, ways, every = self.hidden, self.width, self.ways, slice(None)
        first, last = rank * self.heads // ways, (rank + 1) * self.heads // ways
        kv_first = rank * self.kv_heads // ways
        kv = max(1, (rank + 1) * self.kv_heads // ways - kv_first)  # where there are fewer heads than ranks: copies
        q, k = slice(first * w, last * w), slice(kv_first * w, (kv_first + kv) * w)
        fused = held.store((last - first + 2 * kv) * w, h)
        held.put("q.weight", (q, every), fused[: (last - first) * w])
        held.put("k.weight", (k, every), fused[(last - first) * w : (last - first + kv) * w])
        held.put("v.weight", (k, every), fused[(last - first + kv) * w :])
        held.put("v.bias", (k,), held.store(kv * w))
        # Heads of one rank that are not neighbours: every `ways`-th.
        mine = range(rank, self.heads, ways)
        columns = held.store(h, len(mine) * w)
        for place, head in enumerate(mine):
            held.put("o_proj.weight", (every, slice(head * w, (head + 1) * w)), columns[:, place * w : (place + 1) * w])
        low, high = rank * self.inner // ways, (rank + 1) * self.inner // ways
        own = slice(low, high)
        held.put("turned.weight", (own, every), held.store(h, high - low).T)
        held.put("turned.down_proj.weight", (every, own), held.store(high - low, h + 1).T[:h])
        stacked = held.store(self.experts, h, 2 * (high - low))
        held.put("stack.gate_up", (every, every, slice(2 * low, 2 * high)), stacked)
        held.put("norm.weight", (every,), held.store(h))
        padded = -(-self.vocabulary // ways)
        rows = range(self.vocabulary)[rank * padded : (rank + 1) * padded]
        embedding = held.store(padded + 1, h)
        held.put("embed.weight", (slice(rows.start, rows.stop), every), embedding[: len(rows)])
        self._put_experts(held, rank, own)
        return held

    def _put_experts(self, held: Rank, rank: int, own: slice) -> None:
        every = slice(None)
        if self.expert_parallel:
            mine, own = range(rank, self.experts, self.ways), slice(0, self.inner)
        else:
            mine = range(self.experts)
        n = own.stop - own.start
        w13 = held.store(len(mine), 2 * n, self.hidden)
        for place, e in enumerate(mine):
            held.put(f"experts.{e}.gate.weight", (own, every), w13[place, :n])
            held.put(f"experts.{e}.up.weight", (own, every), w13[place, n:])
        w2 = held.store(len(mine), self.hidden, n)
        for place, e in enumerate(mine):
            held.put(f"experts.{e}.down_proj.weight", (every, own), w2[place])

    @staticmethod
    def _starts(table: TensorTable) -> list[int]:
        return [sum(s.units for s in table.tensors[:place]) for place in range(len(table.tensors))]


@dataclass(frozen=True)
class Steps:
    """Versions of a model's weights, and the deltas between neighbours."""

    sizes: Sizes
    tiling: TilingPart
    versions: list[Weights]
    deltas: list[Delta]

    @classmethod
    def of(
        cls, sizes: Sizes, tiling: TilingPart, seed: int, share: float, codec: str | None, *, chain: int = 3
    ) -> Self:
        table, random = sizes.table, np.random.default_rng(seed)
        versions: list[Weights] = [
            {s.name: np.frombuffer(random.bytes(s.size_bytes), f"<u{s.unit_bytes}") for s in table.tensors}
        ]
        for _ in range(chain):
            versions.append({n: u ^ (random.random(u.size) < share).astype(u.dtype) for n, u in versions[-1].items()})
        deltas: list[Delta] = []
        for old, new in pairwise(versions):
            chunks: list[tuple[str, bytes]] = []
            encode_delta(
                table,
                old,
                new,
                nonce=lambda: random.bytes(16),
                sink=lambda ref, data, chunks=chunks: chunks.append((ref.blake3, data)),
                tiling=tiling,
                codec=codec,
            )
            deltas.append(Delta.parse(table, tiling.tiling, chunks))
        return cls(sizes, tiling, versions, deltas)

    def digest(self, version: int) -> Digest:
        return total(digest_tensor(s, self.versions[version][s.name]) for s in self.sizes.table.tensors)


@dataclass
class Loaded:
    """A rank's memory at a version, and what it should be at every other."""

    steps: Steps
    rank: Rank
    padding: list[NDArray[Any]]
    memory: HostMemory
    stores: list[NDArray[Any]]

    @classmethod
    def at(cls, steps: Steps, number: int, version: int) -> Self:
        rank, random = steps.sizes.rank(number), np.random.default_rng(number)
        dtype = np.dtype(f"<u{rank.table.tensors[0].unit_bytes}")
        padding = [np.frombuffer(random.bytes(s.size * dtype.itemsize), dtype) for s in rank.stores]
        stores = rank.expected(steps.versions[version], padding)
        layout = Layout.of(rank.table, rank.blocks)
        memory = HostMemory(layout, steps.tiling.tiling, stores, loaded=steps.versions[version].__getitem__)
        return cls(steps, rank, padding, memory, stores)

    def holds(self, version: int) -> bool:
        expected = self.rank.expected(self.steps.versions[version], self.padding)
        return all(np.array_equal(a, b) for a, b in zip(self.stores, expected, strict=True))

    @property
    def bands(self) -> dict[Band, Digest]:
        return {
            band: digest
            for tensor, bands in enumerate(self.memory.layout.bands)
            for band, digest in zip(bands, band_digests(self.memory, tensor), strict=True)
        }
