"""Clocks of lanes and the vector steps under them: the integers of their plain twins, on whatever processor runs this."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.kernels import clock_encoding, lane_clocks, reference, vectors
from syncline.kernels.clock import Alphabet, share, target
from syncline.kernels.lane_clocks import FAR, LANES, ROWS, STRIDE

Units = NDArray[np.unsignedinteger]
dtypes = pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F8_E4M3", "I16"])

WIDTHS = np.random.default_rng(0).integers(0, 1 << 18, 256).astype(np.uint32)
WIDTHS[::5] = 1 << 18  # the widest that a table may have
NARROW = WIDTHS.copy()
NARROW[:90], NARROW[150:] = 1 << 18, 0  # other widths in 60 contexts alone, as tables of floating-point weights are
wide_and_narrow = pytest.mark.parametrize("widths", [WIDTHS, NARROW], ids=["wide", "narrow"])


def random_units(alphabet: Alphabet, size: int) -> Units:
    raw = np.random.default_rng(size).bytes(size * alphabet.unit.itemsize + 1)
    return np.frombuffer(raw, alphabet.unit, size, offset=1)  # no vector is aligned


def contexts_of(alphabet: Alphabet, units: Units) -> NDArray[np.int64]:
    return units.astype(np.int64) >> alphabet.shift & alphabet.mask


SUMS: list[Any] = [lane_clocks.plain_sums]
if vectors.has_byte_permutes():
    SUMS.append(lane_clocks.vector_sums)


def test_a_window_is_where_the_widths_differ() -> None:
    assert -1 == lane_clocks.window(WIDTHS)
    for first, last in ((0, 62), (1, 62), (90, 150), (150, 211), (193, 255)):
        widths = np.full(256, 7, np.uint32)
        widths[first : last + 1] = np.arange(first, last + 1) + 100
        low = lane_clocks.window(widths)
        assert 0 <= low <= 192
        assert all(widths[context] == widths[min(max(context, low), low + 63)] for context in range(256))
        widths[(first + 64) % 256] = 9
        assert -1 == lane_clocks.window(widths)


@dtypes
@wide_and_narrow
@pytest.mark.parametrize("sums_of", SUMS, ids=lambda f: f.__name__)
def test_sums_of_pieces_are_those_of_their_units(dtype: str, widths: Any, sums_of: Any) -> None:
    alphabet = ALPHABETS[dtype]
    units = random_units(alphabet, 37 * alphabet.piece)
    expected = widths[contexts_of(alphabet, units)].reshape(-1, alphabet.piece).sum(1)
    sums = np.full(40, 77, np.uint32)
    done = sums_of(
        units, alphabet.piece, 36, widths, vectors.planes(widths), lane_clocks.window(widths), sums, alphabet.shift,
        alphabet.mask, alphabet.piece,
    )  # fmt: skip
    assert 36 - done < 8
    assert expected[1 : 1 + done].tolist() == sums[:done].tolist()
    assert [77] * (40 - done) == sums[done:].tolist()


RUNNING: list[Any] = [lane_clocks.plain_running_sums]
if vectors.has_byte_permutes():
    RUNNING.append(lane_clocks.vector_running_sums)


@dtypes
@wide_and_narrow
@pytest.mark.parametrize("running_sums", RUNNING, ids=lambda f: f.__name__)
def test_running_sums_of_a_piece_are_those_of_its_units(dtype: str, widths: Any, running_sums: Any) -> None:
    alphabet = ALPHABETS[dtype]
    shift, mask, piece = alphabet.shift, alphabet.mask, alphabet.piece

    @numba.njit
    def within(units: Any, at: Any, widths: Any, tables: Any, low: Any, sums: Any, limit: Any) -> Any:
        return running_sums(units, at, widths, tables, low, sums, limit, shift, mask, piece)

    units = random_units(alphabet, 4 * piece - 1)
    for at in (0, piece, 3 * piece):  # the last one is short
        expected = np.cumsum(widths[contexts_of(alphabet, units[at : at + piece])]).tolist()
        for limit in (0, expected[0], expected[1], expected[1] - 1, expected[-1] - 1):
            sums = np.zeros(1 + piece, np.int32)
            found = within(units, at, widths, vectors.planes(widths), lane_clocks.window(widths), sums, limit)
            assert sum(total <= limit for total in expected) == found
            assert [0, *expected] == sums[: 1 + len(expected)].tolist()


@dtypes
@pytest.mark.parametrize("lanes", [1, 2, 16, 32])
@pytest.mark.parametrize("short", [0, 1, 1000])
def test_clocks_of_a_block_are_sums_along_its_lanes(dtype: str, lanes: int, short: int) -> None:
    alphabet = ALPHABETS[dtype]
    block = ROWS * lanes * alphabet.piece
    units = random_units(alphabet, 2 * block - min(short, block - 1))
    clocks = lane_clocks.clocks_for(lanes)
    sums = np.empty(ROWS * LANES, np.uint32)
    for start in (0, block):
        part = units[start : start + block]
        expected = reference.lane_clocks(
            part, lanes=lanes, piece=alphabet.piece, contexts=contexts_of(alphabet, part), widths=WIDTHS
        )
        lane_clocks.fill(
            clocks, units, start, lanes, WIDTHS, vectors.planes(WIDTHS), lane_clocks.window(WIDTHS), sums,
            alphabet.shift, alphabet.mask, alphabet.piece,
        )  # fmt: skip
        found = clocks[: lanes * STRIDE].reshape(lanes, STRIDE)
        rows = expected.shape[1]
        assert np.array_equal(expected, found[:, :rows])
        assert np.all(found[:, rows : ROWS + 1] == expected[:, -1:])
        assert np.all(found[:, ROWS + 1 :] == FAR)


@dtypes
@pytest.mark.parametrize("size", [1, 1023, 3000, 40_001])
def test_clocks_at_changes_are_those_of_a_walk_over_every_unit(dtype: str, size: int) -> None:
    alphabet = ALPHABETS[dtype]
    units = random_units(alphabet, size)
    positions = np.flatnonzero(np.random.default_rng(1).random(size) < 0.02).astype(np.uint32)
    for lane_bits in (0, 2, 5):
        lanes = 1 << lane_bits
        expected = reference.clocks(
            units, positions, lanes=lanes, piece=alphabet.piece, contexts=contexts_of(alphabet, units), widths=WIDTHS
        )
        clocks, tails = np.empty(positions.size, np.int64), np.empty(lanes, np.int64)
        fullest, horizons = clock_encoding.clocks(alphabet)(
            units, positions, WIDTHS, vectors.planes(WIDTHS), 16, lane_bits, clocks, tails,
            *clock_encoding.scratch(alphabet, lanes),
        )  # fmt: skip
        assert expected == (clocks.tolist(), tails.tolist())
        assert max(np.bincount(positions // alphabet.piece % lanes, minlength=lanes)) == fullest
        assert sum(clock >> 18 for clock in (*clocks.tolist(), *tails.tolist())) == horizons


@numba.njit
def _row_beyond(clocks: Any, lane: Any, row: Any, aim: Any) -> Any:
    return lane_clocks.row_beyond(clocks, lane, row, aim)


@numba.njit
def _bits(old: Any, new: Any, at: Any) -> Any:
    mask = vectors.differing(old, new, at)  # pyright: ignore[reportCallIssue]  # the compiler gives the first argument
    return mask, vectors.ones(mask), vectors.lowest(mask)


@numba.njit
def _shares(slot: Any, z: Any) -> Any:
    tick = target(slot, z)
    return tick, share(tick, z), share(tick + 1, z)


def test_the_row_of_an_aim_is_the_first_that_ends_beyond_it() -> None:
    clocks = np.full((2, STRIDE), FAR, np.int32)
    clocks[:, : ROWS + 1] = np.arange(ROWS + 1) // 3 * 10
    for row in (0, 1, 31, 32, 33, 63):
        for aim in (0, 9, 10, 105, 199, 200, 209, 210, 1 << 28):
            ends = clocks[1, row + 1 : ROWS + 1]
            expected = row + int(np.argmax(ends > aim)) if np.any(ends > aim) else ROWS
            assert expected == _row_beyond(clocks.reshape(-1), 1, row, aim)


@pytest.mark.parametrize("width", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_a_mask_of_what_differs_has_a_bit_for_each_unit(width: type[np.unsignedinteger]) -> None:
    old = np.arange(200).astype(width)
    for places in ([], [0], [63], [0, 1, 62, 63], list(range(64))):
        new = old.copy()
        new[[100 + place for place in places]] ^= width(1 << (8 * new.itemsize - 1))
        new[[99, 164]] ^= width(1)
        expected = sum(1 << place for place in places)
        assert (expected, len(places), min(places, default=64)) == _bits(old, new, 100)


@pytest.mark.parametrize("z", [16, 20])
def test_every_slot_lies_in_the_share_of_its_tick(z: int) -> None:
    zone = 1 << z
    edges = [zone * k + d for k in (1, 9, 13, 15, 16) for d in (-9, -2, -1, 0, 1, 7, 8)]
    for slot in (slot for slot in edges if zone <= slot < 16 * zone):
        tick, first, end = _shares(slot, z)
        assert 0 <= tick < 4 * zone
        assert first <= slot < end
    for missed in (0, 1, zone - 1):
        assert 4 * zone - 1 == _shares(missed, z)[0]
