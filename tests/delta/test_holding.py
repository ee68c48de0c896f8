"""What an encoder may hold of the weights between a tensor's comparison and its coding: changes, never the new weights."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from syncline.delta import CodecChoice, DeltaEncoder, scatter, stage_tensor
from syncline.wire.tensors import TensorSpec

FRAMES = 40


def where_it_is_dense(case: str, spec: TensorSpec, tiling: Any) -> NDArray[np.bool_]:
    """Units that change of a tensor that is sparse as a whole, and dense where a codec is chosen for it."""
    grid = spec.grid(tiling)
    assert grid.count >= FRAMES
    dense = {"behind quiet frames": range(3, 6), "from the second frame": range(1, 6), "first": range(3)}[case]
    changes = np.zeros(spec.units, bool)
    for index in range(grid.count):
        frame = grid.frame(index)
        if index in dense:
            changes[frame.base : frame.base + frame.units] = True
        elif case != "behind quiet frames" or index > 5:
            changes[frame.base] = True
    return changes


@pytest.mark.parametrize(
    ("case", "codec"),
    [
        ("behind quiet frames", None),
        ("from the second frame", None),
        ("first", None),
        ("behind quiet frames", "xor-lz4"),
        ("behind quiet frames", "context"),
    ],
)
def test_new_weights_may_be_gone_once_a_tensor_was_added(make_weights: Any, case: str, codec: str | None) -> None:
    each = make_weights([128 * FRAMES], [128 * FRAMES], [128])
    old = each.draw()
    new = [flat ^ where_it_is_dense(case, spec, each.tiling).astype(flat.dtype)
           if spec.units > 128 else flat.copy() for spec, flat in zip(each.table.tensors, old, strict=True)]  # fmt: skip
    buffer = np.empty(max(flat.size for flat in new), np.uint16)
    chunks: list[tuple[Any, bytes]] = []
    encoder = DeltaEncoder(
        each.table,
        each.tiling,
        nonce=lambda: bytes(16),
        sink=lambda ref, data: chunks.append((ref, data)),
        choice=CodecChoice(forced=codec),
    )
    for tensor, flat in enumerate(new):
        row = buffer[: flat.size]
        row[:] = flat  # one buffer for all of them, as who reads them one by one has
        encoder.add(tensor, old[tensor], row)
    buffer[:] = 0
    encoder.finish()
    delta = each.parse(type("Encoded", (), {"chunks": chunks}))
    assert [0, 1] == delta.tensors
    for tensor in delta.tensors:
        live = old[tensor].copy()
        staged = stage_tensor(each.table, each.tiling, tensor, live, [delta])
        scatter(each.table.tensors[tensor], each.tiling, live, staged)
        assert np.array_equal(new[tensor], live)


def test_an_encoder_keeps_no_tensor_alive_of_which_it_holds_a_few_changes(make_weights: Any) -> None:
    each = make_weights([128 * FRAMES])
    [old] = each.draw()
    encoder = DeltaEncoder(each.table, each.tiling, nonce=lambda: bytes(16), sink=lambda _, __: None)
    new = old.copy()
    new[0] ^= 1
    gone = weakref.ref(new)
    encoder.add(0, old, new)
    del new
    assert gone() is None
    assert 1 == encoder.finish().statistics.changed_units
