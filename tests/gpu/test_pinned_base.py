"""A publisher whose base stays in host memory makes the very versions of one whose base is on the device, and loses none to a failure."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from syncline.chain import ChainReader
from syncline.clock import SystemClock
from syncline.delta.device import coding, encoding, group, pinned
from syncline.errors import NonFiniteWeights, Rejected
from syncline.store.memory import MemoryStore
from syncline.wire.records import ChunkRef, Statistics
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_distributor import Publisher, PublishSettings, bases, codec_choice
from syncline_distributor.device_base import DeviceBase
from syncline_distributor.pinned_base import PinnedBase
from syncline_distributor.settings import NonFinite

CPU = torch.device("cpu")
FILES = {"config.json": b"{}"}


@dataclass(frozen=True, slots=True)
class VersionFacts:
    digest: str
    chunks: list[ChunkRef]
    """By the hash of what they hold."""
    statistics: Statistics


class Alike(random.Random):
    """Names that do not depend on how often one was drawn."""

    def randbytes(self, n: int) -> bytes:
        return bytes(n)


def counted(step: int) -> dict[str, torch.Tensor]:
    """One tensor, of which a step moves every eighth unit."""
    return {"w": (torch.arange(64) + step * (torch.arange(64) % 8 == 0)).bfloat16()}


def mixed(step: int) -> dict[str, torch.Tensor]:
    """Rows, columns (cut across the rows), a view that is not contiguous, and eight bytes a unit; a step moves every 16th of the others."""
    draw = torch.Generator().manual_seed(0)
    shapes = {"a.up_proj.weight": (4, 16), "b.down_proj.weight": (4, 32), "c.weight": (4, 8)}
    masters = {name: torch.randn(*shape, generator=draw) * 0.02 for name, shape in shapes.items()}
    for tensor in masters.values():
        tensor.view(-1)[::16] += 2e-4 * step
    served = {name: tensor.bfloat16() for name, tensor in masters.items()}
    served["c.weight"] = served["c.weight"].T
    served["scales"] = torch.full((3,), 1.0 + step, dtype=torch.float64)
    return served


def published(
    base: DeviceBase | None, steps: int, **options: Any
) -> tuple[list[VersionFacts], list[bytes], MemoryStore]:
    """What each version holds, the units of the base at the end, and the store."""
    store = MemoryStore(SystemClock())
    tiling = Tiling(min_units=32, max_units=64, ways=2)
    settings = PublishSettings(tiling=tiling, verify_every=1, choice=codec_choice("context"))
    publisher = Publisher(store, "run", files=FILES, random=Alike(), base=base, settings=settings, **options)
    manifests = [publisher.publish(mixed(step), step=step).manifest for step in range(steps)]
    held = [] if base is None else [base.units(at).tobytes() for at in range(len(base.table.tensors))]
    return [VersionFacts(m.digest, m.chunks, m.statistics) for m in manifests], held, store


def test_its_chunks_are_byte_for_byte_those_of_a_base_on_the_device_and_of_the_host() -> None:
    host, _, _ = published(None, 2)
    device, units, _ = published(DeviceBase("cpu"), 2)
    versions, kept, store = published(PinnedBase("cpu"), 2)
    assert device == versions
    assert host == versions
    assert units == kept
    manifest = ChainReader(store, "run", "main").manifest(2)
    assert 14 == manifest.statistics.codecs["context"]
    again = PinnedBase("cpu")
    again.load(ChainReader(store, "run", "main"), manifest)  # proves each tensor's digest
    assert kept == [again.units(at).tobytes() for at in range(len(kept))]


def test_a_step_is_written_span_by_span(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    stage_held = pinned.stage_held

    def seen(table: TensorTable, held: Any, deltas: Any, **options: Any) -> Any:
        (span,) = deltas
        kinds, rows = held.find(span.columns.tensors, span.columns.indices)
        each = zip(kinds.tolist(), rows.tolist(), strict=True)
        sizes.append(sum(held.kinds[k].view(row).nbytes for k, row in each))
        return stage_held(table, held, deltas, **options)

    monkeypatch.setattr(pinned, "stage_held", seen)
    base = PinnedBase("cpu")
    write = pinned.write_delta
    monkeypatch.setattr(
        "syncline_distributor.pinned_base.write_delta",
        lambda *given, **options: write(*given, **options, span_bytes=150),
    )
    _, units, _ = published(base, 2)
    assert mixed(1)["b.down_proj.weight"].view(torch.int16).numpy().tobytes() == units[1]
    assert len(sizes) > 2
    assert max(sizes) <= 150


def test_a_step_that_fails_between_two_spans_costs_the_next_publish_a_load_and_not_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, stage_held = pinned.write_delta, pinned.stage_held
    spans: list[int] = []

    def failing(*given: Any, **options: Any) -> Any:
        spans.append(len(spans))
        if len(spans) == 2:
            raise torch.OutOfMemoryError("no room on the device")
        return stage_held(*given, **options)

    monkeypatch.setattr(pinned, "stage_held", failing)
    monkeypatch.setattr(
        "syncline_distributor.pinned_base.write_delta", lambda *given, **options: write(*given, **options, span_bytes=1)
    )
    base = PinnedBase("cpu")
    publisher = Publisher(MemoryStore(SystemClock()), "run", base=base, files=FILES)
    both = [{"w": counted(step)["w"], "x": counted(step)["w"]} for step in range(3)]
    publisher.publish(both[0])
    assert 2 == publisher.publish(both[1]).version
    assert base.manifest is None
    assert 2 == publisher.publish(both[2]).manifest.base
    assert all(torch.equal(both[2]["w"].view(torch.int16), base.held(at)) for at in range(2))


def test_a_publish_that_is_refused_leaves_the_base_as_it_was() -> None:
    base = PinnedBase("cpu")
    settings = PublishSettings(nonfinite=NonFinite.REFUSE)
    publisher = Publisher(MemoryStore(SystemClock()), "run", base=base, files=FILES, settings=settings)
    publisher.publish(counted(0))
    bad = counted(1)
    bad["w"][3] = float("nan")
    with pytest.raises(NonFiniteWeights, match="w has 1 NaN or Inf among its changes"):
        publisher.publish(bad)
    assert base.manifest is not None
    assert (1, counted(0)["w"].view(torch.int16).tolist()) == (base.manifest.version, base.held(0).tolist())
    assert 2 == publisher.publish(counted(1)).version


def test_the_base_is_a_copy_of_the_trainer_s_memory() -> None:
    base = PinnedBase("cpu")
    own = counted(0)
    Publisher(MemoryStore(SystemClock()), "run", base=base, files=FILES).publish(own)
    own["w"].fill_(0)
    assert counted(0)["w"].view(torch.int16).tolist() == base.held(0).tolist()


@pytest.mark.parametrize("broken", [False, True])
def test_no_memory_is_let_go_of_while_a_kernel_may_write_there(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    base = PinnedBase("cpu")
    Publisher(MemoryStore(SystemClock()), "run", base=base, files=FILES).publish(counted(0))
    room = weakref.ref(base.held(0).untyped_storage())
    waited: list[tuple[torch.device, bool]] = []

    def synchronize(device: torch.device) -> None:
        waited.append((device, room() is not None))
        if broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    base.device = torch.device("cuda", 0)
    base.forget()
    assert [(base.device, True)] == waited
    gc.collect()  # Triton's interpreter leaves circles, which hold what its kernels were handed
    assert room() is None
    base.forget()  # nothing is held: whoever never had such memory never waits
    assert 1 == len(waited)


def test_memory_that_cannot_be_pinned_is_named_and_costs_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    full = True

    def room(table: TensorTable, device: torch.device) -> list[torch.Tensor]:
        if full:
            raise RuntimeError("CUDA error: out of memory")
        return pinned.pinned_units(table, device)

    store = MemoryStore(SystemClock())
    publisher = Publisher(store, "run", base=PinnedBase("cpu", room=room), files=FILES)
    assert 1 == publisher.publish(counted(0)).version
    read: list[object] = []
    monkeypatch.setattr(bases, "materialize", lambda *given, **_: read.append(given))
    with pytest.raises(Rejected, match=r"'host': 128 bytes .* could not be pinned \(CUDA error: out of memory\)"):
        publisher.publish(counted(1))
    assert [] == read  # a checkpoint is not brought for which there is no room
    monkeypatch.undo()
    full = False
    assert 1 == publisher.publish(counted(1)).manifest.base


def test_kernels_are_launched_on_the_publisher_s_device_whichever_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[torch.device] = []
    seen: set[str] = set()

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        here.append(device)
        yield
        here.pop()

    def watched(module: Any, name: str) -> None:
        launch = getattr(module, name)

        def checked(*arguments: Any, **options: Any) -> Any:
            assert here == [CPU]
            seen.add(name)
            return launch(*arguments, **options)

        monkeypatch.setattr(module, name, checked)

    for module in (pinned, encoding, group):
        monkeypatch.setattr(module, "current", current)
    launches = {
        pinned: ("stage_held",),
        group: ("sweep", "holds_nonfinite"),
        coding: ("count", "encode", "compact"),
    }
    for module, names in launches.items():
        for name in names:
            watched(module, name)
    publisher = Publisher(MemoryStore(SystemClock()), "run", files=FILES, device="cpu", base_memory="host")
    for step in range(2):
        publisher.publish(counted(step))
    assert {name for names in launches.values() for name in names} == seen
