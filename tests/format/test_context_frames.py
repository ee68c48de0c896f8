"""Frames of the `context` codec between the library and a reader and a writer that know only FORMAT.md: equal bits, equal refusals."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.delta import CodecChoice, Delta, DeltaEncoder, scatter, stage_tensor
from syncline.errors import Corrupt, FormatInvalid
from syncline.wire import dtypes
from syncline.wire.chunk import Chunk, CodecTable, EncodedFrame, Frames, Section, pack
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

Scripts = Callable[[str], ModuleType]
CONTEXT = 5
CODED = sorted(name for name, dtype in dtypes.DTYPES.items() if dtype.unit_bytes < 8)
UNCODED = sorted(dtypes.DTYPES.keys() - CODED)
TILING = Tiling()


def tensor_of(dtype: str, units: int) -> TensorTable:
    """One tensor, one frame."""
    elements = units * dtypes.dtype(dtype).unit_bytes * 8 // dtypes.dtype(dtype).bits
    return TensorTable(tensors=[TensorSpec(name="t", dtype=dtype, shape=[elements], axis=0)])


def by_library(dtype: str, old: Sequence[int], data: bytes) -> list[int]:
    table = tensor_of(dtype, len(old))
    spec = table.tensors[0]
    live = np.array(old, f"<u{spec.unit_bytes}")
    scatter(spec, TILING, live, stage_tensor(table, TILING, 0, live, [Delta.parse(table, TILING, [("c", data)])]))
    return live.tolist()


def by_reader(scripts: Scripts, dtype: str, old: Sequence[int], data: bytes) -> list[int]:
    chunks, kind = scripts("reader_chunks"), f"<u{dtypes.dtype(dtype).unit_bytes}"
    (frame,) = chunks.chunk("c", data)
    return np.frombuffer(chunks.decode("c", frame, np.array(old, kind).tobytes(), dtype), kind).tolist()


def chunk(payload: bytes, table: bytes, *, changed: int, params: bytes = b"\x00\x0f") -> bytes:
    section = Section(0, CONTEXT, Frames.of([EncodedFrame(0, changed, payload)]), params)
    return pack(Chunk(bytes(16), [section], [CodecTable(CONTEXT, table)]))


# --- equal bits -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drawn:
    """A frame before and after."""

    old: list[int]
    new: list[int]

    @property
    def changed(self) -> int:
        return sum(x != y for x, y in zip(self.old, self.new, strict=True))


def frame_of(dtype: str, units: int, share: float, seed: int) -> Drawn:
    """Units of which a share moves, half of those a little and half to anywhere. At least one does."""
    draw = random.Random(seed)
    bits = 8 * dtypes.dtype(dtype).unit_bytes
    units += -units % 3 if dtypes.dtype(dtype).bits == 6 else 0  # four elements fill three bytes
    old = [draw.getrandbits(bits) for _ in range(units)]
    new = list(old)
    for at in {at for at in range(units) if draw.random() < share} | {draw.randrange(units)}:
        new[at] ^= draw.randrange(1, 4) if draw.random() < 0.5 else draw.randrange(1, 1 << bits)
    return Drawn(old, new)


@given(
    dtype=st.sampled_from(CODED),
    units=st.integers(1, 2000) | st.sampled_from((32_768, 40_001)),
    share=st.sampled_from((0.0, 0.01, 0.2, 1.0)),
    lane_shift=st.sampled_from((10, 12, 30)),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_reader_reads_what_the_library_codes_by_context(
    dtype: str, units: int, share: float, lane_shift: int, seed: int, scripts: Scripts
) -> None:
    drawn = frame_of(dtype, units, share, seed)
    table = tensor_of(dtype, len(drawn.old))
    kind = f"<u{table.tensors[0].unit_bytes}"
    out: list[bytes] = []
    encoder = DeltaEncoder(
        table,
        TILING,
        nonce=lambda: bytes(16),
        sink=lambda _, data: out.append(data),
        choice=CodecChoice(forced="context", dense_ratio=2),
    )
    with patch("syncline.delta.grouping.lane_shift", lambda *_: lane_shift):
        encoder.add(0, np.array(drawn.old, kind), np.array(drawn.new, kind))
        assert {"context": drawn.changed} == encoder.finish().statistics.codecs
    assert drawn.new == by_reader(scripts, dtype, drawn.old, out[0])


@given(
    dtype=st.sampled_from(CODED),
    units=st.integers(1, 3000),
    share=st.sampled_from((0.0, 0.01, 0.2, 1.0)),
    lane_shift=st.sampled_from((10, 11, 30)),
    zone=st.integers(16, 20),
    widths=st.lists(st.sampled_from((1, 3, 900, 65_535, 65_537, 2**18 - 1, 2**18)), min_size=3, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_library_reads_what_a_writer_codes_from_the_text_alone(
    dtype: str,
    units: int,
    share: float,
    lane_shift: int,
    zone: int,
    widths: list[int],
    seed: int,
    scripts: Scripts,
) -> None:
    drawn = frame_of(dtype, units, share, seed)
    text = scripts("context_writer").TableText(
        zone=zone,
        lists=([(1, 100), (0, 3000), (2, 990), (17, 5), (29, 1)], [(255, 1), (0, 4095)], [(0, 4096)]),
        width=widths[0],
        default=1,
        named={0: (widths[1], 2), 77: (widths[2], 0), 255: (widths[1], 0)},
    )
    data = written(scripts, dtype, drawn, text, lane_shift)
    assert drawn.new == by_reader(scripts, dtype, drawn.old, data) == by_library(dtype, drawn.old, data)


def written(scripts: Scripts, dtype: str, drawn: Drawn, text: Any, lane_shift: int) -> bytes:
    table = scripts("reader_context").read_table("t", text.write())
    payload = scripts("context_writer").payload(dtype, table, lane_shift, drawn.old, drawn.new)
    return chunk(payload, text.write(), changed=drawn.changed, params=bytes([0, lane_shift]))


# --- equal refusals ---------------------------------------------------------------------------------------------------


def refused_by_both(scripts: Scripts, dtype: str, old: Sequence[int], data: bytes) -> None:
    with pytest.raises(scripts("reader_records").Refused):
        by_reader(scripts, dtype, old, data)
    with pytest.raises(Corrupt):
        by_library(dtype, old, data)


def refused_before_a_frame_is_read(scripts: Scripts, dtype: str, old: Sequence[int], data: bytes) -> None:
    with pytest.raises(scripts("reader_records").Refused):
        scripts("reader_chunks").chunk("c", data)
    with pytest.raises(FormatInvalid):
        Delta.parse(tensor_of(dtype, len(old)), TILING, [("c", data)])


def read_by_both(scripts: Scripts, dtype: str, old: Sequence[int], data: bytes) -> list[int]:
    new = by_reader(scripts, dtype, old, data)
    assert new == by_library(dtype, old, data)
    return new


OLD = [0x3F80 + at for at in range(20)]
ONE_UP = Drawn(OLD, [x + (at == 7) for at, x in enumerate(OLD)])
Values = Sequence[tuple[int, int]]
FILLED: Values = ((1, 4095), (0, 1))


@dataclass(frozen=True, slots=True)
class Wrong:
    """A table or parameters that no reader may take, and its neighbour that every reader does."""

    table: Mapping[str, Any] = field(default_factory=dict[str, Any])
    right: Mapping[str, Any] = field(default_factory=dict[str, Any])
    behind: bytes = b""
    cut: int = 0
    params: bytes = b"\x00\x0f"
    right_params: bytes = b"\x00\x0f"


def lists(*values: Values) -> dict[str, Any]:
    return {"lists": values}


TABLES = {
    "a zone of 2^15 ticks": Wrong({"zone": 15}, {"zone": 16}),
    "a zone of 2^21 ticks": Wrong({"zone": 21}, {"zone": 20}),
    "no value list": Wrong(lists()),
    "257 value lists": Wrong(lists(*[FILLED] * 257), lists(*[FILLED] * 256)),
    "a value list without entries": Wrong(lists(FILLED, ())),
    "a value list of 257 entries": Wrong(
        lists(FILLED, [(at % 256, 15 + (at == 0) * 241) for at in range(257)]),
        lists(FILLED, [(at, 16) for at in range(256)]),
    ),
    "a symbol above 255": Wrong(lists(FILLED, ((256, 4096),)), lists(FILLED, ((255, 4096),))),
    "a symbol twice": Wrong(lists(FILLED, ((3, 4000), (3, 96))), lists(FILLED, ((3, 4000), (4, 96)))),
    "a frequency of 0": Wrong(lists(FILLED, ((3, 4096), (4, 0))), lists(FILLED, ((3, 4095), (4, 1)))),
    "a frequency above 4096": Wrong(lists(FILLED, ((3, 4097),)), lists(FILLED, ((3, 4096),))),
    "frequencies that sum to 4095": Wrong(lists(FILLED, ((3, 4000), (4, 95)))),
    "frequencies that sum to 8192": Wrong(lists(FILLED, ((3, 4096), (4, 4096)))),
    "a default list that is not there": Wrong({"default": 1}, {"default": 0}),
    "a default width above 2^18": Wrong({"width": 2**18 + 1}, {"width": 2**18}),
    "a default width above 2^18 in the longest zones": Wrong({"zone": 20, "width": 2**18 + 1}, {"zone": 20}),
    "257 named contexts": Wrong(
        {"named": dict.fromkeys(range(257), (1, 0))}, {"named": dict.fromkeys(range(256), (9, 0))}
    ),
    "a named context above 255": Wrong({"named": {3: (1, 0), 256: (1, 0)}}, {"named": {3: (1, 0), 255: (1, 0)}}),
    "a named context of another list": Wrong({"named": {3: (1, 1)}}, {"named": {3: (1, 0)}}),
    "a named width above 2^18": Wrong({"named": {3: (2**18 + 1, 0)}}, {"named": {3: (2**18, 0)}}),
    "a byte behind the table": Wrong(behind=b"\x00"),
    "a table that ends early": Wrong(cut=1),
    "a varint of two bytes where one does": Wrong(cut=1, behind=b"\x80\x00"),
    "an empty table": Wrong(cut=1 << 20),
    "a lane shift of 9": Wrong(params=b"\x00\x09", right_params=b"\x00\x0a"),
    "a lane shift of 31": Wrong(params=b"\x00\x1f", right_params=b"\x00\x1e"),
    "a table that is not there": Wrong(params=b"\x01\x0f"),
    "a table number in more bytes than it needs": Wrong(params=b"\x80\x00\x0f"),
    "parameters without the lane shift": Wrong(params=b"\x00"),
    "a byte behind the parameters": Wrong(params=b"\x00\x0f\x00"),
    "no parameters": Wrong(params=b""),
}


@pytest.mark.parametrize("wrong", TABLES.values(), ids=TABLES)
def test_both_refuse_tables_and_parameters_out_of_bounds(wrong: Wrong, scripts: Scripts) -> None:
    text = scripts("context_writer").TableText
    right = text(**{"lists": [FILLED], **wrong.right}).write()
    reader_table = scripts("reader_context").read_table("t", right)
    payload = scripts("context_writer").payload("BF16", reader_table, 15, ONE_UP.old, ONE_UP.new)
    taken = chunk(payload, right, changed=1, params=wrong.right_params)
    assert ONE_UP.new == read_by_both(scripts, "BF16", OLD, taken)

    table = text(**{"lists": [FILLED], **wrong.table}).write()
    table = table[: max(len(table) - wrong.cut, 0)] + wrong.behind
    refused_before_a_frame_is_read(scripts, "BF16", OLD, chunk(payload, table, changed=1, params=wrong.params))


def test_both_refuse_a_codec_table_longer_than_its_bound(scripts: Scripts) -> None:
    refused_before_a_frame_is_read(scripts, "BF16", OLD, chunk(b"", bytes(32_769), changed=1))


def test_neither_looks_into_a_codec_table_that_no_section_names(scripts: Scripts) -> None:
    text = scripts("context_writer").TableText(lists=[FILLED]).write()
    table = scripts("reader_context").read_table("t", text)
    payload = scripts("context_writer").payload("BF16", table, 15, ONE_UP.old, ONE_UP.new)
    section = Section(0, CONTEXT, Frames.of([EncodedFrame(0, 1, payload)]), b"\x01\x0f")
    data = pack(Chunk(bytes(16), [section], [CodecTable(CONTEXT, b"no table"), CodecTable(CONTEXT, text)]))
    assert ONE_UP.new == read_by_both(scripts, "BF16", OLD, data)


@pytest.mark.parametrize("dtype", UNCODED)
def test_both_refuse_units_of_eight_bytes(dtype: str, scripts: Scripts) -> None:
    text = scripts("context_writer").TableText().write()
    refused_by_both(scripts, dtype, [0] * 8, chunk(b"", text, changed=1))


# (dtype, all units, the symbol, its raw value and bits, what a neighbouring value makes of the first unit)
VALUES = {
    "an escape to the same 8 bits": ("U8", 9, 0, (9, 8), (8, 8)),
    "an escape to the same nibbles": ("F4", 9, 0, (9, 8), (8, 8)),
    "an escape to the same 16 bits": ("BF16", 0x8001, 0, (0x8001, 16), (0x8002, 16)),
    "an escape to the same 32 bits": ("F32", 0x80010002, 0, (0x80010002, 32), (0x80020002, 32)),
    "a step above all 16 bit floats": ("BF16", 0x7FF0, 17, ((15 - 8) * 2, 4), ((14 - 8) * 2, 4)),
    "a step below all 16 bit floats": ("F16", 0xFFF0, 17, ((15 - 8) * 2 + 1, 4), ((14 - 8) * 2 + 1, 4)),
    "a step above all integers": ("U16", 0xFFF0, 17, ((15 - 8) * 2, 4), ((14 - 8) * 2, 4)),
    "a step below all integers": ("I16", 0x000F, 17, ((15 - 8) * 2 + 1, 4), ((14 - 8) * 2 + 1, 4)),
    "a step above all 32 bit floats": ("F32", 0x7FFFFFF0, 17, ((15 - 8) * 2, 4), ((14 - 8) * 2, 4)),
    "a step below all 32 bit integers": ("I32", 0x0000000F, 17, ((15 - 8) * 2 + 1, 4), ((14 - 8) * 2 + 1, 4)),
    "the greatest step from the greatest integer": ("U16", 0xFFFF, 29, (2**16 - 2, 16), (2**16 - 3, 16)),
}


@pytest.mark.parametrize(("dtype", "unit", "symbol", "wrong", "right"), VALUES.values(), ids=VALUES)
def test_both_refuse_values_that_are_no_change(
    dtype: str, unit: int, symbol: int, wrong: tuple[int, int], right: tuple[int, int], scripts: Scripts
) -> None:
    coded = partial(coded_value, scripts, dtype, unit, symbol)
    assert [unit] * 3 == read_by_both(scripts, dtype, [unit] * 4, coded(*right))[1:]
    refused_by_both(scripts, dtype, [unit] * 4, coded(*wrong))


def coded_value(scripts: Scripts, dtype: str, unit: int, symbol: int, value: int, bits: int) -> bytes:
    """The first of four equal units changes by a symbol and its raw bits."""
    writer = scripts("context_writer")
    text = writer.TableText(lists=[[(symbol, 4096)]]).write()
    table = scripts("reader_context").read_table("t", text)
    unchanged = writer.lane_steps(dtype, table, [unit] * 3, [unit] * 3)
    start = scripts("reader_context").share(16, 0)
    event = scripts("reader_context").share(16, 40_000) - start, start, 20
    return chunk(writer.words([event, (4096, 0, 12), *writer.raw(value, bits), *unchanged]), text, changed=1)


@pytest.mark.parametrize("told", [1, 2])
@pytest.mark.parametrize("dtype", ["F4", "I8", "F16", "U32"])
def test_both_refuse_an_escape_to_the_old_bits_whether_the_directory_counts_it_or_not(
    dtype: str, told: int, scripts: Scripts
) -> None:
    writer, clock = scripts("context_writer"), scripts("reader_context")
    bits = 8 * dtypes.dtype(dtype).unit_bytes
    text = writer.TableText(lists=[[(0, 4096)]]).write()
    start = clock.share(16, 0)
    event = [(clock.share(16, 40_000) - start, start, 20), (4096, 0, 12)]

    def changes(first: int) -> bytes:
        return writer.words([*event, *writer.raw(first, bits), *event, *writer.raw(6, bits)])

    assert [7, 6, 9] == read_by_both(scripts, dtype, [9] * 3, chunk(changes(7), text, changed=2))
    refused_by_both(scripts, dtype, [9] * 3, chunk(changes(9), text, changed=told))


@pytest.mark.parametrize("dtype", ["BF16", "I32"])
@pytest.mark.parametrize("symbol", [30, 31, 255])
def test_both_refuse_a_symbol_that_wide_units_do_not_have(dtype: str, symbol: int, scripts: Scripts) -> None:
    refused_by_both(scripts, dtype, [1000] * 4, coded_value(scripts, dtype, 1000, symbol, 0, 0))


# (what is wrong with two lanes' payload, as a function of the lanes)
PAYLOADS: Mapping[str, Callable[[bytes, bytes], bytes]] = {
    "nothing": lambda one, two: b"",
    "half a word behind": lambda one, two: bytes([len(one) // 2]) + one + two + b"\x00",
    "half a word less": lambda one, two: (bytes([len(one) // 2]) + one + two)[:-1],
    "a lane of more words than there are": lambda one, two: bytes([len(one + two) // 2 + 1]) + one + two,
    "a lane of far more words than there are": lambda one, two: b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + one + two,
    "a length in more bytes than it needs": lambda one, two: bytes([len(one) // 2 | 128, 0]) + one + two,
    "a length without end": lambda one, two: b"\x80" * 10 + one + two,
    "a word behind": lambda one, two: bytes([len(one) // 2]) + one + two + b"\x00\x00",
    "a word less": lambda one, two: bytes([len(one) // 2]) + one + two[:-2],
    "a word of the second lane in the first": lambda one, two: bytes([len(one) // 2 + 1]) + one + two,
    "an empty first lane": lambda one, two: b"\x00" + two,
    "an empty last lane": lambda one, two: bytes([len(one) // 2]) + one,
}


def two_lanes(scripts: Scripts) -> tuple[bytes, Drawn, list[bytes]]:
    """A table, a frame, and its lanes."""
    drawn = frame_of("BF16", 2048, 0.02, 4)
    writer = scripts("context_writer")
    text = writer.TableText(width=3000).write()
    table = scripts("reader_context").read_table("t", text)
    mine = [[at for at in range(2048) if at // 8 % 2 == lane] for lane in (0, 1)]
    parts = [([drawn.old[at] for at in each], [drawn.new[at] for at in each]) for each in mine]
    return text, drawn, [writer.words(writer.lane_steps("BF16", table, *part)) for part in parts]


@pytest.mark.parametrize("spoil", PAYLOADS.values(), ids=PAYLOADS)
def test_both_refuse_payloads_that_do_not_end_where_their_lanes_do(
    spoil: Callable[[bytes, bytes], bytes], scripts: Scripts
) -> None:
    text, drawn, (one, two) = two_lanes(scripts)
    assert len(one) // 2 < 127
    refused_by_both(scripts, "BF16", drawn.old, chunk(spoil(one, two), text, changed=drawn.changed, params=b"\x00\x0a"))
    right = chunk(bytes([len(one) // 2]) + one + two, text, changed=drawn.changed, params=b"\x00\x0a")
    assert drawn.new == read_by_both(scripts, "BF16", drawn.old, right)


@pytest.mark.parametrize("more", [-1, 1])
def test_both_refuse_another_number_of_changes_than_the_directory_says(more: int, scripts: Scripts) -> None:
    text, drawn, (one, two) = two_lanes(scripts)
    payload = bytes([len(one) // 2]) + one + two
    refused_by_both(scripts, "BF16", drawn.old, chunk(payload, text, changed=drawn.changed + more, params=b"\x00\x0a"))


def test_the_misses_that_end_a_lane_take_no_words(scripts: Scripts) -> None:
    writer, clock = scripts("context_writer"), scripts("reader_context")
    text = writer.TableText(lists=[[(1, 4096)]], width=40_000).write()
    start, miss = clock.share(16, 0), (1 << 16, 0, 20)
    change = [(clock.share(16, 40_000) - start, start, 20), (4096, 0, 12)]
    words = writer.words(change)
    assert words == writer.words([*change, miss, miss])
    units = [8, *[7] * 99]
    assert units == read_by_both(scripts, "U16", [7] * 100, chunk(words, text, changed=1))


def test_both_refuse_a_change_that_would_come_after_the_last_unit(scripts: Scripts) -> None:
    writer, clock = scripts("context_writer"), scripts("reader_context")
    text = writer.TableText(lists=[[(1, 4096)]], width=40_000).write()
    start = clock.share(16, 0)
    change = [(clock.share(16, 40_000) - start, start, 20), (4096, 0, 12)]
    later = [(clock.share(16, 120_000) - clock.share(16, 80_000), clock.share(16, 80_000), 20), (4096, 0, 12)]
    data = chunk(writer.words([*change, *later]), text, changed=1)
    refused_by_both(scripts, "U16", [7] * 2, data)
    refused_by_both(scripts, "U16", [7] * 3, data)
    two = chunk(writer.words([*change, *later]), text, changed=2)
    assert [8, 7, 7, 8] == read_by_both(scripts, "U16", [7] * 4, two)


def test_a_context_of_width_0_holds_no_change_whatever_the_words_say(scripts: Scripts) -> None:
    writer, clock = scripts("context_writer"), scripts("reader_context")
    text = writer.TableText(lists=[[(1, 4096)]], width=0).write()
    start = clock.share(16, 0)
    data = chunk(writer.words([(8, start, 20), (4096, 0, 12)]), text, changed=1)
    refused_by_both(scripts, "U16", [7, 7], data)


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 60), changed=st.integers(1, 40))
def test_both_judge_arbitrary_words_alike(seed: int, size: int, changed: int, scripts: Scripts) -> None:
    """Nothing that the coder takes from them leaves its bounds; what one refuses, so does the other."""
    draw = random.Random(seed)
    old = [draw.getrandbits(16) for _ in range(40)]
    text = scripts("context_writer").TableText(width=200_000).write()
    data = chunk(draw.randbytes(size), text, changed=changed)
    try:
        new = by_reader(scripts, "BF16", old, data)
    except scripts("reader_records").Refused:
        with pytest.raises(Corrupt):
            by_library("BF16", old, data)
        return
    assert new == by_library("BF16", old, data)


@pytest.mark.parametrize("zeros", [1, 2, 3, 7])
def test_both_read_a_lane_that_begins_with_words_of_0(zeros: int, scripts: Scripts) -> None:
    text, drawn, (one, two) = two_lanes(scripts)
    first = bytes(2 * zeros) + one
    data = chunk(bytes([len(first) // 2]) + first + two, text, changed=drawn.changed, params=b"\x00\x0a")
    assert drawn.new == read_by_both(scripts, "BF16", drawn.old, data)
