"""A publisher whose base is on a device commits what a publisher in host memory would, and finds its way back after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import current_thread
from typing import Any

import pytest
import torch
from typing_extensions import Buffer

from syncline.chain import ChainReader
from syncline.checkpoint import materialize
from syncline.clock import SystemClock
from syncline.delta import Delta
from syncline.delta.device import coding, encoding, group
from syncline.errors import DigestMismatch
from syncline.store.memory import MemoryStore
from syncline.wire.tiling import Tiling
from syncline_distributor import Publisher, device_base
from syncline_distributor.device_base import DeviceBase
from syncline_distributor.settings import PublishSettings


def weights(step: int) -> dict[str, torch.Tensor]:
    """A layer, a tied pair and a tensor of eight bytes a unit; a step moves every master a little."""
    draw = torch.Generator().manual_seed(0)
    masters = {f"layers.{n}.w": torch.randn(8, 16, generator=draw) * 0.02 for n in range(1)}
    masters["embed.weight"] = torch.randn(4, 16, generator=draw) * 0.02
    served = {name: (tensor + 2e-4 * step).bfloat16() for name, tensor in masters.items()}
    served["head.weight"] = served["embed.weight"]
    served["scales"] = torch.full((3,), 1.0 + step, dtype=torch.float64)
    return served


class Noting(MemoryStore):
    """Knows which threads put its chunks."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.putting: set[str] = set()

    def put_if_absent(self, key: str, data: Buffer) -> str:
        if "/chunks/" in key:
            self.putting.add(current_thread().name.rpartition("_")[0])
        return super().put_if_absent(key, data)


def test_versions_from_a_device_have_the_digests_of_those_from_the_host_and_can_be_followed(tmp_path) -> None:
    host, device = MemoryStore(SystemClock()), Noting()
    for store, publisher in (
        (host, Publisher(host, "run", files={"config.json": b"{}"})),
        (device, Publisher(device, "run", files={"config.json": b"{}"}, device="cpu")),
    ):
        publisher.publish(weights(0), step=0)
        device.putting.clear()  # the table was put, too
        publisher.publish(weights(1), step=1)
        assert 2 == ChainReader(store, "run", "main").manifest(2).version
    assert {"syncline-upload"} == device.putting  # while the next chunks are encoded
    manifests = [ChainReader(store, "run", "main").manifest(2) for store in (host, device)]
    assert manifests[0].digest == manifests[1].digest
    assert manifests[0].statistics.changed_units == manifests[1].statistics.changed_units
    checkpoint = materialize(ChainReader(device, "run", "main"), 2, tmp_path / "checkpoint")
    expected = weights(1)["layers.0.w"].view(torch.int16).numpy().reshape(-1)
    assert expected.tobytes() == checkpoint.units("layers.0.w").tobytes()


def test_a_restarted_publisher_loads_its_base_onto_the_device() -> None:
    store = MemoryStore(SystemClock())
    first = Publisher(store, "run", files={"config.json": b"{}"})
    first.publish(weights(0))
    again = Publisher(store, "run", files={"config.json": b"{}"}, device="cpu")
    published = again.publish(weights(1))
    assert published.manifest.base is not None
    fresh = DeviceBase("cpu")
    fresh.load(ChainReader(store, "run", "main"), published.manifest)  # proves the digest of each tensor
    assert fresh.manifest is not None
    assert published.manifest.version == fresh.manifest.version


def test_each_tensor_is_told_once_where_a_group_ends_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_base, "DeviceEncoder", partial(encoding.DeviceEncoder, group_bytes=128))
    store = MemoryStore(SystemClock())
    publisher = Publisher(store, "run", device="cpu", files={"config.json": b"{}"})
    for step in range(2):
        publisher.publish({name: torch.arange(step, step + 64).bfloat16() for name in ("v", "w")})
    assert 2 == ChainReader(store, "run", "main").manifest(2).statistics.changed_tensors


def test_a_base_that_was_damaged_on_the_device_is_found_before_anything_is_published() -> None:
    store = MemoryStore(SystemClock())
    base = DeviceBase("cpu")
    publisher = Publisher(
        store, "run", base=base, files={"config.json": b"{}"}, settings=PublishSettings(verify_every=1)
    )
    publisher.publish(weights(0))
    base.held(0)[5] ^= 1
    with pytest.raises(DigestMismatch, match="base was damaged and is dropped"):
        publisher.publish(weights(1))
    assert 2 == publisher.publish(weights(1)).manifest.version


@pytest.mark.parametrize(
    "error", [MemoryError("no room"), torch.OutOfMemoryError("no room on the device"), ValueError("no such kernel")]
)
def test_a_base_without_room_to_advance_costs_the_next_publish_a_load_and_not_the_version(error: Exception) -> None:
    class Tight(DeviceBase):
        full = True

        def _change(self, delta: Delta, tiling: Tiling) -> None:
            if self.full:
                raise error
            super()._change(delta, tiling)

    store = MemoryStore(SystemClock())
    base = Tight("cpu")
    publisher = Publisher(store, "run", base=base, files={"config.json": b"{}"})
    publisher.publish({"w": torch.arange(64).bfloat16()})
    assert 2 == publisher.publish({"w": torch.arange(1, 65).bfloat16()}).manifest.version
    base.full = False
    assert 2 == publisher.publish({"w": torch.arange(2, 66).bfloat16()}).manifest.base
    assert torch.equal(torch.arange(2, 66).bfloat16().view(torch.int16), base.held(0))


def test_kernels_are_launched_on_the_publisher_s_device_whichever_is_current(monkeypatch) -> None:
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
            assert here == [torch.device("cpu")]
            seen.add(name)
            return launch(*arguments, **options)

        monkeypatch.setattr(module, name, checked)

    for module in (device_base, encoding, group):
        monkeypatch.setattr(module, "current", current)
    launches = {
        device_base: ("stage_held",),
        group: ("sweep", "holds_nonfinite"),
        coding: ("count", "encode", "compact"),
    }
    for module, names in launches.items():
        for name in names:
            watched(module, name)
    publisher = Publisher(MemoryStore(SystemClock()), "run", files={"config.json": b"{}"}, device="cpu")
    for step in range(2):
        publisher.publish({"w": (torch.arange(64) + step * (torch.arange(64) % 8 == 0)).bfloat16()})
    assert {name for names in launches.values() for name in names} == seen
