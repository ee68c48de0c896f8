"""Layouts that are remembered: found again where nothing changed, never where anything did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.layout import Block
from syncline_agent.arm.probing import Probed, Store, probe
from syncline_agent.arm.remembering import key_of, recall, remember

TABLE = TensorTable(tensors=[TensorSpec(name=n, dtype="BF16", shape=[6, 4], axis=0) for n in ("a", "b")])
ENGINE = {"release": "1", "ranks": 2}


def parameters(rows: int = 12, kind: torch.dtype = torch.bfloat16) -> list[tuple[str, torch.Tensor]]:
    return [("fused", torch.zeros(rows, 4, dtype=kind)), ("norm", torch.zeros(4))]


def load(held: list[tuple[str, torch.Tensor]]) -> Callable[[Any], None]:
    def copy(weights: Any) -> None:
        for name, loaded in weights:
            at = 0 if name == "a" else 6
            held[0][1][at : at + 6].copy_(loaded)

    return copy


def test_a_layout_is_found_again_in_other_memory_of_the_same_shape(tmp_path: Path) -> None:
    held = parameters()
    found = probe(TABLE, held, load(held))
    key = key_of(TABLE, held, ENGINE)
    remember(tmp_path / "layouts", key, found)
    again = parameters()
    recalled = recall(tmp_path / "layouts", key_of(TABLE, again, ENGINE), again)
    assert recalled is not None
    assert found.blocks == recalled.blocks
    assert [again[0][1].data_ptr()] == [store.pointer for store in recalled.stores]
    assert [f"{key}.json"] == [file.name for file in (tmp_path / "layouts").iterdir()]


@pytest.mark.parametrize(
    "other",
    [
        lambda: key_of(TABLE, parameters(13), ENGINE),
        lambda: key_of(TABLE, parameters(kind=torch.float16), ENGINE),
        lambda: key_of(TABLE, parameters()[:1], ENGINE),
        lambda: key_of(TABLE, parameters(), {**ENGINE, "ranks": 4}),
        lambda: key_of(TensorTable(tensors=TABLE.tensors[:1]), parameters(), ENGINE),
    ],
)
def test_whatever_can_change_a_layout_changes_its_key(other: Callable[[], str]) -> None:
    assert other() != key_of(TABLE, parameters(), ENGINE)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "stores": [["gone", 1, 2]], "blocks": []}']
)
def test_a_file_that_cannot_be_read_is_no_memory(tmp_path: Path, text: str) -> None:
    (tmp_path / "k.json").write_text(text)
    assert recall(tmp_path, "k", parameters()) is None


def test_a_layout_for_other_memory_or_with_troubles_is_not_taken(tmp_path: Path) -> None:
    block = Block(0, (0, 0), (6, 4), 0, 0, (4, 1))
    remember(tmp_path, "k", Probed([block], [Store("fused", 0, 24, 2)]))
    assert recall(tmp_path, "k", parameters()) is None  # it has 48 units
    remember(tmp_path, "t", Probed([block], [Store("fused", 0, 48, 2)], {"norm": "converted"}))
    assert recall(tmp_path, "t", parameters()) is None
