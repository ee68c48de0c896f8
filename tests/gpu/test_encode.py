"""Frames coded by the kernels: the bytes of the plain coder and of the CPU's, whatever the dtype, the geometry and the changes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from syncline.codecs.base import FrameChange
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec
from syncline.codecs.context.table import ContextTable
from syncline.kernels.gpu import encode as encoding
from syncline.kernels.gpu import reference_encode as plain
from syncline.kernels.gpu.batch import UNIT_TYPES, DeviceTable, FrameBatch, Walk, walk_of
from syncline.kernels.gpu.compact import compact, payload_offsets
from syncline.kernels.gpu.encode import CODED, FULL, UNCODABLE, EncodeScratch, LaneWords, encode
from syncline.kernels.gpu.host import reached_from
from syncline.wire.tiling import Frame

CPU = torch.device("cpu")
RICH = ((1, 1200), (2, 1100), (0, 100), *((symbol, 106) for symbol in range(3, 19)))
POOR = ((0, 2048), (1, 1024), (2, 1024))


def device_table(table: ContextTable, dtype: str = "BF16") -> DeviceTable:
    return DeviceTable.of(ALPHABETS[dtype], table.zone_bits, table.widths, table.lists, table.of_context, CPU)


def a_table(zone_bits: int = 16, widest: int = 60_000) -> ContextTable:
    draw = torch.Generator().manual_seed(zone_bits)
    widths = torch.randint(1, widest, (256,), generator=draw).tolist()
    return ContextTable(zone_bits, tuple(widths), (RICH, POOR), tuple(i % 5 // 4 for i in range(256)))


def weights(dtype: str, frames: list[Frame], share: float) -> tuple[Tensor, Tensor]:
    """Two flat integer views: small steps in `share` of the units, other bits altogether in an eighth of that."""
    bits = ALPHABETS[dtype].bits
    draw = torch.Generator().manual_seed(bits)
    size = max(frame.offset(frame.units - 1) for frame in frames) + 1
    kind = UNIT_TYPES[bits]
    old = torch.randint(0, 1 << bits, (size,), generator=draw).to(kind)
    moved = (old + torch.randint(-12, 13, (size,), generator=draw)).to(kind)
    new = torch.where(torch.rand(size, generator=draw) < share, moved, old)
    other = torch.randint(0, 1 << bits, (size,), generator=draw).to(kind)
    return old, torch.where(torch.rand(size, generator=draw) < share / 8, other, new)


def coded(
    old: Tensor, new: Tensor, frames: list[Frame], dtype: str, table: ContextTable, lanes: int, capacity: int = 400
) -> tuple[LaneWords, list[bytes]]:
    """What the kernels made of the frames: their lanes, and the payloads."""
    before = FrameBatch.of([old], [(0, frame) for frame in frames])
    after = FrameBatch.of([new], [(0, frame) for frame in frames])
    out = LaneWords.empty(len(frames), lanes, capacity, CPU)
    encode(before, after, ALPHABETS[dtype], device_table(table, dtype), out, EncodeScratch.of(CPU))
    return out, payloads(out)


def payloads(out: LaneWords) -> list[bytes]:
    offsets = payload_offsets(out)
    into = torch.full((int(offsets[-1]) + 8,), 0xAB, dtype=torch.uint8)
    compact(out, offsets, into)
    assert bytes([0xAB] * 8) == into[-8:].numpy().tobytes()
    ends = offsets.tolist()
    return [into[low:high].numpy().tobytes() for low, high in pairwise(ends)]


def expected(old: Tensor, new: Tensor, frame: Frame, dtype: str, table: ContextTable, lanes: int) -> bytes:
    before, after = plain.units_of(old, frame), plain.units_of(new, frame)
    words = plain.encode_frame(before, after, ALPHABETS[dtype], device_table(table, dtype), lanes)
    assert words is not None
    return plain.payload(words)


def cpu_payload(old: Tensor, new: Tensor, frame: Frame, dtype: str, table: ContextTable, lane_shift: int) -> bytes:
    alphabet = ALPHABETS[dtype]
    before = plain.units_of(old, frame).numpy().astype(alphabet.unit)
    after = plain.units_of(new, frame).numpy().astype(alphabet.unit)
    positions = np.flatnonzero(before != after).astype(np.uint32)
    change = FrameChange(
        units=frame.units,
        positions=positions,
        before=before[positions],
        after=after[positions],
        whole=lambda: after,
        base=lambda: before,
    )
    return ContextCodec(table, alphabet, lane_shift).encode(change)


ROWS = [Frame(at * 16, 6, 16, 160) for at in range(9)]
"""Bands of columns in whole pieces."""
ODD_ROWS = [Frame(at * 13, 5, 13, 131) for at in range(9)]
FLAT = [Frame(at * 96, 1, 96, 96) for at in range(33)]
"""One more than a program's lanes."""
SHORT = [Frame(at * 200, 1, 150 + at, 200) for at in range(5)]
"""Their last pieces are short, by different units."""


