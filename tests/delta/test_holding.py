"""What an encoder may hold of the weights between a tensor's comparison and its coding: changes, never the new weights."""

from __future__ import annotations

import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from syncline.codecs.context.sharing import KINDS_MOST
from syncline.delta import CodecChoice, DeltaEncoder, scatter, stage_tensor
from syncline.wire.chunk import parse
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

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


def many_tensors(names: list[str], *, most: int, **settings: Any) -> list[bytes]:
    """Chunks of a delta that changes a little in each, and takes at most so much memory until it is finished."""
    table = TensorTable(tensors=[TensorSpec(name=n, dtype="BF16", shape=[8], axis=0) for n in sorted(names)])
    old = np.zeros(8, np.uint16)
    new = old.copy()
    new[3] = 1
    chunks: list[bytes] = []
    encoder = DeltaEncoder(
        table, Tiling(), nonce=lambda: bytes(16), sink=lambda _, data: chunks.append(data), **settings
    )
    encoder.add(0, old, new)  # compiles
    tracemalloc.start()
    try:
        for tensor in range(1, len(names)):
            encoder.add(tensor, old, new)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert len(names) == encoder.finish().statistics.changed_tensors
    return chunks


def test_small_tensors_count_for_what_they_take_while_they_are_held() -> None:
    held = 1 << 20  # the changes alone are 24,000 bytes
    many_tensors(
        [f"{i}.norm" for i in range(3000)], most=2 * held, held_bytes=held, choice=CodecChoice(forced="sparse")
    )


def test_names_that_say_nothing_cost_no_table_each_and_no_comparison_of_all_with_all() -> None:
    letters = "abcdefghij"
    names = ["".join(letters[int(d)] for d in f"{i:03d}") for i in range(2 * KINDS_MOST)]
    (chunk,) = map(parse, many_tensors(names, most=(KINDS_MOST + 4) << 19))
    assert list(range(len(names))) == [section.tensor for section in chunk.sections]
