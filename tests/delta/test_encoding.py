"""How a delta is packed: chunks, order, memory, the choice of codecs, what is counted."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from numpy.typing import NDArray

from syncline.codecs.base import FrameChange
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.registry import CODECS
from syncline.delta import CodecChoice, DeltaEncoder, count_nonfinite
from syncline.delta.comparing import BATCH_FRAMES, BUSY_FRAMES
from syncline.errors import FormatInvalid
from syncline.wire.chunk import parse
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling


def test_chunks_are_closed_near_their_target_and_named_by_their_bytes(weights: Any) -> None:
    old = weights.draw()
    new = weights.step(old, 0.3)
    one, many = (weights.encode(old, new, codec="sparse", target_bytes=n) for n in (1 << 24, 300))
    assert 1 == len(one.chunks)
    assert len(many.chunks) > 10
    largest = max(len(c.frame.payload) for t in range(len(old)) for c in weights.parse(one).frames(t).values())
    for encoded in (one, many):
        assert encoded.delta.chunks == [ref for ref, _ in encoded.chunks]
        assert encoded.delta.statistics.payload_bytes == sum(len(data) for _, data in encoded.chunks)
        for ref, data in encoded.chunks:
            assert (blake3(data).hexdigest(), len(data)) == (ref.blake3, ref.size)
    # payloads up to the target, or one frame that alone is larger; beside them about nine bytes a frame and a header
    assert all(len(data) <= 36 + max(300, largest) * 6 for _, data in many.chunks)
    spans = [(ref.first_tensor, ref.last_tensor) for ref, _ in many.chunks]
    assert spans == sorted(spans)
    a, b = weights.parse(one), weights.parse(many)
    assert a.tensors == b.tensors
    for tensor in a.tensors:
        assert {i: bytes(c.frame.payload) for i, c in a.frames(tensor).items()} == {
            i: bytes(c.frame.payload) for i, c in b.frames(tensor).items()
        }


def test_equal_weights_and_nonces_give_equal_chunks_with_any_number_of_threads(weights: Any, executor: Any) -> None:
    old = weights.draw()
    new = weights.step(old, 0.05)
    chunks: list[list[bytes]] = []
    for each in (None, executor):
        got: list[bytes] = []
        encoder = DeltaEncoder(
            weights.table,
            weights.tiling,
            nonce=lambda: bytes(16),
            sink=lambda _, data, got=got: got.append(data),
            executor=each,
            target_bytes=2000,
        )
        for tensor, (a, b) in enumerate(zip(old, new, strict=True)):
            encoder.add(tensor, a, b)
        encoder.finish()
        chunks.append(got)
    assert chunks[0] == chunks[1]


def test_tensors_out_of_order_are_a_mistake_of_the_caller(weights: Any) -> None:
    old = weights.draw()
    encoder = DeltaEncoder(weights.table, weights.tiling, nonce=lambda: bytes(16), sink=lambda _, __: None)
    encoder.add(2, old[2], old[2])
    for tensor in (2, 1):
        with pytest.raises(ValueError, match="after 2"):
            encoder.add(tensor, old[tensor], old[tensor])


@pytest.mark.parametrize(("codec", "every"), [("sparse", 5), ("context", 5), (None, 1)])
def test_the_encoder_holds_a_few_frames_and_a_chunk_however_large_the_tensor_is(codec: str | None, every: int) -> None:
    units = 1 << 15
    tiling = Tiling(min_units=units, max_units=2 * units, ways=1)
    rows = 4096
    table = TensorTable(tensors=[TensorSpec(name="wide", dtype="BF16", shape=[units // 8, rows], axis=0)])
    old = np.zeros(table.units, np.uint16)
    new = old.copy()
    new[::every] = np.random.default_rng(0).integers(1, 1 << 16, new[::every].size)  # incompressible
    frames = table.tensors[0].grid(tiling).count
    assert frames > 3 * BATCH_FRAMES
    held = 1 << 20
    largest = 0

    def sink(_: object, data: bytes) -> None:
        nonlocal largest
        largest = max(largest, len(data))

    def run() -> int:
        encoder = DeltaEncoder(
            table,
            tiling,
            nonce=lambda: bytes(16),
            sink=sink,
            target_bytes=1 << 16,
            held_bytes=held,
            choice=CodecChoice(forced=codec),
        )
        encoder.add(0, old, new)
        return encoder.finish().statistics.payload_bytes

    run()  # compiles
    tracemalloc.start()
    try:
        run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # position, old and new bits of the units that change; where all do, no more frames than keep threads busy
    batch = (BATCH_FRAMES if every > 1 else BUSY_FRAMES) * units * 8 // every
    assert largest <= (2 << 16) + 64
    assert (
        peak < 3 * (held + batch) + 4 * largest + 64 * units
    )  # changes and their payloads, a chunk, a frame's scratch
    assert peak < len(new) * 8 // every


def test_a_dense_change_that_nothing_predicts_goes_raw(make_weights: Any) -> None:
    dense = make_weights([64, 64])
    old = dense.draw()
    encoded = dense.encode(old, dense.draw())
    assert {"raw": encoded.delta.statistics.changed_units} == encoded.delta.statistics.codecs


@pytest.mark.parametrize(("dtype", "rate", "bits"), [("F32", 1e-6, 14), ("BF16", 1e-2, 13)])
def test_a_dense_change_that_the_old_bits_predict_goes_by_context(
    make_weights: Any, dtype: str, rate: float, bits: float
) -> None:
    large = make_weights([512, 512], dtype=dtype)
    random = np.random.default_rng(0)
    before = random.standard_normal(512 * 512).astype(np.float32) * np.float32(0.02)
    after = before + np.float32(rate) * random.standard_normal(before.size).astype(np.float32)
    old, new = (
        flat.view(np.uint32) if dtype == "F32" else (flat.view(np.uint32) >> 16).astype(np.uint16)
        for flat in (before, after)
    )
    statistics = large.encode([old], [new]).delta.statistics
    assert statistics.changed_units > 0.9 * old.size
    assert {"context": statistics.changed_units} == statistics.codecs
    assert 8 * statistics.payload_bytes < bits * statistics.changed_units


def test_frames_that_changed_nearly_everywhere_decide_nothing_for_those_that_hardly_did(make_weights: Any) -> None:
    each = make_weights([128 * 40])
    [old], [other] = each.draw(), each.draw()
    spec = each.table.tensors[0]
    frames = [spec.grid(each.tiling).frame(i) for i in range(spec.grid(each.tiling).count)]
    dense, quiet = frames[:3], frames[3:]
    new = old.copy()
    for frame in dense:
        new[frame.base : frame.base + frame.units] = other[frame.base : frame.base + frame.units]
    for frame in quiet:
        new[frame.base] ^= 1
    codecs = each.encode([old], [new]).delta.statistics.codecs
    assert 0 < codecs.pop("raw") <= sum(frame.units for frame in dense)
    assert len(quiet) == sum(codecs.values())


@pytest.mark.parametrize("units", [1, 1 << 15])
def test_a_dense_tensor_between_others_costs_them_no_table_of_their_own(units: int) -> None:
    # A scale that moves at every step stands between the matrices of an NVFP4 model.
    names = [f"{i}.{ending}" for i in range(3) for ending in ("weight", "weight_scale")]
    shapes = {name: [units] if name.endswith("scale") else [1 << 16] for name in names}
    table = TensorTable(
        tensors=[
            TensorSpec(name=n, dtype="F32" if n.endswith("scale") else "BF16", shape=s, axis=0)
            for n, s in shapes.items()
        ]
    )
    random = np.random.default_rng(0)
    chunks: list[bytes] = []
    encoder = DeltaEncoder(table, Tiling(), nonce=lambda: bytes(16), sink=lambda _, data: chunks.append(data))
    for tensor, spec in enumerate(table.tensors):
        drawn = random.standard_normal(spec.units, np.float32).view(np.uint32)
        old = drawn if spec.unit_bytes == 4 else (drawn >> 16).astype(np.uint16)
        moved = random.random(old.size) < (0.01 if spec.dtype == "BF16" else 1)
        encoder.add(tensor, old, old + moved.astype(old.dtype))
    statistics = encoder.finish().statistics
    few = units == 1
    assert ({"raw": 3} if few else {}) == {n: c for n, c in statistics.codecs.items() if n != "context"}
    (chunk,) = map(parse, chunks)
    assert (1 if few else 2) == len(chunk.tables)  # one for all matrices, and one for all scales that are worth it
    assert list(range(6)) == [section.tensor for section in chunk.sections]


def test_small_scales_that_all_move_a_little_go_by_context(make_weights: Any) -> None:
    scales = make_weights([32, 32], dtype="F32")
    old = np.random.default_rng(0).standard_normal(1024, np.float32).view(np.uint32)
    encoded = scales.encode([old], [old + 1 + np.arange(1024, dtype=np.uint32) % 3])
    assert {"context": 1024} == encoded.delta.statistics.codecs
    assert encoded.delta.statistics.payload_bytes < 1024


def test_a_change_that_is_alone_does_not_pay_for_a_table(make_weights: Any) -> None:
    weights = make_weights([64, 64])
    old = weights.draw()
    new = old[0].copy()
    new[1234] ^= 1 << 9
    assert {"sparse": 1} == weights.encode(old, [new]).delta.statistics.codecs


@pytest.mark.parametrize("share", [0.003, 0.01, 0.1])
def test_changes_that_nothing_predicts_cost_no_more_than_the_cheapest_codec(make_weights: Any, share: float) -> None:
    few = make_weights([64, 64])
    old = few.draw()
    new = few.step(old, share)
    chosen, *others = (
        few.encode(old, new, codec=codec).delta.statistics.payload_bytes
        for codec in (None, "context", "sparse", "xor-zstd", "xor-lz4")
    )
    assert min(others) == chosen


def test_a_change_that_the_old_bits_predict_goes_by_context(make_weights: Any) -> None:
    large = make_weights([512, 512])
    old = [moved_normals(512 * 512, 0.0)]
    assert ["context"] == list(large.encode(old, [moved_normals(512 * 512, 2e-7)]).delta.statistics.codecs)


def test_frames_that_do_not_change_make_the_changes_of_others_no_dearer() -> None:
    spec = TensorSpec(name="embedding", dtype="BF16", shape=[1 << 12, 1 << 10], axis=0)
    frames = [spec.grid(Tiling()).frame(i) for i in range(spec.grid(Tiling()).count)]
    old, moved = (moved_normals(spec.units, step) for step in (0.0, 2e-7))
    costs: list[float] = []
    for every in (1, 4):
        new = old.copy()
        for frame in frames[::every]:
            new[frame.base : frame.base + frame.units] = moved[frame.base : frame.base + frame.units]
        encoder = DeltaEncoder(
            TensorTable(tensors=[spec]), Tiling(), nonce=lambda: bytes(16), sink=lambda _, __: None,
            choice=CodecChoice(forced="context"),
        )  # fmt: skip
        encoder.add(0, old, new)
        statistics = encoder.finish().statistics
        costs.append(8 * statistics.payload_bytes / statistics.changed_units)
    assert len(frames) > 8
    assert costs[1] < 1.05 * costs[0]


def moved_normals(size: int, step: float) -> NDArray[np.uint16]:
    """BF16 weights that all moved by `step`: those change that stood at the edge of their rounding."""
    masters = np.random.default_rng(5).standard_normal(size).astype(np.float32) * np.float32(0.02) + np.float32(step)
    return (masters.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def change_of(share: float, units: int = 1 << 17) -> FrameChange:
    random = np.random.default_rng(0)
    old = (random.standard_normal(units).astype(np.float32) * 0.02).view(np.uint32) >> 16
    where = random.random(units) < share
    return FrameChange.between(old.astype(np.uint16), (old ^ where).astype(np.uint16))


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5])
def test_the_choice_is_the_cheapest_by_bytes_and_time(share: float) -> None:
    change = change_of(share)
    for link in (1e6, 25e6, 1e9, 1e12):
        costs = {
            c.name: len(c.encode(change.head(1 << 16))) / link
            + (1 << 16) * c.seconds_per_unit
            + change.head(1 << 16).positions.size * c.seconds_per_change
            for c in CODECS.values()
            if c.name != "raw"
        }
        choice = CodecChoice(link_bytes_per_second=link, cores=1)
        assert min(costs, key=costs.__getitem__) == choice.choose([change]).name


def test_a_forced_codec_is_taken_whatever_it_costs(weights: Any) -> None:
    old = weights.draw()
    for codec in CODECS.values():
        encoded = weights.encode(old, weights.step(old, 0.01), codec=codec.name)
        assert [codec.name] == list(encoded.delta.statistics.codecs)


def test_context_is_taken_where_it_is_forced_and_has_the_dtype(weights: Any) -> None:
    old = weights.draw()
    parsed = weights.delta(old, weights.step(old, 0.01), codec="context")
    by_context = {
        weights.table.tensors[t].dtype
        for t in parsed.tensors
        for f in parsed.frames(t).values()
        if f.codec.name == "context"
    }
    assert set(ALPHABETS) == by_context
    assert {spec.dtype for spec in weights.table.tensors} - by_context == {"C64", "F64", "I64", "U64"}


def test_an_unknown_forced_codec_is_refused_by_name(weights: Any) -> None:
    old = weights.draw()
    with pytest.raises(FormatInvalid, match="'brotli' is not one of"):
        weights.encode(old, weights.step(old, 0.01), codec="brotli")


def test_new_values_that_are_no_number_are_counted(make_weights: Any) -> None:
    each = make_weights([64, 64])
    old = [np.full(4096, 0x3F80, np.uint16)]
    new = [old[0].copy()]
    old[0][7] = 0x7FC0  # was NaN before and stays: not a change
    new[0][7] = 0x7FC0
    new[0][[1, 2, 3, 4]] = [0x7F80, 0xFF80, 0x7FC1, 0x4000]
    encoded = each.encode(old, new)
    assert 3 == encoded.changes[0].nonfinite == encoded.delta.statistics.nonfinite
    assert 4 == count_nonfinite(each.table.tensors[0], new[0])


# (dtype, values that are NaN or Inf, values that are neither)
NONFINITE = [
    ("F16", [0x7C00, 0xFC00, 0x7E00], [0x7BFF, 0]),
    ("BF16", [0x7F80, 0xFFC0], [0x7F7F, 0x8000]),
    ("F32", [0x7F800000, 0xFFC00000], [0x7F7FFFFF]),
    ("F64", [0x7FF0000000000000, 0xFFF8000000000000], [0x7FEFFFFFFFFFFFFF]),
    ("F8_E5M2", [0x7C, 0xFF], [0x7B]),
    ("F8_E4M3", [0x7F, 0xFF], [0x7E]),
    ("F8_E8M0", [0xFF], [0xFE, 0x7F]),
    ("I64", [], [0x7FF0000000000000]),
    ("F4", [], [0xFF]),
]


@pytest.mark.parametrize(("dtype", "bad", "good"), NONFINITE, ids=[n for n, *_ in NONFINITE])
def test_each_dtype_knows_its_own_nonfinite_values(dtype: str, bad: list[int], good: list[int]) -> None:
    spec = TensorSpec(name="t", dtype=dtype, shape=[2 * (len(bad) + len(good))], axis=0)
    flat = np.array(bad + good, f"<u{spec.unit_bytes}")
    assert len(bad) == count_nonfinite(spec, flat)
