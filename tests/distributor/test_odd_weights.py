"""Weights and remarks that a careless trainer hands in: published as they are, or refused by name before anything is
stored. Never published as something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from syncline.errors import LayoutRefused, Rejected
from syncline.store.memory import MemoryStore
from syncline_distributor import Bits, Publisher

Make = Callable[..., Publisher]
UNITS = np.arange(4, dtype=np.uint16)


def freed() -> torch.Tensor:
    """A parameter whose memory was given back, as sharded training does between steps."""
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (dict, "no tensors"),
        (lambda: {"__metadata__": UNITS}, "__metadata__"),
        (lambda: {7: UNITS}, "name is a string"),
        (lambda: {"\ud800": UNITS}, "cannot be published"),
        (lambda: {"w": UNITS.astype(">u2")}, ">u2"),
        (lambda: {"w": Bits("BF16", (4,), UNITS.astype(">u2"))}, "big-endian"),
        (lambda: {"w": [1, 2]}, "list"),
        (lambda: {"w": torch.ones(4, device="meta")}, "no memory behind it"),
        (lambda: {"w": freed(), "x": freed()}, "no memory behind it"),
        (lambda: {"w": TwoTensor(torch.ones(4), torch.zeros(4))}, "no plain tensor"),
        (lambda: {"w": torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)}, "no plain tensor"),
    ],
)
def test_what_is_no_set_of_weights_is_refused_by_name(
    publisher: Make, store: MemoryStore, weights: Callable[[], Any], said: str
) -> None:
    publish = publisher()
    publish.open()
    before = {i.key for i in store.list_after("")}
    with pytest.raises(LayoutRefused, match=said):
        publish.publish(weights())
    assert before == {i.key for i in store.list_after("")}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1 + 2j, 3 + 4j]).conj(),
        torch.tensor([1 + 2j, 3 + 4j]).conj().imag,
        torch.arange(6.0).reshape(2, 3).t(),
        torch.ones(1).expand(5),
        torch.arange(8.0)[2:6],
        torch.nn.Parameter(torch.tensor(3.0)),
    ],
    ids=["conjugated", "negated", "transposed", "expanded", "sliced", "parameter"],
)
def test_a_view_is_published_as_what_it_shows(
    publisher: Make, store: MemoryStore, reading: Any, tensor: torch.Tensor
) -> None:
    publisher().publish({"w": tensor})
    shown = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
    assert shown.tobytes() == reading.units(store, 1)["w"].tobytes()


def test_two_dtypes_over_one_memory_are_not_tied(publisher: Make, store: MemoryStore, reading: Any) -> None:
    memory = torch.zeros(4, dtype=torch.uint8)
    publish = publisher()
    publish.publish({"e4m3": memory.view(torch.float8_e4m3fn), "e5m2": memory.view(torch.float8_e5m2)})
    table = publish.reader.table(publish.reader.manifest(1))
    assert [("e4m3", "F8_E4M3", []), ("e5m2", "F8_E5M2", [])] == [(t.name, t.dtype, t.aliases) for t in table.tensors]
    assert {"e4m3", "e5m2"} == reading.units(store, 1).keys()


@pytest.mark.parametrize(
    "remarks",
    [
        {"step": -1},
        {"step": 1 << 60},
        {"step": 1.5},
        {"parent": "1"},
        {"labels": {"a": 5}},
        {"labels": {"a" * 65: "x"}},
        {"labels": {"a": "x" * 257}},
        {"labels": {"a": "\udcff"}},
    ],
)
def test_remarks_that_no_manifest_holds_are_refused_before_anything_is_stored(
    publisher: Make, trainer: Any, store: MemoryStore, remarks: dict[str, Any]
) -> None:
    publish, source = publisher(), trainer()
    publish.publish(source.weights)
    before = {i.key for i in store.list_after("")}
    with pytest.raises(Rejected):
        publish.publish(source.step(), **remarks)
    assert before == {i.key for i in store.list_after("")}


def test_a_step_may_be_any_kind_of_whole_number(publisher: Make, trainer: Any) -> None:
    publish, source = publisher(), trainer()
    steps = [publish.publish(source.step(), step=n).manifest.step for n in (np.int64(5), torch.tensor(6))]  # type: ignore[arg-type]
    assert [5, 6] == steps
