"""Device memory behind an arm does what host memory does: same bits, same digests, same refusals, whatever lies how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from syncline.delta import Delta
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, FrameCorrupt, LayoutRefused
from syncline.kernels.gpu.batch import Staged
from syncline.testing.tables import encode_delta
from syncline.testing.weight_run import WeightRun
from syncline.wire.records import TilingPart
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.device_memory import DeviceMemory
from syncline_agent.arm.layout import Block, Layout
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.sweeping import band_digests
from syncline_agent.arm.torch_stores import memory_of_stores
from syncline_agent.engine import DeltaFiles, StageRequest
from syncline_agent.testing.spread import Loaded, Sizes, Steps

SMALL = TilingPart(min_units=16, max_units=64, ways=2)
TINY: dict[str, Any] = {"hidden": 8, "heads": 4, "inner": 8, "experts": 1, "vocabulary": 9}
SLAB = 800
"""Bytes: several slabs even here."""


def tensors(stores: Sequence[NDArray[Any]]) -> list[torch.Tensor]:
    """The same memory as torch sees it."""
    return [torch.from_numpy(s.view(s.dtype if s.itemsize == 1 else f"i{s.itemsize}")) for s in stores]


@dataclass
class Twins:
    """A rank's memory on the host, and the same on a device."""

    host: Loaded
    device: Loaded
    memory: DeviceMemory

    @classmethod
    def at(cls, steps: Steps, number: int, version: int, **options: Any) -> Self:
        host, device = (Loaded.at(steps, number, version) for _ in range(2))
        loaded = steps.versions[version].__getitem__
        memory = DeviceMemory(
            device.memory.layout,
            device.memory.tiling,
            tensors(device.stores),
            loaded=loaded,
            slab_bytes=SLAB,
            **options,
        )
        return cls(host, device, memory)

    def same_digests(self) -> bool:
        return all(
            band_digests(self.host.memory, tensor) == band_digests(self.memory, tensor)
            for tensor in range(len(self.memory.table.tensors))
        )


@pytest.mark.parametrize(
    ("sizes", "codecs", "share"),
    [
        (Sizes(ways=1, **TINY), ["context"], 0.1),
        (Sizes(ways=2, **TINY), ["context", "context"], 0.1),
        (
            Sizes(ways=3, kv_heads=1, hidden=9, heads=6, width=2, inner=7, experts=1, vocabulary=10, dtype="F8_E4M3"),
            ["context"],
            0.2,
        ),
        (Sizes(ways=2, dtype="F32", **TINY), ["sparse", "context", "raw"], 0.2),
        (Sizes(ways=2, dtype="I64", **TINY), ["xor-zstd"], 0.3),
        (Sizes(ways=2, **TINY), ["raw"], 1.0),
    ],
)
def test_what_is_staged_written_and_undone_is_what_host_memory_does(
    sizes: Sizes, codecs: list[str], share: float
) -> None:
    made = [Steps.of(sizes, SMALL, 1, share, codec, chain=len(codecs)) for codec in codecs]
    steps = Steps(sizes, SMALL, made[0].versions, [each.deltas[n] for n, each in enumerate(made)])
    twins = Twins.at(steps, sizes.ways - 1, 0)
    memory, wanted = twins.memory, twins.host.memory.stage(steps.deltas)
    changes = memory.stage(steps.deltas)
    assert twins.device.holds(0)
    assert wanted.changed == changes.changed
    assert wanted.tensors == changes.tensors
    assert wanted.digests == changes.digests
    memory.scatter(changes, undo=False)
    twins.host.memory.scatter(wanted, undo=False)
    assert twins.device.holds(len(codecs))
    assert [] == memory.read_back(changes, undo=False)
    assert twins.same_digests()
    name = memory.table.tensors[changes.tensors[0]].name
    assert name in memory.read_back(changes, undo=True)
    memory.scatter(changes, undo=True)
    assert twins.device.holds(0)
    assert [] == memory.read_back(changes, undo=True)


@dataclass
class Live:
    """A rank of parts on a device, and the run that it follows."""

    run: WeightRun
    twins: Twins
    weights: LiveWeights

    def request(self, base: int, target: int, checkpoint: Path | None = None) -> StageRequest:
        run = self.run
        between = () if checkpoint else range(base + 1, target + 1)
        return StageRequest(
            run.lineage,
            "main",
            base,
            run.digest(base),
            target,
            run.digest(target),
            run.table_file,
            SMALL.tiling,
            [DeltaFiles(v, run.digest(v), run.delta(v - 1, v)) for v in between],
            checkpoint,
        )

    def commit(self, target: int) -> None:
        self.weights.ready(target)
        self.weights.scatter(target)
        self.weights.confirm(target)


