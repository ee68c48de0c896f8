"""Every kernel gives the very bits of its plain twin: all unit widths, awkward sizes, contiguous and strided frames."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from syncline.kernels import digest, frames, gaps, reference
from syncline.wire.digest import Digest, seeds, term, total
from syncline.wire.tiling import Frame

Units = NDArray[np.unsignedinteger]

WIDTHS = (np.uint8, np.uint16, np.uint32, np.uint64)
SIZES = (1, 63, 257, 4099)
SEED = seeds("model.embed_tokens.weight")
widths = pytest.mark.parametrize("width", WIDTHS, ids=lambda w: w.__name__)

# One run; rows of whole words; rows that are no whole words; single units far apart; a start that no word aligns.
FRAMES = [
    *(Frame(3, 1, size, 0) for size in SIZES),
    Frame(64, 9, 128, 512),
    Frame(5, 13, 63, 257),
    Frame(1, 257, 1, 11),
    Frame(8, 4, 8, 1024),
]
geometries = pytest.mark.parametrize("frame", FRAMES, ids=lambda f: f"{f.runs}x{f.length}")


def random_units(width: type[np.unsignedinteger], size: int, *, seed: int = 0) -> Units:
    return np.frombuffer(np.random.default_rng(seed).bytes(size * np.dtype(width).itemsize), width).copy()


def tensor_for(frame: Frame, width: type[np.unsignedinteger]) -> Units:
    return random_units(width, -(-(frame.offset(frame.units - 1) + 9) // 8) * 8)


def changed_copy(flat: Units, share: float) -> Units:
    random = np.random.default_rng(7)
    flips = random_units(flat.dtype.type, flat.size, seed=8)
    return flat ^ np.where(random.random(flat.size) < share, flips, flat.dtype.type(0))


@widths
@geometries
def test_a_view_holds_the_units_of_the_frame(width: type[np.unsignedinteger], frame: Frame) -> None:
    flat = tensor_for(frame, width)
    assert np.array_equal(reference.view(flat, frame), frames.view(flat, frame))


@widths
@geometries
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_differences_are_those_of_the_reference(width: type[np.unsignedinteger], frame: Frame, share: float) -> None:
    old = tensor_for(frame, width)
    new = changed_copy(old, share)
    found = frames.difference(old, new, frame)
    for expected, part in zip(reference.difference(old, new, frame), found.parts, strict=True):
        assert expected.dtype == part.dtype
        assert np.array_equal(expected, part)


@widths
def test_differences_are_found_in_unaligned_and_read_only_memory(width: type[np.unsignedinteger]) -> None:
    size, step = 4099, np.dtype(width).itemsize
    raw = np.random.default_rng(1).bytes(2 * size * step + 2)
    old = np.frombuffer(raw, width, size, offset=1)
    new = np.frombuffer(raw, width, size, offset=1 + size * step)
    frame = Frame(1, 1, size - 2, 0)
    found = frames.difference(old, new, frame)
    assert np.array_equal(reference.difference(old, new, frame)[0], found.positions)
    assert np.array_equal(reference.difference(old, new, frame)[2], found.new)


@widths
@geometries
def test_take_scatter_and_matches_touch_what_the_reference_touches(
    width: type[np.unsignedinteger], frame: Frame
) -> None:
    flat = tensor_for(frame, width)
    positions = np.flatnonzero(np.random.default_rng(2).random(frame.units) < 0.4).astype(np.uint32)
    values = random_units(width, positions.size, seed=3)
    assert np.array_equal(reference.take(flat, frame, positions), frames.take(flat, frame, positions))
    expected, written = flat.copy(), flat.copy()
    reference.scatter(expected, frame, positions, values)
    frames.scatter(written, frame, positions, values)
    assert np.array_equal(expected, written)
    assert frames.matches(written, frame, positions, values)
    for spoiled in positions[:: max(1, positions.size // 5)]:
        other = written.copy()
        other[frame.offset(int(spoiled))] ^= width(1)
        assert not frames.matches(other, frame, positions, values)


def test_a_frame_or_position_outside_the_tensor_is_refused_before_anything_is_written() -> None:
    flat = np.zeros(100, np.uint16)
    positions, values = np.array([0, 9], np.uint32), np.array([1, 2], np.uint16)
    with pytest.raises(IndexError):
        frames.scatter(flat, Frame(95, 1, 10, 0), positions, values)
    with pytest.raises(IndexError):
        frames.scatter(flat, Frame(0, 3, 10, 46), positions, values)
    with pytest.raises(IndexError):
        frames.scatter(flat, Frame(0, 1, 9, 0), positions, values)
    with pytest.raises(IndexError):
        frames.scatter(flat, Frame(0, 1, 10, 0), positions, values[:1])
    with pytest.raises(IndexError):
        frames.matches(flat, Frame(0, 1, 10, 0), positions, values.astype(np.uint32))
    with pytest.raises(IndexError):
        frames.take(flat, Frame(0, 1, 9, 0), positions)
    with pytest.raises(IndexError):
        frames.view(flat, Frame(0, 11, 2, 10))
    with pytest.raises(IndexError):
        frames.difference(flat, flat[:96], Frame(0, 2, 8, 92))
    assert not flat.any()


@widths
@pytest.mark.parametrize("size", SIZES)
def test_the_digest_is_the_sum_of_every_term(width: type[np.unsignedinteger], size: int) -> None:
    flat = random_units(width, size)
    for start in (0, 12345):
        assert reference.digest_units(flat, SEED, start=start) == digest.digest_units(flat, SEED, start=start)


# Where the low half of the word position wraps: 2^32 words, which is unit 2^31 of eight bytes, and beyond 2^33.
@widths
@pytest.mark.parametrize("start", [(1 << 31) - 100, (1 << 32) - 100, (1 << 33) + 5, (1 << 52) + 77])
def test_the_digest_knows_positions_beyond_four_thousand_million(width: type[np.unsignedinteger], start: int) -> None:
    flat = random_units(width, 257)
    expected = reference.digest_units(flat, SEED, start=start)
    assert expected == digest.digest_units(flat, SEED, start=start)
    assert expected != digest.digest_units(flat, SEED, start=start & 0xFFFFFFFF) or start < 1 << 32


@widths
def test_digests_of_pieces_add_up(width: type[np.unsignedinteger]) -> None:
    flat = random_units(width, 4099)
    pieces = [digest.digest_units(flat[at : at + 1000], SEED, start=at) for at in range(0, flat.size, 1000)]
    total = Digest()
    for piece in pieces:
        total = total + piece
    assert digest.digest_units(flat, SEED) == total


@widths
@pytest.mark.parametrize("base", [0, (1 << 32) - 1000, (1 << 40) + 3])
@geometries
def test_the_digest_of_a_change_is_new_terms_minus_old(
    width: type[np.unsignedinteger], frame: Frame, base: int
) -> None:
    moved = Frame(base + frame.base, frame.runs, frame.length, frame.stride)
    positions = np.flatnonzero(np.random.default_rng(4).random(frame.units) < 0.5).astype(np.uint32)
    old, new = random_units(width, positions.size, seed=5), random_units(width, positions.size, seed=6)
    expected = reference.change_digest(moved, positions, old, new, SEED)
    assert expected == digest.change_digest(moved, positions, old, new, SEED)


@pytest.mark.parametrize("places", [[0], [254], [255], [256], [509, 510, 511], [0, 1, 1000, 70000], [(1 << 20) - 1]])
def test_gaps_are_those_of_the_reference_and_come_back(places: list[int]) -> None:
    positions = np.array(places, np.uint32)
    written = gaps.write_gaps(positions)
    assert np.array_equal(reference.write_gaps(positions), written)
    assert written.size <= gaps.max_bytes(positions.size, places[-1] + 1)
    back = gaps.read_gaps(written, changed=positions.size, units=places[-1] + 1)
    assert back is not None
    assert np.array_equal(positions, back)


@pytest.mark.parametrize(
    ("written", "changed", "units"),
    [
        ([9], 1, 9),
        ([0, 0], 1, 9),
        ([0], 2, 9),
        ([], 1, 9),
        ([255], 1, 999),
        ([0, 255], 1, 999),
        ([255] * 8 + [0], 1, 999),
    ],
)
def test_gaps_that_name_other_positions_are_refused(written: list[int], changed: int, units: int) -> None:
    assert gaps.read_gaps(np.array(written, np.uint8), changed=changed, units=units) is None


@widths
@geometries
@pytest.mark.parametrize("high", [0, (1 << 32) - 300, (1 << 35) - 7])
def test_a_frame_that_lies_elsewhere_sums_up_as_it_would_in_its_tensor(
    width: type[np.unsignedinteger], frame: Frame, high: int
) -> None:
    flat = tensor_for(frame, width)
    of_tensor = Frame(high + 5, frame.units, 1, 3) if frame.units % 2 else Frame(high, frame.units // 2, 2, 9)
    expected = total(
        term(SEED, of_tensor.offset(p), int(flat[frame.offset(p)]), flat.itemsize) for p in range(frame.units)
    )
    assert expected == digest.digest_frame(flat, frame, of_tensor, SEED)


def test_a_frame_of_other_units_or_beyond_its_store_is_not_summed_up() -> None:
    flat = random_units(np.uint16, 100)
    with pytest.raises(IndexError):
        digest.digest_frame(flat, Frame(1, 1, 100, 0), Frame(0, 1, 100, 0), SEED)
    with pytest.raises(IndexError):
        digest.digest_frame(flat, Frame(0, 1, 100, 0), Frame(0, 1, 99, 0), SEED)
