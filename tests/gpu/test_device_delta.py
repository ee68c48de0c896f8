"""A delta made of tensors on the device is one that a host reads, and the other way round: same bits, same digests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.delta import CodecChoice, Delta, DeltaEncoder, digest_tensor, scatter, stage_tensor
from syncline.delta.device import jobs, memory
from syncline.delta.device.encoding import DeviceEncoder
from syncline.delta.device.staging import digest, stage
from syncline.errors import FrameCorrupt
from syncline.wire.records import ChunkRef
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

CPU = torch.device("cpu")
TILING = Tiling(min_units=128, max_units=512, ways=2)
Units = NDArray[np.unsignedinteger]


def every_path() -> TensorTable:
    """Rows, columns, odd lengths, each unit width, an empty tensor, one of eight bytes a unit."""
    specs = [
        TensorSpec(name="a.0.rows", dtype="BF16", shape=[16, 24], axis=0),
        TensorSpec(name="a.1.rows", dtype="BF16", shape=[16, 24], axis=0),
        TensorSpec(name="b.columns", dtype="BF16", shape=[8, 96], axis=1),
        TensorSpec(name="c.odd", dtype="BF16", shape=[7, 37], axis=1),
        TensorSpec(name="d.codes", dtype="F8_E4M3", shape=[16, 32], axis=0),
        TensorSpec(name="e.wide", dtype="F32", shape=[150], axis=0),
        TensorSpec(name="f.indices", dtype="I64", shape=[40], axis=0),
        TensorSpec(name="g.empty", dtype="BF16", shape=[0, 8], axis=0),
    ]
    return TensorTable(tensors=specs)


def draw(table: TensorTable, share: float) -> tuple[list[Units], list[Units]]:
    random = np.random.default_rng(1)
    old = [np.frombuffer(random.bytes(t.size_bytes), f"u{t.unit_bytes}").copy() for t in table.tensors]
    new = []
    for flat in old:
        step = np.where(random.random(flat.size) < 0.9, 1, random.integers(1, 120, flat.size)).astype(flat.dtype)
        new.append(np.where(random.random(flat.size) < share, flat + step, flat))
    return old, new


def tensor(flat: Units) -> torch.Tensor:
    kind = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[flat.itemsize]
    return torch.from_numpy(flat.copy().view(kind))


def from_device(
    table: TensorTable, old: list[Units], new: list[Units], *, tiling: Tiling = TILING, **options: Any
) -> list[tuple[ChunkRef, bytes]]:
    chunks: list[tuple[ChunkRef, bytes]] = []
    encoder = DeviceEncoder(
        table, tiling, device=CPU, nonce=lambda: bytes(16), sink=lambda ref, data: chunks.append((ref, data)), **options
    )
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        encoder.add(number, tensor(before), tensor(after))
    changed = sum(int(np.count_nonzero(a != b)) for a, b in zip(old, new, strict=True))
    assert changed == encoder.finish().statistics.changed_units
    return chunks


def from_host(
    table: TensorTable, old: list[Units], new: list[Units], codec: str | None, *, tiling: Tiling = TILING
) -> list[tuple[ChunkRef, bytes]]:
    chunks: list[tuple[ChunkRef, bytes]] = []
    encoder = DeltaEncoder(
        table,
        tiling,
        nonce=lambda: bytes(16),
        sink=lambda ref, data: chunks.append((ref, data)),
        choice=CodecChoice(forced=codec),
    )
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        encoder.add(number, before, after)
    encoder.finish()
    return chunks


@pytest.mark.parametrize("share", [0.0, 0.02])
def test_what_a_device_encodes_a_host_decodes(share: float) -> None:
    table = every_path()
    old, new = draw(table, share)
    delta = Delta.parse(table, TILING, from_device(table, old, new, group_bytes=3000, scratch_bytes=8192))
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        staged = stage_tensor(table, TILING, number, before, [delta])
        scatter(table.tensors[number], TILING, before, staged)
        assert np.array_equal(after, before)
    codecs = {frame.codec.name for number in delta.tensors for frame in delta.frames(number).values()}
    assert ("context" in codecs) == (share == 0.02)


@pytest.mark.parametrize("steps", [True, False])
def test_tensors_that_change_nearly_everywhere_are_weighed_as_a_host_does_with_its_bytes(steps: bool) -> None:
    dtypes = sorted([*ALPHABETS, "F64"] if steps else ["BF16", "F32", "F64", "U8"])
    elements = {"F4": 192, "F64": 32}
    specs = [TensorSpec(name=dtype, dtype=dtype, shape=[elements.get(dtype, 96)], axis=0) for dtype in dtypes]
    if not steps:
        specs.append(TensorSpec(name="columns", dtype="BF16", shape=[8, 96], axis=1))
    table, tiling = TensorTable(tensors=specs), Tiling(min_units=32, max_units=32, ways=2)
    random = np.random.default_rng(1)
    old, new = [], []
    for spec in specs:
        bits, kind = 8 * spec.unit_bytes, np.dtype(f"u{spec.unit_bytes}")
        exponents, mantissas = random.integers(120, 122, spec.units), random.integers(0, 1 << 23, spec.units)
        old.append(((exponents << 23 | mantissas) << 32 >> (64 - bits)).astype(kind))
        moved = random.choice([0, 1, 2], spec.units, p=[0.04, 0.92, 0.04]).astype(kind)
        new.append(old[-1] + moved if steps else np.frombuffer(random.bytes(spec.size_bytes), kind))
    made = from_device(table, old, new, tiling=tiling)
    assert made == from_host(table, old, new, None, tiling=tiling)
    delta = Delta.parse(table, tiling, made)
    by_context = {table.tensors[n].dtype for n in delta.tensors if delta.frames(n)[0].codec.name == "context"}
    assert by_context == (set(ALPHABETS) if steps else set())
    if not steps:
        assert {"raw"} == {frame.codec.name for n in delta.tensors for frame in delta.frames(n).values()}
    for number, flat in enumerate(old):
        scatter(specs[number], tiling, flat, stage_tensor(table, tiling, number, flat, [delta]))
        assert np.array_equal(new[number], flat)


@pytest.mark.parametrize("codec", ["context", "sparse"])
def test_frames_that_the_sample_was_unlike_cost_no_more_than_without_a_table(monkeypatch, codec: str) -> None:
    monkeypatch.setattr(jobs, "SAMPLE_FRAMES", 1)
    table = TensorTable(tensors=[TensorSpec(name="experts", dtype="U8", shape=[16, 128], axis=0)])
    old = np.random.default_rng(3).integers(0, 256 if codec == "sparse" else 2, 2048).astype(np.uint8)
    new = old.copy()
    rows = new.reshape(16, 128)[1 if codec == "context" else 15 :]  # the first one, which is the sample, stands still
    rows[:, ::6] += 1
    tiling = Tiling(min_units=128, max_units=128, ways=16)
    made, plain = (
        from_device(table, [old], [new], tiling=tiling),
        from_host(table, [old], [new], "sparse", tiling=tiling),
    )
    assert sum(len(data) for _, data in made) <= sum(len(data) for _, data in plain)
    delta = Delta.parse(table, tiling, made)
    assert {codec} == {frame.codec.name for frame in delta.frames(0).values()}
    scatter(table.tensors[0], tiling, old, stage_tensor(table, tiling, 0, old, [delta]))
    assert np.array_equal(new, old)


@pytest.mark.parametrize("codec", [None, "context", "sparse"])
def test_what_a_host_encodes_a_device_decodes_commits_and_takes_back(codec: str | None) -> None:
    table = every_path()
    old, new = draw(table, 0.03)
    live = [tensor(flat) for flat in old]
    staged = stage(table, TILING, live.__getitem__, Delta.parse(table, TILING, from_host(table, old, new, codec)))
    assert all(torch.equal(tensor(a), b) for a, b in zip(old, live, strict=True))
    for number, spec in enumerate(table.tensors):
        before, after = (digest_tensor(spec, flat) for flat in (old[number], new[number]))
        assert after == before + staged.digest_changes.get(number, before - before)
        assert before == digest(spec, TILING, live[number])
    assert not staged.stands()
    staged.scatter()
    assert staged.stands()
    assert all(torch.equal(tensor(a), b) for a, b in zip(new, live, strict=True))
    staged.undo()
    assert all(torch.equal(tensor(a), b) for a, b in zip(old, live, strict=True))


def test_what_changes_nearly_everywhere_is_staged_as_twice_its_tensor_by_context_too() -> None:
    table = TensorTable(tensors=[TensorSpec(name="w", dtype="BF16", shape=[96], axis=0)])
    tiling = Tiling(min_units=32, max_units=32, ways=2)
    old = np.arange(16_000, 16_096, dtype=np.uint16)
    new = old + np.where(np.arange(96) % 16 < 15, 1, 0).astype(np.uint16)
    live = tensor(old)
    delta = Delta.parse(table, tiling, from_host(table, [old], [new], "context", tiling=tiling))
    assert {"context"} == {frame.codec.name for frame in delta.frames(0).values()}
    staged = stage(table, tiling, lambda _: live, delta)
    assert 2 * old.nbytes == staged.nbytes
    assert 90 == staged.changed
    assert digest_tensor(table.tensors[0], new) == digest_tensor(table.tensors[0], old) + staged.digest_changes[0]
    staged.scatter()
    assert torch.equal(tensor(new), live)
    staged.undo()
    assert torch.equal(tensor(old), live)


def test_frames_under_equal_tables_go_in_one_launch_whatever_chunk_they_come_from() -> None:
    table = TensorTable(tensors=[TensorSpec(name=f"{n}.rows", dtype="BF16", shape=[32, 16], axis=0) for n in "abcd"])
    old, new = draw(table, 0.1)
    chunks: list[tuple[ChunkRef, bytes]] = []
    encoder = DeltaEncoder(
        table,
        TILING,
        nonce=lambda: bytes(16),
        sink=lambda ref, data: chunks.append((ref, data)),
        choice=CodecChoice(forced="context"),
        target_bytes=100,
    )
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        encoder.add(number, before, after)
    encoder.finish()
    live = [tensor(flat) for flat in old]
    staged = stage(table, TILING, live.__getitem__, Delta.parse(table, TILING, chunks))
    assert len(chunks) > len(staged.parts) == 1
    staged.scatter()
    assert all(torch.equal(tensor(a), b) for a, b in zip(new, live, strict=True))


@pytest.mark.parametrize("codec", ["context", "sparse"])
def test_another_base_is_corrupt_by_name_and_nothing_is_written(codec: str) -> None:
    table = TensorTable(tensors=[TensorSpec(name="a.rows", dtype="BF16", shape=[32, 48], axis=0)])
    random = np.random.default_rng(1)
    still, moving = 0x3F80, 0x3C00
    # Where a unit stands still says its exponent, so that the table must tell one from the other.
    exponents = np.where(random.random(32 * 48) < 0.5, still, moving)
    old = (exponents | random.integers(0, 0x7F, exponents.size)).astype(np.uint16)
    new = old + ((exponents == moving) & (random.random(old.size) < 0.3)).astype(np.uint16)
    delta = Delta.parse(table, TILING, from_host(table, [old], [new], codec))
    live = [tensor(new if codec == "sparse" else old ^ np.uint16(still ^ moving))]
    kept = [flat.clone() for flat in live]
    with pytest.raises(FrameCorrupt, match=r"frame \d+ of a.rows"):
        stage(table, TILING, live.__getitem__, delta)
    assert all(torch.equal(a, b) for a, b in zip(kept, live, strict=True))


def test_values_that_are_no_number_are_counted_among_the_changes() -> None:
    table = TensorTable(tensors=[TensorSpec(name="w", dtype="BF16", shape=[64], axis=0)])
    old = np.full(64, 0x7F80, np.uint16)
    new = old.copy()
    new[3], new[9] = 0xFFC1, 0x3F80
    encoder = DeviceEncoder(table, TILING, device=CPU, nonce=lambda: bytes(16), sink=lambda *_: None)
    encoder.add(0, tensor(old), tensor(new))
    assert [1] == encoder.look().nonfinite
    assert 1 == encoder.finish().statistics.nonfinite


def test_tensors_of_another_size_are_refused() -> None:
    table = TensorTable(tensors=[TensorSpec(name="w", dtype="BF16", shape=[64], axis=0)])
    encoder = DeviceEncoder(table, TILING, device=CPU, nonce=lambda: bytes(16), sink=lambda *_: None)
    with pytest.raises(ValueError, match="w: 64 and 63 units, not 64"):
        encoder.add(0, torch.zeros(64, dtype=torch.int16), torch.zeros(63, dtype=torch.int16))


def test_the_current_device_is_the_one_asked_for() -> None:
    asked = memory.current(torch.device("cuda:1"))
    assert isinstance(asked, torch.cuda.device)
    assert 1 == asked.idx
    with memory.current(CPU):
        pass  # nothing to be chosen
