"""The context coder: any change of any dtype comes back, whatever table it is coded with; what it cannot code it says."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from syncline.codecs.base import FrameChange, Uncodable
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, lane_shift, lanes_of
from syncline.codecs.context.counts import Counts, count_symbols, count_units
from syncline.codecs.context.fitting import fit
from syncline.codecs.context.table import CONTEXTS, ContextTable, widest
from syncline.errors import FormatInvalid, FrameCorrupt
from syncline.kernels.clock import Alphabet
from syncline.testing import grpo_a
from syncline.wire.limits import CODEC_TABLE_MAX_BYTES

Units = NDArray[np.unsignedinteger]

DTYPES = sorted(ALPHABETS)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def counts_of(alphabet: Alphabet, *changes: FrameChange) -> Counts:
    counts = Counts.none()
    for change in changes:
        counts.units[:] += count_units(alphabet, change.base())
        count_symbols(alphabet, change.before, change.after, counts.symbols)
    return counts


def fitted(dtype: str, change: FrameChange, *, exact: bool = True, shift: int = 10) -> ContextCodec:
    alphabet = ALPHABETS[dtype]
    return ContextCodec(fit(counts_of(alphabet, change), alphabet, exact=exact), alphabet, shift)


def comes_back(codec: ContextCodec, change: FrameChange) -> bool:
    frame = change.base().copy()
    codec.decode(memoryview(codec.encode(change)), frame, changed=change.positions.size)
    return bool(np.array_equal(change.whole(), frame))


def draw(dtype: str, size: int, share: float, seed: int) -> FrameChange:
    """Random bits, of which about `share` become others; at least one."""
    random = np.random.default_rng(seed)
    unit = ALPHABETS[dtype].unit
    old = np.frombuffer(random.bytes(size * unit.itemsize), unit)
    new = np.frombuffer(random.bytes(size * unit.itemsize), unit)
    new = np.where(random.random(size) < share, new, old)
    if np.array_equal(old, new):
        new[-1] ^= unit.type(1)
    return FrameChange.between(old, new)


@dtypes
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("size", [1, 15, 4099, 40_000])
def test_any_change_comes_back(dtype: str, share: float, size: int) -> None:
    change = draw(dtype, size, share, seed=size)
    for exact in (True, False):
        assert comes_back(fitted(dtype, change, exact=exact), change)


@dtypes
def test_a_decoder_tells_what_stood_where_a_unit_changed(dtype: str) -> None:
    change = draw(dtype, 40_000, 0.05, seed=3)
    codec = fitted(dtype, change)
    placed = codec.place(
        memoryview(codec.encode(change)),
        units=change.units,
        dtype=change.before.dtype,
        changed=change.positions.size,
        base=change.base,
    )
    assert placed.base is not None
    expected, found = (change.positions, change.before, change.after), (placed.positions, placed.base, placed.units)
    assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))


@dtypes
def test_a_table_made_without_knowing_the_change_codes_it(dtype: str) -> None:
    other, change = draw(dtype, 4099, 0.05, seed=1), draw(dtype, 4099, 0.05, seed=2)
    assert comes_back(fitted(dtype, other, exact=False), change)


@dtypes
def test_a_change_that_an_exact_table_never_saw_is_not_coded(dtype: str) -> None:
    zeros = np.zeros(64, ALPHABETS[dtype].unit)
    codec = fitted(dtype, FrameChange.between(zeros, zeros + 1))
    with pytest.raises(Uncodable):
        codec.encode(FrameChange.between(zeros, zeros + 2))


@st.composite
def frames(draw: st.DrawFn) -> tuple[str, FrameChange]:
    dtype = draw(st.sampled_from(DTYPES))
    unit = ALPHABETS[dtype].unit
    top = int(np.iinfo(unit).max)
    bits = st.sampled_from([0, 1, top, top >> 1, (top >> 1) + 1, top >> 2]) | st.integers(0, top)
    old = np.array(draw(st.lists(bits, min_size=1, max_size=300)), unit)
    new = old.copy()
    for position, value in draw(st.dictionaries(st.integers(0, old.size - 1), bits, max_size=40)).items():
        new[position] = value
    if np.array_equal(old, new):
        new[0] ^= unit.type(1)
    return dtype, FrameChange.between(old, new)


@settings(max_examples=300, deadline=None)
@given(case=frames(), exact=st.booleans())
def test_edge_values_come_back(case: tuple[str, FrameChange], exact: bool) -> None:
    dtype, change = case
    assert comes_back(fitted(dtype, change, exact=exact), change)


@pytest.mark.parametrize(
    ("units", "shift", "lanes"), [(1, 10, 1), (1023, 10, 1), (3072, 10, 2), (1 << 20, 10, 32), (1 << 20, 17, 8)]
)
def test_a_frame_has_as_many_lanes_as_its_units_and_the_shift_say(units: int, shift: int, lanes: int) -> None:
    assert lanes == lanes_of(units, shift)


def test_lanes_grow_longer_where_changes_are_few() -> None:
    assert [15, 16, 19] == [lane_shift(changed, 1_000_000) for changed in (20_000, 10_000, 850)]


@dtypes
@pytest.mark.parametrize("exact", [True, False])
def test_a_table_is_its_bytes(dtype: str, exact: bool) -> None:
    table = fitted(dtype, draw(dtype, 4099, 0.2, seed=3), exact=exact).table
    assert table == ContextTable.parse(table.data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends early"),
        (bytes([15, 1, 1, 0, 0x80, 0x20, 0, 0, 0]), "zones of 2\\^15"),
        (bytes([21, 1, 1, 0, 0x80, 0x20, 0, 0, 0]), "zones of 2\\^21"),
        (bytes([16, 0]), "has 0 where 1 to 256"),
        (bytes([16, 1, 1, 0, 0xFF, 0x1F, 0, 0, 0]), "sums to 4095, not 4096"),
        (bytes([16, 1, 2, 5, 0x80, 0x10, 5, 0x80, 0x10, 0, 0, 0]), "names a symbol twice"),
        (bytes([16, 1, 1, 0, 0x80, 0x20, 0, 1, 0]), "has 1 where 0 to 0"),
        (bytes([16, 1, 1, 0, 0x80, 0x20, 0x81, 0x80, 0x10, 0, 0]), "has 262145 where 0 to 262144"),
        (bytes([16, 1, 1, 0, 0x80, 0x20, 0, 0, 1, 0x80, 2, 0, 0]), "context 256 of 256"),
        (bytes([16, 1, 1, 0, 0x80, 0x20, 0, 0, 0, 0]), "bytes behind its end"),
        (bytes([16, 1, 1, 0x80, 0, 0x80, 0x20, 0, 0, 0]), "has 0 where"),
        (bytes([16, 1, 1, 0, 0x80, 0x80, 0x80, 0x80, 1]), "more than four bytes"),
    ],
)
def test_a_table_that_breaks_a_bound_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(FormatInvalid, match=message):
        ContextTable.parse(data)


def test_the_widest_context_and_the_finest_clock_keep_their_bounds() -> None:
    alphabet = ALPHABETS["BF16"]
    counts = Counts.none()
    counts.units[0] = counts.symbols[0, 1] = 1 << 30  # always changes
    counts.units[1], counts.symbols[1, 1] = 1 << 40, 1  # hardly ever
    table = fit(counts, alphabet, exact=True)
    assert (16, widest(16), 1) == (table.zone_bits, table.widths[0], table.widths[1])
    counts.units[0] = 1 << 40
    assert 20 == fit(counts, alphabet, exact=True).zone_bits


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("changes", [1 << 10, 1 << 20, 1 << 40])
def test_a_table_keeps_its_bound_however_much_its_contexts_differ(changes: int, exact: bool) -> None:
    random = np.random.default_rng(4)
    counts = Counts.none()
    for symbols in counts.symbols:
        symbols[1 + random.choice(255, 80, replace=False)] = changes
    counts.units[:] = 100 * changes
    table = fit(counts, ALPHABETS["U8"], exact=exact)
    assert len(table.data) <= CODEC_TABLE_MAX_BYTES
    assert ContextTable.parse(table.data) == table


def test_equal_counts_give_equal_tables_in_any_order_of_adding() -> None:
    alphabet = ALPHABETS["F8_E4M3"]
    parts = [counts_of(alphabet, draw("F8_E4M3", 4099, 0.1, seed=n)) for n in range(3)]
    one, other = parts[0] + parts[1] + parts[2], parts[2] + (parts[1] + parts[0])
    assert fit(one, alphabet, exact=True).data == fit(other, alphabet, exact=True).data


@dtypes
@pytest.mark.parametrize("shift", [10, 30])
def test_damaged_payloads_are_corrupt_and_write_nothing_outside_the_frame(dtype: str, shift: int) -> None:
    change = draw(dtype, 5000, 0.05, seed=4)
    codec = fitted(dtype, change, shift=shift)
    payload = codec.encode(change)
    random = np.random.default_rng(5)
    others = [payload[:-2], payload[:-1], payload + b"\1\0", payload[2:], b"", random.bytes(len(payload))]
    flipped = [bytearray(payload) for _ in range(60)]
    for one in flipped:
        one[random.integers(len(payload))] ^= 1 << random.integers(8)
    for bad in (*others, *map(bytes, flipped)):
        whole = np.full(5000 + 128, 0x5A, codec.alphabet.unit)
        whole[64:-64] = change.base()
        # A change of raw bits, or of the last ones, may give other values: the frame's checksum is for that.
        with suppress(FrameCorrupt):
            codec.decode(memoryview(bad), whole[64:-64], changed=change.positions.size)
            assert change.positions.size == np.count_nonzero(whole[64:-64] != change.base())
        assert np.all(whole[:64] == 0x5A) and np.all(whole[-64:] == 0x5A)
    for bad in (b"", payload[:-1], payload + b"\1\0"):
        with pytest.raises(FrameCorrupt):
            codec.decode(memoryview(bad), change.base().copy(), changed=change.positions.size)


# Around the ends of a lane's block of 64 pieces, of a piece, and of 32 lanes.
@pytest.mark.parametrize("dtype", ["BF16", "F32", "F8_E4M3"])
@pytest.mark.parametrize("size", [255, 256, 257, 511, 513, 1023, 1025, 2049, 32_769, 65_535, 65_537])
def test_frames_that_end_near_a_block_come_back_and_stay_inside_when_damaged(dtype: str, size: int) -> None:
    change = draw(dtype, size, 0.05, seed=size)
    last = change.base().copy()
    last[-1] ^= last.dtype.type(1)
    for one in (change, FrameChange.between(change.base(), last)):
        codec = fitted(dtype, one)
        assert comes_back(codec, one)
        payload = bytearray(codec.encode(one))
        random = np.random.default_rng(size)
        for _ in range(5):
            payload[random.integers(len(payload))] ^= 1 << random.integers(8)
            whole = np.full(size + 128, 0x5A, codec.alphabet.unit)
            whole[64:-64] = one.base()
            with suppress(FrameCorrupt):
                codec.decode(memoryview(payload), whole[64:-64], changed=one.positions.size)
            assert np.all(whole[:64] == 0x5A) and np.all(whole[-64:] == 0x5A)


def test_another_base_does_not_decode_to_the_promised_bits() -> None:
    change = draw("BF16", 5000, 0.05, seed=6)
    codec = fitted("BF16", change)
    with pytest.raises(FrameCorrupt):
        codec.decode(
            memoryview(codec.encode(change)),
            draw("BF16", 5000, 0.05, seed=7).base().copy(),
            changed=change.positions.size,
        )


def test_real_steps_stay_near_their_entropy() -> None:
    old, new = grpo_a.base(), next(grpo_a.steps())
    change = FrameChange.between(*(np.concatenate([w[name].reshape(-1) for name in old]) for w in (old, new)))
    codec = fitted("BF16", change, shift=17)
    assert 8 * len(codec.encode(change)) / change.positions.size < 6.2


def test_every_context_has_a_place_in_a_table() -> None:
    assert all(alphabet.mask < CONTEXTS for alphabet in ALPHABETS.values())
