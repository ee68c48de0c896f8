"""What encoding a step asks of a device grows with the kinds of its tensors, not with their number."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from syncline.delta.device import coding, group
from syncline.delta.device.encoding import DeviceEncoder
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

LAUNCHES = {group: ("sweep", "holds_nonfinite", "to_host"), coding: ("count", "encode", "compact", "to_host")}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these was called."""
    calls: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        call = getattr(module, name)

        def counting(*given: Any, **options: Any) -> Any:
            calls[f"{module.__name__}.{name}"] += 1
            return call(*given, **options)

        monkeypatch.setattr(module, name, counting)

    for module, names in LAUNCHES.items():
        for name in names:
            counted(module, name)
    return calls


def encode(tensors: int) -> int:
    """A step of so many layers' tensors, each of two frames that change. Returns the frames that were encoded."""
    specs = [TensorSpec(name=f"layers.{n}.w", dtype="BF16", shape=[128], axis=0) for n in range(tensors)]
    encoder = DeviceEncoder(
        TensorTable(tensors=specs),
        Tiling(min_units=32, max_units=64, ways=2),
        device=torch.device("cpu"),
        nonce=lambda: bytes(16),
        sink=lambda *_: None,
    )
    for tensor in range(tensors):
        old = torch.full((128,), 0x3C00, dtype=torch.int16)
        new = old.clone()
        new[::8] += 1
        encoder.add(tensor, old, new)
    asked = encoder.look()
    assert tensors == len(asked.digests()) == len(asked.nonfinite)
    return encoder.finish().statistics.frames


def test_more_tensors_of_a_kind_take_no_more_launches_and_no_more_waits(seen: Counter[str]) -> None:
    assert 2 == encode(1)
    of_one = Counter(seen)
    seen.clear()
    assert 8 == encode(4)
    assert set(seen) == {f"{module.__name__}.{name}" for module, names in LAUNCHES.items() for name in names}
    assert of_one == seen
