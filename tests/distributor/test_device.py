"""A device that cannot be used is refused when it is named, with what to name instead; nothing is written by then."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from syncline.clock import SystemClock
from syncline.errors import Rejected
from syncline.store.memory import MemoryStore
from syncline_distributor import Publisher
from syncline_distributor.bases import MemoryBase


def refusal(device: Any) -> str:
    with pytest.raises(Rejected) as refused:
        Publisher(MemoryStore(SystemClock()), "run", device=device)
    return str(refused.value)


@pytest.mark.parametrize("device", ["cpu", "gpu", "mps", "", "cuda:-1", 0, True])
def test_what_is_no_cuda_device_is_refused(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # in the interpreter the CPU would be one
    expected = (
        f"device is a CUDA device such as 'cuda:0', not {device!r}; name one, or leave `device` out and the CPU encodes"
    )
    assert expected == refusal(device)


@pytest.mark.parametrize(
    ("device", "base_memory", "expected"),
    [
        ("cuda:0", "pinned", "base_memory is 'device' or 'host', not 'pinned'"),
        (None, "host", "base_memory 'host' says where the base of a device is kept; name a device, or leave it out"),
    ],
)
def test_a_base_is_kept_in_one_of_two_memories_and_only_beside_a_device(
    device: Any, base_memory: Any, expected: str
) -> None:
    with pytest.raises(Rejected) as refused:
        Publisher(MemoryStore(SystemClock()), "run", device=device, base_memory=base_memory)
    assert expected == str(refused.value)


@pytest.mark.parametrize(("device", "base_memory"), [("cuda:0", None), (None, "host"), ("cuda:0", "host")])
def test_a_base_that_is_handed_in_is_not_kept_elsewhere(device: Any, base_memory: Any) -> None:
    with pytest.raises(Rejected, match="leave `device` and `base_memory` out, or `base`"):
        Publisher(MemoryStore(SystemClock()), "run", base=MemoryBase(), device=device, base_memory=base_memory)


def test_a_cuda_device_that_is_not_here_is_refused() -> None:
    message = refusal("cuda:99")
    no_cuda = r"this torch \(\S+\) has no CUDA; install a CUDA build, or leave `device` out and the CPU encodes"
    no_gpu = (
        r"this torch \(\S+\) finds no GPU; look at the driver and at CUDA_VISIBLE_DEVICES, or leave `device` out .*"
    )
    other = r"is not here: the last one is 'cuda:\d+'; name one that is"
    assert re.fullmatch(rf"device 'cuda:99'(: {no_cuda}|: {no_gpu}| {other})", message), message


def test_a_device_without_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "syncline_distributor.torch_weights", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "device 'cuda:0' needs torch and Triton (" in refusal("cuda:0")
