"""Ranks that hold parts of tensors: what is written to their memory is what a fresh slicing of the new weights gives, and
nothing else, however the parts are cut, fused, padded, turned around or interleaved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from syncline.errors import LayoutRefused
from syncline.wire.digest import Digest, total
from syncline.wire.records import TilingPart
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.host_memory import HostMemory
from syncline_agent.arm.layout import Band, Block, Layout
from syncline_agent.arm.placing import InPlace, Strewn, place
from syncline_agent.testing.spread import Loaded, Sizes, Steps

CHAIN = 3
SMALL = TilingPart(min_units=16, max_units=100, ways=4)
SPREAD = Sizes(ways=3, kv_heads=1)
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
"""An example takes long enough that shrinking one that fails would take minutes."""

sizes = st.builds(
    Sizes,
    ways=st.sampled_from([1, 2, 3, 4, 8]),
    hidden=st.integers(8, 20),
    heads=st.sampled_from([8, 16]),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    width=st.integers(1, 6),
    inner=st.integers(8, 30),
    experts=st.integers(1, 4),
    vocabulary=st.integers(9, 70),
    expert_parallel=st.booleans(),
    dtype=st.sampled_from(["BF16", "F8_E4M3", "F32", "I64"]),
)
tilings = st.builds(
    TilingPart,
    min_units=st.sampled_from([4, 16, 32]),
    max_units=st.sampled_from([64, 100, 256]),
    ways=st.sampled_from([1, 4, 16]),
)


@pytest.fixture(scope="module")
def steps() -> Steps:
    return Steps.of(SPREAD, SMALL, 1, 0.2, "sparse")


runs = st.builds(
    Steps.of,
    sizes,
    tilings,
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    st.sampled_from([None, "raw", "sparse", "xor-zstd", "context"]),
)


@settings(max_examples=40, phases=QUICK, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])
@given(steps=runs, data=st.data())
def test_what_is_written_is_a_fresh_slicing_of_the_target_and_can_be_undone(steps: Steps, data: st.DataObject) -> None:
    base = data.draw(st.integers(0, CHAIN - 1))
    target = data.draw(st.integers(base + 1, CHAIN))
    sums: list[dict[Band, Digest]] = []
    for number in range(steps.sizes.ways):
        loaded = Loaded.at(steps, number, base)
        memory, before = loaded.memory, loaded.bands
        changes = memory.stage(steps.deltas[base:target])
        assert loaded.holds(base)
        memory.scatter(changes, undo=False)
        assert loaded.holds(target)
        assert [] == memory.read_back(changes, undo=False)
        assert changes.changed == sum(
            int(np.count_nonzero(a != b))
            for a, b in zip(
                *(loaded.rank.expected(steps.versions[v], loaded.padding) for v in (base, target)), strict=True
            )
        )
        sums.append(loaded.bands)
        for tensor, parts in changes.digests.items():
            for part, change in parts.items():
                before[memory.layout.bands[tensor][memory.parts(tensor)[part].band]] += change
        assert before == sums[-1]
        memory.scatter(changes, undo=True)
        assert loaded.holds(base)
        assert [] == memory.read_back(changes, undo=True)
        if target < CHAIN:  # on from here, what is not held has followed too
            memory.scatter(changes, undo=False)
            memory.scatter(memory.stage([steps.deltas[target]]), undo=False)
            assert loaded.holds(target + 1)
    together: dict[Band, Digest] = {}
    for of_rank in sums:
        for band, digest in of_rank.items():
            assert digest == together.setdefault(band, digest)
    assert steps.digest(target) == total(together.values())


@pytest.mark.parametrize("where", ["q.weight", "turned.weight", "embed.weight"])
def test_a_bit_that_does_not_stick_is_read_back_by_its_tensor_s_name(steps: Steps, where: str) -> None:
    loaded = Loaded.at(steps, 1, 0)
    changes = loaded.memory.stage(steps.deltas[:1])
    loaded.memory.scatter(changes, undo=False)
    low, tensor = loaded.rank.starts[where], loaded.rank.table.tensors[loaded.rank.table.index[where]]
    moved = low + np.flatnonzero(steps.versions[0][where] != steps.versions[1][where])
    store = next(n for n, s in enumerate(loaded.rank.stores) if np.any((s >= low) & (s < low + tensor.units)))
    place = int(np.flatnonzero(np.isin(loaded.rank.stores[store].reshape(-1), moved))[-1])
    loaded.stores[store][place] ^= 8
    assert [where] == loaded.memory.read_back(changes, undo=False)


def test_only_frames_that_are_held_in_part_have_shadows() -> None:
    steps = Steps.of(Sizes(ways=4), SMALL, 0, 0.1, "sparse", chain=0)
    memory = Loaded.at(steps, 0, 0).memory
    frames = [
        frame
        for tensor in range(len(memory.table.tensors))
        for frame in place(memory.layout, tensor, memory.tiling).frames.values()
    ]
    partly = [f for f in frames if isinstance(f, Strewn) and not f.is_whole]
    assert partly
    assert any(isinstance(f, InPlace) for f in frames)
    assert any(isinstance(f, Strewn) and f.is_whole for f in frames)  # turned, but whole
    assert sum(2 * f.frame.units for f in partly) == memory.shadow_bytes
    alone = Loaded.at(Steps.of(Sizes(ways=1), SMALL, 0, 0.1, "sparse", chain=0), 0, 0).memory
    assert 0 == alone.shadow_bytes
    assert alone.layout.is_whole


def test_a_band_has_a_shadow_at_each_end_at_most() -> None:
    table = TensorTable(tensors=[TensorSpec(name="t", dtype="BF16", shape=[1000, 8], axis=0)])
    whole = np.arange(8000, dtype="<u2")
    for first, last in ((0, 333), (333, 666), (666, 1000)):  # three ways, of sixteen bands and more
        held = whole[8 * first : 8 * last].copy()
        layout = Layout.of(table, [Block(0, (first, 0), (last - first, 8), 0, 0, (8, 1))])
        memory = HostMemory(layout, Tiling(64, 256, 16), [held], loaded=lambda _: whole)
        assert 0 < memory.shadow_bytes <= 2 * 2 * 256
    layout = Layout.of(table, [Block(0, (250, 0), (250, 8), 0, 0, (8, 1))])  # the second of four ways
    assert 0 == HostMemory(layout, Tiling(64, 256, 16), [whole[2000:4000]], loaded=None).shadow_bytes


def test_frames_held_in_part_without_what_was_loaded_are_refused_by_name(steps: Steps) -> None:
    loaded = Loaded.at(steps, 1, 0)
    with pytest.raises(LayoutRefused, match=r"frame \d+ of embed\.weight is held in part"):
        HostMemory(loaded.memory.layout, SMALL.tiling, loaded.stores)


@pytest.mark.parametrize(
    ("store", "says"),
    [
        (np.zeros(50, "<u2"), "beyond the 50 units"),
        (np.zeros(5000, "<u4"), "a flat, contiguous, writable row of uint16"),
        (np.zeros((50, 100), "<u2"), r"is uint16 \(50, 100\)"),
        (np.zeros(10000, "<u2")[::2], "contiguous"),
        (np.broadcast_to(np.zeros(1, "<u2"), 5000), "writable"),
    ],
)
def test_stores_that_do_not_fit_the_layout_are_refused_by_name(steps: Steps, store: NDArray[Any], says: str) -> None:
    loaded = Loaded.at(steps, 1, 0)
    with pytest.raises(LayoutRefused, match=rf"(k|q|v)\.weight lies .*{says}"):
        HostMemory(loaded.memory.layout, SMALL.tiling, [store, *loaded.stores[1:]])