@pytest.fixture
def live(tmp_path: Path) -> Live:
    sizes = Sizes(ways=2, **TINY)
    random = np.random.default_rng(3)
    first = {s.name: np.frombuffer(random.bytes(s.size_bytes), f"<u{s.unit_bytes}") for s in sizes.table.tensors}
    run = WeightRun(tmp_path / "node", sizes.table, first, tiling=SMALL)
    run.step(0.3)
    run.step(0.3)
    twins = Twins.at(Steps(sizes, SMALL, [run.weights(v) for v in (1, 2, 3)], []), 1, 0)
    weights = LiveWeights(run.table, SMALL.tiling, twins.memory)
    weights.warm_up()
    assert twins.device.holds(0)
    weights.prove(run.lineage, "main", 1, run.digest(1))
    weights.proved(1, run.digest(1))
    return Live(run, twins, weights)


def test_a_flipped_bit_is_found_by_a_read_back_and_by_a_sweep_and_made_whole_by_a_checkpoint(
    live: Live, tmp_path: Path
) -> None:
    live.weights.stage(live.request(1, 2))
    live.weights.ready(2)
    live.weights.scatter(2)
    rank, stores = live.twins.device.rank, live.twins.device.stores
    low = rank.starts["q.weight"]
    moved = low + np.flatnonzero(live.run.weights(1)["q.weight"] != live.run.weights(2)["q.weight"])
    place = int(np.flatnonzero(np.isin(rank.stores[0].reshape(-1), moved))[0])
    stores[0][place] ^= 4
    with pytest.raises(EngineUncertain, match=r"reads back wrong in q\.weight"):
        live.weights.confirm(2)
    with pytest.raises(DigestMismatch, match=r"q\.weight"):
        live.weights.sweep()
    live.run.checkpoint(tmp_path / "whole", 3)
    live.weights.stage(live.request(2, 3, tmp_path / "whole"))
    live.commit(3)
    assert live.twins.device.holds(2)
    assert not live.weights.in_service
    assert live.weights.sweep().proven


def test_an_undo_brings_every_bit_back_and_the_next_chain_goes_on_from_there(live: Live) -> None:
    live.weights.stage(live.request(1, 2))
    live.commit(2)
    assert live.twins.device.holds(1)
    live.weights.ready_undo(1)
    live.weights.scatter(1)
    live.weights.confirm(1)
    assert live.twins.device.holds(0)
    assert live.weights.sweep().proven
    live.weights.stage(live.request(1, 3))
    live.commit(3)
    assert live.twins.device.holds(2)


def steps_of(share: float, codec: str) -> Steps:
    return Steps.of(Sizes(ways=1, **TINY), SMALL, 4, share, codec, chain=1)


@pytest.mark.parametrize("codec", ["context", "raw"])
def test_another_base_is_corrupt_by_tensor_and_frame(codec: str) -> None:
    sizes, random = Sizes(ways=1, **TINY), np.random.default_rng(1)
    still, moving = 0x3F80, 0x3C00
    old: dict[str, NDArray[Any]] = {}
    new: dict[str, NDArray[Any]] = {}
    for spec in (
        sizes.table.tensors
    ):  # where a unit stands still says its exponent, so that the table must tell one from the other
        exponents = np.where(random.random(spec.units) < 0.5, still, moving)
        old[spec.name] = (exponents | random.integers(0, 0x7F, spec.units)).astype(np.uint16)
        new[spec.name] = old[spec.name] + ((exponents == moving) & (random.random(spec.units) < 0.3)).astype(np.uint16)
    chunks: list[tuple[str, bytes]] = []
    encode_delta(
        sizes.table,
        old,
        new,
        nonce=lambda: bytes(16),
        sink=lambda ref, data: chunks.append((ref.blake3, data)),
        tiling=SMALL,
        codec=codec,
    )
    steps = Steps(sizes, SMALL, [old, new], [Delta.parse(sizes.table, SMALL.tiling, chunks)])
    twins = Twins.at(steps, 0, 0)
    for store in twins.device.stores:
        store ^= still ^ moving
    kept = [store.copy() for store in twins.device.stores]
    with pytest.raises(FrameCorrupt, match=r"frame \d+ of [a-z.0]+weight: "):
        twins.memory.stage(steps.deltas)
    assert all(np.array_equal(a, b) for a, b in zip(kept, twins.device.stores, strict=True))


