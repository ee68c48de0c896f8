"""Frames of a row of deltas as columns: each time that a held frame is changed is there once, in order, with its bytes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, lanes_of
from syncline.codecs.context.counts import Counts, count_symbols, count_units
from syncline.codecs.context.fitting import fit
from syncline.codecs.registry import CODECS
from syncline.delta import Delta
from syncline.delta.device.held import HeldFrames
from syncline.delta.device.layers import Layers
from syncline.delta.parsed import CodedFrame
from syncline.wire.chunk import EncodedFrame
from syncline.wire.limits import CODEC_RAW
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

TILING = Tiling(min_units=512, max_units=4096, ways=4)
TABLE = TensorTable(
    tensors=[
        TensorSpec(name="a", dtype="BF16", shape=[128, 64], axis=0),
        TensorSpec(name="b", dtype="F32", shape=[48, 32], axis=0),
        TensorSpec(name="c", dtype="BF16", shape=[7, 100], axis=0),
        TensorSpec(name="d", dtype="BF16", shape=[64, 64], axis=1),
    ]
)
HELD = (0, 1, 3)


def context(lane_shift: int) -> ContextCodec:
    old = np.arange(4000, dtype=np.uint16)
    counts = Counts.none()
    counts.units[:] += count_units(ALPHABETS["BF16"], old)
    count_symbols(ALPHABETS["BF16"], old[:9], old[:9] + np.uint16(1), counts.symbols)
    return ContextCodec(fit(counts, ALPHABETS["BF16"], exact=True), ALPHABETS["BF16"], lane_shift)


ONES = [context(10), context(10), context(11), CODECS[CODEC_RAW]]
frames = st.dictionaries(
    st.sampled_from([(t, i) for t, spec in enumerate(TABLE.tensors) for i in range(spec.grid(TILING).count)]),
    st.tuples(st.integers(0, 3), st.integers(1, 16), st.binary(max_size=9)),
    max_size=9,
)


def delta(frames: dict[tuple[int, int], tuple[int, int, bytes]]) -> Delta:
    of_tensor: dict[int, dict[int, CodedFrame]] = {}
    for (tensor, index), (codec, changed, payload) in frames.items():
        of_tensor.setdefault(tensor, {})[index] = CodedFrame(ONES[codec], EncodedFrame(index, changed, payload))
    return Delta.of(of_tensor)


@pytest.fixture(scope="module")
def held() -> HeldFrames:
    units = {2: torch.int16, 4: torch.int32}
    return HeldFrames.whole(
        TABLE,
        TILING,
        [(t, torch.zeros(TABLE.tensors[t].units, dtype=units[TABLE.tensors[t].unit_bytes])) for t in HELD],
    )


@settings(max_examples=60)
@given(st.lists(frames, min_size=1, max_size=3))
def test_each_change_of_a_held_frame_is_an_entry(held: HeldFrames, row: list[dict]) -> None:
    expected = sorted(
        (tensor, index, at, changed, payload)
        for at, frames in enumerate(row)
        for (tensor, index), (_, changed, payload) in frames.items()
        if tensor in HELD
    )
    found = []
    for kind, layers in zip(held.kinds, Layers.of(held, [delta(frames) for frames in row]), strict=True):
        assert sorted(layers.rows.tolist()) == layers.rows.tolist()
        many = Counter(layers.rows.tolist())
        assert [many[row] == 1 for row in layers.rows.tolist()] == layers.alone.tolist()
        assert [own for row in sorted(many) for own in range(many[row])] == layers.turns.tolist()
        for entry, place in enumerate(layers.rows.tolist()):
            own = layers.frame(entry).frame
            found.append((int(kind.tensors[place]), int(kind.indices[place]), own.changed, bytes(own.payload)))
        entries = np.flatnonzero(layers.alone)
        if entries.size:
            each = [bytes(layers.frame(entry).frame.payload) for entry in entries.tolist()]
            assert b"".join(each) == layers.payload(entries).tobytes()
    assert [(t, i, changed, payload) for t, i, _, changed, payload in expected] == sorted(
        found, key=lambda own: own[:2]
    )


@settings(max_examples=60)
@given(frames)
def test_what_decodes_together_is_alike(held: HeldFrames, frames: dict) -> None:
    numbers = {id(ONES[0]): 0, id(ONES[1]): 0, id(ONES[2]): 1}
    for kind, layers in zip(held.kinds, Layers.of(held, [delta(frames)]), strict=True):
        entries = np.flatnonzero(layers.by_context)
        groups = list(layers.alike(kind, entries, lambda codec: numbers[id(codec)], by_walk=True))
        assert entries.tolist() == sorted(entry for group in groups for entry in group.entries.tolist())
        seen = set()
        for group in groups:
            rows = layers.rows[group.entries].tolist()
            assert sorted(rows) == rows
            keys = set()
            for entry, row in zip(group.entries.tolist(), rows, strict=True):
                codec = layers.frame(entry).codec
                assert isinstance(codec, ContextCodec)
                assert lanes_of(int(kind.units[row]), codec.lane_shift) == group.lanes
                keys.add((numbers[id(codec)], group.lanes, int(kind.walks[row])))
            assert 1 == len(keys)
            assert not keys & seen
            seen |= keys