@pytest.mark.parametrize(
    ("dtype", "frames", "lanes", "walk", "zone_bits"),
    [
        ("BF16", FLAT, 1, Walk.FLAT, 16),
        ("BF16", ROWS, 2, Walk.ROWS, 18),
        ("BF16", ODD_ROWS, 1, Walk.ANY, 16),
        ("F16", SHORT, 4, Walk.ANY, 17),
        ("F32", ROWS, 1, Walk.ROWS, 16),
        ("F8_E4M3", ROWS, 8, Walk.ROWS, 20),
        ("F4", SHORT, 2, Walk.ANY, 19),
        ("U8", ROWS, 1, Walk.ROWS, 16),
        ("I16", [Frame(0, 1, 512, 512)], 32, Walk.FLAT, 16),
        ("I32", [Frame(3, 1, 260, 260)], 16, Walk.ANY, 16),
    ],
)
def test_kernels_code_the_bytes_of_the_plain_coder(
    dtype: str, frames: list[Frame], lanes: int, walk: Walk, zone_bits: int
) -> None:
    old, new = weights(dtype, frames, 0.06)
    table = a_table(zone_bits)
    out, made = coded(old, new, frames, dtype, table, lanes)
    assert walk == FrameBatch.of([old], [(0, frame) for frame in frames]).walk
    assert [CODED] * len(frames) == out.status.tolist()
    assert [expected(old, new, frame, dtype, table, lanes) for frame in frames] == made
    differing = [int((plain.units_of(old, f) != plain.units_of(new, f)).sum()) for f in frames]
    assert differing == out.changed.tolist()


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F8_E5M2", "F4", "I16", "U8"])
def test_plain_coder_and_cpu_codec_make_the_same_bytes(dtype: str) -> None:
    frame = Frame(1, 7, 301, 311)
    old, new = weights(dtype, [frame], 0.1)
    table = a_table(17, 200_000)
    assert cpu_payload(old, new, frame, dtype, table, 10) == expected(old, new, frame, dtype, table, 2)


def test_a_frame_tells_the_way_through_it() -> None:
    flat = torch.zeros(1024, dtype=torch.int16)
    frames = [Frame(8, 1, 64, 64), Frame(8, 4, 16, 64), Frame(8, 4, 16, 63), Frame(8, 1, 63, 63), Frame(4, 1, 64, 64)]
    assert [Walk.FLAT, Walk.ROWS, Walk.ANY, Walk.ANY, Walk.ANY] == [walk_of(flat, frame) for frame in frames]
    assert Walk.ANY == walk_of(flat[1:], Frame(7, 1, 64, 64))


def test_every_unit_may_change() -> None:
    frame = Frame(0, 1, 256, 256)
    old, _ = weights("BF16", [frame], 0)
    new = old ^ 1
    table = a_table()
    out, made = coded(old, new, [frame], "BF16", table, 8)
    assert [256] == out.changed.tolist()
    assert [expected(old, new, frame, "BF16", table, 8)] == made


def test_long_clocks_are_carried_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CARRY", 1 << 21)
    frame = Frame(0, 1, 320, 320)
    old = torch.full((320,), 0x0180, dtype=torch.int16)
    new = old.clone()
    new[[2, 200]] += 1
    table = ContextTable(18, (200_000,) * 256, (RICH,), (0,) * 256)
    _, made = coded(old, new, [frame], "BF16", table, 1)
    assert [expected(old, new, frame, "BF16", table, 1)] == made


def test_nothing_changed_costs_misses_only_where_the_clock_runs() -> None:
    frames = [Frame(0, 1, 64, 64), Frame(64, 1, 64, 64)]
    old = torch.cat([torch.full((64,), 0x0080), torch.full((64,), 0x0100)]).to(torch.int16)
    table = ContextTable(16, tuple(1000 if i == 2 else 0 for i in range(256)), (RICH,), (0,) * 256)
    out, made = coded(old, old.clone(), frames, "BF16", table, 1)
    assert [0, 0] == out.changed.tolist()
    assert [0, 0] == out.status.tolist()
    assert [expected(old, old, frame, "BF16", table, 1) for frame in frames] == made
    assert b"" == made[0]


@pytest.mark.parametrize(
    ("width", "entries"),
    [(0, RICH), (100, ((1, 4096),))],
    ids=["no width", "neither the symbol nor an escape"],
)
def test_what_the_table_cannot_code_leaves_its_frame_out_and_no_other(
    width: int, entries: tuple[tuple[int, int], ...]
) -> None:
    frames = [Frame(at * 64, 1, 64, 64) for at in range(3)]
    old = torch.full((192,), 0x0080, dtype=torch.int16)
    new = old.clone()
    old[70], new[70] = 0x0100, 0x0102
    old[10], new[10] = 0x0080, 0x0081
    table = ContextTable(
        16, tuple(width if i == 2 else 200 for i in range(256)), (RICH, entries), tuple(int(i == 2) for i in range(256))
    )
    out, made = coded(old, new, frames, "BF16", table, 1)
    assert [CODED, UNCODABLE, CODED] == out.status.tolist()
    assert [1, 1, 0] == out.changed.tolist()
    assert b"" == made[1]
    assert expected(old, new, frames[0], "BF16", table, 1) == made[0]
    before, after = plain.units_of(old, frames[1]), plain.units_of(new, frames[1])
    assert plain.encode_frame(before, after, ALPHABETS["BF16"], device_table(table), 1) is None


