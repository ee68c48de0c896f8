"""Decoding on the device gives what the reference and the CPU's codec give, and nothing is written but the frame's own slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.table import ContextTable
from syncline.kernels.clock import COUNT, DONE, NO_MOVE, RANGE
from syncline.kernels.gpu import reference_decode
from syncline.kernels.gpu.batch import CodedFrames, FrameBatch, Staged, Walk
from syncline.kernels.gpu.decode import decode
from syncline.kernels.reference import offsets
from syncline.testing.device_frames import CANARY, DeviceCase, case_of, device_case
from syncline.wire.tiling import Frame

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = ("BF16", "F16", "F32", "F8_E4M3", "F4", "U8", "I16", "U32")


def wanted(case: DeviceCase, frame: Frame) -> list[tuple[int, int, int]]:
    places = offsets(frame, np.arange(frame.units, dtype=np.uint32))
    old, new = case.old[places], case.new[places]
    return [(int(p), int(old[p]), int(new[p])) for p in np.flatnonzero(old != new)]


def emptied(staged: Staged) -> Staged:
    parts = (torch.full_like(part, CANARY) for part in (staged.positions, staged.old, staged.new))
    return Staged(staged.firsts, staged.changed, *parts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("whole_pieces", [True, False])
def test_a_frame_decodes_to_its_changes(dtype: str, whole_pieces: bool) -> None:
    units = 512 if whole_pieces else 391
    frame = Frame(0, 1, units, units)
    case = device_case(dtype, [frame], share=0.03, lane_shift=4, seed=len(dtype), device=DEVICE)
    assert (Walk.FLAT if whole_pieces else Walk.ANY) == case.batch.walk
    assert [DONE] == decode(case.batch, case.coded, case.staged).tolist()
    assert wanted(case, frame) == case.changes(0)
    assert case.gaps_untouched()
    assert np.array_equal(case.old, case.live)


@pytest.mark.parametrize(("dtype", "length"), [("BF16", 64), ("F4", 64), ("F32", 12), ("BF16", 45)])
def test_rows_that_lie_apart_are_decoded_in_place(dtype: str, length: int) -> None:
    frames = [Frame(64 * k, 5, length, 192) for k in range(3)]
    case = device_case(dtype, frames, share=0.05, lane_shift=5, seed=length, device=DEVICE)
    assert (Walk.ANY if length == 45 else Walk.ROWS) == case.batch.walk
    assert [DONE] * 3 == decode(case.batch, case.coded, case.staged).tolist()
    assert [wanted(case, frame) for frame in frames] == [case.changes(k) for k in range(3)]
    assert case.gaps_untouched()


@pytest.mark.parametrize("lanes", [1, 2, 8, 32])
def test_frames_share_a_program_whatever_their_sizes(lanes: int) -> None:
    small, large = 16 * lanes, 24 * lanes + 7
    frames = [Frame(0, 1, small, small), Frame(small, 1, large, large), Frame(small + large, 1, large, large)]
    case = device_case("BF16", frames, share=0.04, lane_shift=4, seed=lanes, device=DEVICE)
    assert lanes == case.coded.lanes
    assert [DONE] * 3 == decode(case.batch, case.coded, case.staged).tolist()
    assert [wanted(case, frame) for frame in frames] == [case.changes(k) for k in range(3)]


@settings(max_examples=8)
@given(
    dtype=st.sampled_from(DTYPES),
    units=st.integers(1, 200),
    runs=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    shift=st.integers(2, 8),
    seed=st.integers(0, 1 << 30),
)
def test_kernel_and_reference_agree(dtype: str, units: int, runs: int, share: float, shift: int, seed: int) -> None:
    length = -(-units // runs)
    share = min(share, 16 / (length * runs))  # the interpreter pays for events
    frame = Frame(seed % 5, runs, length, length + seed % 7)
    case = device_case(dtype, [frame], share=share, lane_shift=shift, seed=seed, device=DEVICE)
    assert [DONE] == decode(case.batch, case.coded, case.staged).tolist()
    expected = replace(case, staged=emptied(case.staged))
    assert [DONE] == reference_decode.decode(expected.batch, expected.coded, expected.staged).tolist()
    assert expected.changes(0) == case.changes(0) == wanted(case, frame)
    assert case.gaps_untouched()


def damaged(case: DeviceCase, how: str) -> DeviceCase:
    coded, staged = case.coded, case.staged
    if how == "random words":
        generator = torch.Generator().manual_seed(7)
        noise = torch.randint(0, 256, coded.payload.shape, dtype=torch.uint8, generator=generator)
        return replace(case, coded=replace(coded, payload=noise.to(coded.payload.device)))
    if how == "zeros":
        return replace(case, coded=replace(coded, payload=torch.zeros_like(coded.payload)))
    if how == "a word short":
        return replace(case, coded=replace(coded, words=(coded.words - 1).clamp_min(0)))
    if how == "a word more":
        behind = torch.full((2,), CANARY, dtype=torch.uint8, device=coded.payload.device)
        return replace(case, coded=replace(coded, words=coded.words + 1, payload=torch.cat([coded.payload, behind])))
    if how == "no words":
        return replace(case, coded=replace(coded, words=torch.zeros_like(coded.words)))
    if how == "lanes swapped":
        lanes = (coded.starts.flip(0).contiguous(), coded.words.flip(0).contiguous())
        return replace(case, coded=replace(coded, starts=lanes[0], words=lanes[1]))
    if how == "wrong base":
        # A wrong context; one that only hides in the value is for the digest to find.
        case.batch.anchor.copy_(case.batch.anchor ^ (1 << coded.alphabet.shift | 1))
        return replace(case, old=case.live.copy())
    changed = staged.changed + (1 if how == "a change more" else -1)
    return replace(case, coded=replace(coded, changed=changed), staged=replace(staged, changed=changed))


def telling_case(dtype: str, frames: Sequence[Frame], *, lane_shift: int, seed: int, device: str) -> DeviceCase:
    """Of two contexts one stands still, so that the table must tell them apart: it names only those that pay for it."""
    alphabet, random = ALPHABETS[dtype], np.random.default_rng(seed)
    size = sum(frame.units for frame in frames)
    moving = random.random(size) < 0.85  # most, so that changes run past the end where the two are taken for each other
    low = random.integers(0, 1 << alphabet.shift, size)
    old = ((0x70 + moving) << alphabet.shift | low).astype(f"u{alphabet.bits // 8}")
    moved = moving & (random.random(size) < 0.3)
    for frame in frames:
        moved[frame.offset(0) + int(np.flatnonzero(moving[frame.offset(0) :])[0])] = True
    return case_of(
        dtype, frames, old, old ^ (moved * 4).astype(old.dtype), lane_shift=lane_shift, seed=seed, device=device
    )


@pytest.mark.parametrize("dtype", ["BF16", "F4", "F32"])
@pytest.mark.parametrize(
    "how",
    [
        "random words",
        "zeros",
        "a word short",
        "a word more",
        "no words",
        "lanes swapped",
        "wrong base",
        "a change more",
        "a change less",
    ],
)
def test_hostile_frames_end_with_a_fault_and_touch_nothing_else(dtype: str, how: str) -> None:
    units = 160 if dtype == "BF16" else 157
    frames = [Frame(k * units, 1, units, units) for k in range(2)]
    make = telling_case if how == "wrong base" else partial(device_case, share=0.04)
    case = damaged(make(dtype, frames, lane_shift=6, seed=3, device=DEVICE), how)
    status = decode(case.batch, case.coded, case.staged)
    expected = reference_decode.decode(case.batch, case.coded, emptied(case.staged))
    assert expected.tolist() == status.tolist()
    assert DONE not in status.tolist()
    if how.startswith("a change"):
        assert [COUNT] * 2 == status.tolist()
    assert case.gaps_untouched()
    assert np.array_equal(case.old, case.live)


def one_list(symbols: list[tuple[int, int]], *, width: int) -> ContextTable:
    return ContextTable(16, (width,) * 256, (tuple(symbols),), (0,) * 256)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F32"])
def test_an_escape_that_changes_nothing_is_a_fault(dtype: str) -> None:
    old = np.full(40, 0x20, np.dtype(f"u{ALPHABETS[dtype].bits // 8}"))
    new = old.copy()
    new[17] ^= 1
    table = one_list([(0, 4096)], width=1000)
    case = case_of(dtype, [Frame(0, 1, 40, 40)], old, new, lane_shift=9, table=table, device=DEVICE)
    assert [DONE] == decode(case.batch, case.coded, case.staged).tolist()
    assert [(17, 0x20, 0x21)] == case.changes(0)
    case.batch.anchor[17] = 0x21
    assert [NO_MOVE] == decode(case.batch, case.coded, case.staged).tolist()
    assert [NO_MOVE] == reference_decode.decode(case.batch, case.coded, emptied(case.staged)).tolist()


@pytest.mark.parametrize(
    ("dtype", "old", "step", "edge"),
    [
        ("BF16", 0x7FF0, 1, 0x7FFF),
        ("BF16", 0xFFF0, 1, 0xFFFF),
        ("F16", 0x7FF0, 9, 0x7FFB),
        ("F32", 0x7FFF_0000, 40, 0x7FFF_FFF0),
        ("F32", 0xFFFF_0000, 1, 0xFFFF_FFFF),
        ("U16", 5, -1, 0),
        ("I16", 5, 1, 0xFFFF),
        ("U32", 70000, -65536, 3),
        ("I32", 5, 1, 0xFFFF_FFFF),
    ],
)
def test_a_step_out_of_its_range_is_a_fault(dtype: str, old: int, step: int, edge: int) -> None:
    units = np.full(24, old, np.dtype(f"u{ALPHABETS[dtype].bits // 8}"))
    new = units.copy()
    new[11] = old + step
    table = one_list([(1, 1000), (2, 1000), (17, 1000), (19, 1000), (29, 90), (0, 6)], width=1000)
    case = case_of(dtype, [Frame(0, 1, 24, 24)], units, new, lane_shift=9, table=table, device=DEVICE)
    assert [DONE] == decode(case.batch, case.coded, case.staged).tolist()
    assert [(11, old, old + step)] == case.changes(0)
    case.batch.anchor[11] = edge - (1 << ALPHABETS[dtype].bits) * (edge >> (ALPHABETS[dtype].bits - 1))
    assert [RANGE] == decode(case.batch, case.coded, case.staged).tolist()
    assert [RANGE] == reference_decode.decode(case.batch, case.coded, emptied(case.staged)).tolist()


@pytest.mark.parametrize("dtype", ["BF16", "F4", "F32"])
def test_what_lies_behind_a_frame_adds_nothing_to_its_clock(dtype: str) -> None:
    old = np.zeros(61, np.dtype(f"u{ALPHABETS[dtype].bits // 8}"))
    new = old.copy()
    new[[3, 29, 60]] = 1
    table = one_list([(1, 4095), (0, 1)], width=20000)
    case = case_of(dtype, [Frame(0, 1, 61, 61)], old, new, lane_shift=4, table=table, device=DEVICE)
    assert [DONE] == decode(case.batch, case.coded, case.staged).tolist()
    assert [(3, 0, 1), (29, 0, 1), (60, 0, 1)] == case.changes(0)


def test_units_wider_than_what_is_left_of_the_horizon_are_coded_too() -> None:
    generator = np.random.default_rng(11)
    old = generator.integers(1, 4, 48).astype(np.uint8)
    new = np.where(generator.random(48) < 0.3, old ^ 8, old)
    widths = tuple((0, 100_000, 200_000, 262_144)[context % 4] for context in range(256))
    table = ContextTable(16, widths, (((0, 4096),),), (0,) * 256)
    frame = Frame(0, 1, 48, 48)
    case = case_of("U8", [frame], old, new, lane_shift=9, table=table, device=DEVICE)
    assert [DONE] == decode(case.batch, case.coded, case.staged).tolist()
    assert wanted(case, frame) == case.changes(0)


@pytest.mark.parametrize("dtype", ["U8", "BF16"])
def test_random_words_name_no_position_outside_their_frame(dtype: str) -> None:
    units = 61
    old = np.ones(8 * units, np.dtype(f"u{ALPHABETS[dtype].bits // 8}"))
    frames = [Frame(k * units, 1, units, units) for k in range(8)]
    table = one_list([(1, 2000), (2, 2096)], width=30_000)
    case = case_of(dtype, frames, old, old + 1, lane_shift=4, table=table, device=DEVICE)
    case = damaged(case, "random words")
    status = decode(case.batch, case.coded, case.staged)
    assert reference_decode.decode(case.batch, case.coded, emptied(case.staged)).tolist() == status.tolist()
    written = {position for k in range(8) for position, _, _ in case.changes(k)} - {CANARY}
    assert written
    assert written <= set(range(units))


def test_batches_that_do_not_fit_are_refused() -> None:
    tensor = torch.zeros(64, dtype=torch.int16)
    with pytest.raises(ValueError, match="does not fit"):
        FrameBatch.of([tensor], [(0, Frame(8, 1, 64, 64))])
    with pytest.raises(ValueError, match="not contiguous"):
        FrameBatch.of([tensor.view(8, 8).T], [(0, Frame(0, 1, 8, 8))])
    with pytest.raises(ValueError, match="cannot be reached"):
        FrameBatch.of([tensor, tensor.view(torch.uint8)], [(1, Frame(0, 1, 8, 8))])
    case = device_case("BF16", [Frame(0, 1, 64, 64)], share=0.1, lane_shift=5, seed=1)
    coded: CodedFrames = case.coded
    coded.check(case.batch)
    with pytest.raises(ValueError, match="ends at byte"):
        replace(coded, words=coded.words + coded.payload.numel()).check(case.batch)
    with pytest.raises(ValueError, match="before the payload"):
        replace(coded, starts=coded.starts - coded.payload.numel()).check(case.batch)