def test_changes_without_room_on_the_device_are_refused_before_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(0.3, "context")
    twins, small = Twins.at(steps, 0, 0), Twins.at(steps, 0, 0, staged_bytes_max=1000)
    with pytest.raises(EngineUnavailable, match="1000 are allowed"):
        small.memory.stage(steps.deltas)

    def full(*_: object) -> Staged:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has none")

    with monkeypatch.context() as patch:
        patch.setattr(Staged, "empty", full)
        with pytest.raises(EngineUnavailable, match=r"Tried to allocate 2\.00 GiB\.\); nothing was written") as refused:
            twins.memory.stage(steps.deltas)
    assert refused.value.__context__ is None  # what was staged so far is not kept by the error
    assert twins.device.holds(0)
    changes = twins.memory.stage(steps.deltas)
    twins.memory.scatter(changes, undo=False)
    assert twins.device.holds(1)
    assert 8 * changes.changed <= changes.nbytes


def test_frames_that_change_nearly_everywhere_are_staged_whole_and_take_their_bits_twice() -> None:
    steps = steps_of(0.9, "raw")
    twins = Twins.at(steps, 0, 0)
    changes = twins.memory.stage(steps.deltas)
    held = [frame for part in changes.parts for frame in part.frames]
    units = sum(int(part.counts.sum()) for part in changes.parts) / 0.9
    assert sum(part.nbytes for part in changes.parts) < 4 * 1.1 * units + 2 * 16 * len(
        held
    )  # eight bytes, place by place
    twins.memory.scatter(changes, undo=False)
    assert twins.device.holds(1)
    store = twins.device.stores[0]
    place = int(np.flatnonzero(twins.device.rank.stores[0].reshape(-1) >= 0)[5])
    store[place] ^= 1
    assert 1 == len(twins.memory.read_back(changes, undo=False))
    store[place] ^= 1
    twins.memory.scatter(changes, undo=True)
    assert twins.device.holds(0)
    assert [] == twins.memory.read_back(changes, undo=True)


def test_a_delta_of_nothing_writes_nothing() -> None:
    twins = Twins.at(steps_of(0.3, "context"), 0, 0)
    changes = twins.memory.stage([Delta.of({})])
    assert (0, 0, [], {}) == (changes.changed, changes.nbytes, changes.tensors, changes.digests)
    twins.memory.scatter(changes, undo=False)
    assert [] == twins.memory.read_back(changes, undo=False)
    assert twins.device.holds(0)


def test_stores_that_do_not_fit_are_refused_by_the_tensor_s_name() -> None:
    table = TensorTable(tensors=[TensorSpec(name="w", dtype="BF16", shape=[64], axis=0)])
    layout, tiling = Layout.whole(table), SMALL.tiling
    for store, says in [
        (torch.zeros(64, dtype=torch.bfloat16), "w lies in store 0, which is no flat row of integers"),
        (torch.zeros(128, dtype=torch.int16)[::2], "no flat row"),
        (torch.zeros(64, dtype=torch.int32), "units of 2 bytes"),
        (torch.zeros(63, dtype=torch.int16), "beyond the 63 units"),
    ]:
        with pytest.raises(LayoutRefused, match=says):
            DeviceMemory(layout, tiling, [store])
    part = Layout.of(table, [Block(0, (0,), (40,), 0, 0, (1,))])
    with pytest.raises(LayoutRefused, match="held in part; give the checkpoint"):
        DeviceMemory(part, tiling, [torch.zeros(64, dtype=torch.int16)])


def test_stores_of_the_host_are_host_memory_that_shares_them() -> None:
    table = TensorTable(tensors=[TensorSpec(name="w", dtype="BF16", shape=[64], axis=0)])
    store = torch.zeros(64, dtype=torch.int16)
    memory = memory_of_stores(Layout.whole(table), SMALL.tiling, [store])
    before = band_digests(memory, 0)
    store[3] = 1
    assert before != band_digests(memory, 0)