def test_a_lane_that_outgrows_its_region_is_told_and_spoils_no_other() -> None:
    frames = [Frame(at * 64, 1, 64, 64) for at in range(3)]
    old, new = weights("BF16", frames, 0.03)
    new[64:128] = ~old[64:128]
    table = a_table()
    out, made = coded(old, new, frames, "BF16", table, 1, capacity=30)
    assert [CODED, FULL, CODED] == out.status.tolist()
    assert 64 == int(out.changed[1])
    assert [expected(old, new, frames[0], "BF16", table, 1), b""] == made[:2]
    assert expected(old, new, frames[2], "BF16", table, 1) == made[2]


def test_one_launch_takes_frames_of_many_tensors() -> None:
    frame = Frame(0, 1, 96, 96)
    pairs = [weights("BF16", [Frame(0, 1, 96 * (i + 1), 0)], 0.1) for i in range(3)]
    before = FrameBatch.of([old for old, _ in pairs], [(i, frame) for i in range(3)])
    after = FrameBatch.of([new for _, new in pairs], [(i, frame) for i in range(3)])
    table = a_table()
    out = LaneWords.empty(3, 1, 400, CPU)
    encode(before, after, ALPHABETS["BF16"], device_table(table), out, EncodeScratch.of(CPU))
    assert [expected(old, new, frame, "BF16", table, 1) for old, new in pairs] == payloads(out)


def test_payloads_that_do_not_fit_the_buffer_are_left_out() -> None:
    frames = [Frame(at * 96, 1, 96, 96) for at in range(3)]
    old, new = weights("BF16", frames, 0.1)
    out, made = coded(old, new, frames, "BF16", a_table(), 1)
    into = torch.full((len(made[0]) + len(made[1]) + 1,), 0xAB, dtype=torch.uint8)
    compact(out, payload_offsets(out), into)
    assert made[0] + made[1] + b"\xab" == into.numpy().tobytes()


def test_lengths_of_more_than_one_byte_are_varints() -> None:
    words = torch.arange(2 * 20_000, dtype=torch.int32).to(torch.int16)
    for count in (127, 128, 16_383, 16_384):
        counts = torch.tensor([count, 5], dtype=torch.int32)
        one, zero = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        out = LaneWords(2, 20_000, words, counts, one, zero)
        lanes = [
            [word & 0xFFFF for word in range(20_000 - count, 20_000)],
            [word & 0xFFFF for word in range(39_995, 40_000)],
        ]
        assert [plain.payload(lanes)] == payloads(out)


def test_batches_of_other_frames_are_refused() -> None:
    old = torch.zeros(64, dtype=torch.int16)
    one = FrameBatch.of([old], [(0, Frame(0, 1, 32, 32))])
    two = FrameBatch.of([old], [(0, Frame(0, 1, 32, 32)), (0, Frame(32, 1, 32, 32))])
    with pytest.raises(ValueError, match="1 old frames, 2 new ones"):
        encode(
            one, two, ALPHABETS["BF16"], device_table(a_table()), LaneWords.empty(1, 1, 9, CPU), EncodeScratch.of(CPU)
        )


def test_frames_in_host_memory_are_taken_from_pinned_memory_only() -> None:
    old, new = weights("BF16", FLAT[:2], 0.1)
    before = FrameBatch.of([old], [(0, frame) for frame in FLAT[:2]])
    with pytest.raises(ValueError, match="192 units on cpu cannot be reached from cuda: pin that memory"):
        reached_from(before, torch.device("cuda"))
    near = reached_from(before, CPU)
    out = LaneWords.empty(2, 1, 400, CPU)
    after = FrameBatch.of([new], [(0, frame) for frame in FLAT[:2]])
    encode(near, after, ALPHABETS["BF16"], device_table(a_table()), out, EncodeScratch.of(CPU))
    assert [expected(old, new, frame, "BF16", a_table(), 1) for frame in FLAT[:2]] == payloads(out)


def test_no_frames_are_no_work() -> None:
    none = FrameBatch.of([torch.zeros(8, dtype=torch.int16)], [])
    out = LaneWords.empty(0, 4, 10, CPU)
    encode(none, none, ALPHABETS["BF16"], device_table(a_table()), out, EncodeScratch.of(CPU))
    assert [] == payloads(out)
