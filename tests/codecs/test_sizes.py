"""Bits a change on real GRPO steps, all chunk bytes counted: no worse than the field's formats."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from syncline.delta import CodecChoice, DeltaEncoder
from syncline.testing import grpo_a
from syncline.wire.tensors import TensorSpec, TensorTable, split_axis
from syncline.wire.tiling import Tiling


def bits_a_change(codec: str, old: dict[str, grpo_a.Bits], new: dict[str, grpo_a.Bits]) -> float:
    names = sorted(old)
    table = TensorTable(
        tensors=[
            TensorSpec(name=n, dtype="BF16", shape=list(old[n].shape), axis=split_axis(n, list(old[n].shape)))
            for n in names
        ]
    )
    encoder = DeltaEncoder(
        table, Tiling(), nonce=lambda: bytes(16), sink=lambda _, __: None, choice=CodecChoice(forced=codec)
    )
    for index, name in enumerate(names):
        encoder.add(index, old[name].reshape(-1), new[name].reshape(-1))
    statistics = encoder.finish().statistics
    assert statistics.changed_units == sum(int(np.count_nonzero(old[n] != new[n])) for n in names)
    return 8 * statistics.payload_bytes / statistics.changed_units


@pytest.mark.parametrize(("codec", "most"), [("sparse", 22.4), ("xor-zstd", 20.7)])
def test_step_sixteen_costs_no_more_than_the_best_peer_with_that_format(codec: str, most: float) -> None:
    *_, (before, after) = pairwise(grpo_a.steps())
    assert bits_a_change(codec, before, after) <= most
