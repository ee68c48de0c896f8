"""The journal alone: what is sealed comes back, what is torn does not, and patching sets exactly the journaled bits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.checkpoint import Marker
from syncline.checkpoint.journal import Change, Intent, JournalWriter, SealedJournal
from syncline.checkpoint.patching import patch
from syncline.errors import FormatInvalid
from syncline.testing.chains import version_manifest
from syncline.testing.stored_runs import TILING
from syncline.wire.tiling import Frame, Tiling, grid

INTENT = Intent(
    ["a.safetensors", "b.safetensors"], 1, "0" * 32, Marker.of(version_manifest(2, 1), TILING), "marker.json"
)


def change(positions: Sequence[int], new: Sequence[int], *, dtype: str = "<u2", file: int = 0) -> Change:
    return Change(file, 40, Frame(8, 1, 100, 100), np.array(positions, np.uint32), np.array(new, dtype))


def sealed(path: Path, changes: Sequence[Change]) -> SealedJournal:
    with JournalWriter(path, INTENT) as journal:
        for item in changes:
            journal.add(item)
        journal.seal()
    opened = SealedJournal.open(path)
    assert opened is not None
    return opened


def plain(changes: Sequence[Change]) -> list[tuple[Any, ...]]:
    return [(c.file, c.offset, c.frame, c.positions.tolist(), c.new.dtype.itemsize, c.new.tolist()) for c in changes]


def test_what_is_sealed_comes_back(tmp_path: Path):
    changes = [
        change([1, 5, 99], [7, 8, 9]),
        change([3], [255], dtype="<u1", file=1),
        change([0], [1 << 63], dtype="<u8"),
    ]
    journal = sealed(tmp_path / "journal", changes)
    assert INTENT == journal.intent
    assert plain(changes) == plain(list(journal.changes()))


def test_a_journal_may_hold_nothing(tmp_path: Path):
    assert [] == list(sealed(tmp_path / "journal", []).changes())


def test_a_journal_that_is_left_before_its_seal_is_removed(tmp_path: Path):
    path = tmp_path / "journal"
    with pytest.raises(ZeroDivisionError), JournalWriter(path, INTENT) as journal:
        journal.add(change([1], [2]))
        raise ZeroDivisionError
    assert not path.exists()
    assert SealedJournal.open(path) is None


def test_a_journal_that_is_torn_anywhere_is_none(tmp_path: Path):
    path = tmp_path / "journal"
    sealed(path, [change([1, 5], [7, 8]), change([3], [255], dtype="<u1")])
    whole = path.read_bytes()
    for left in range(len(whole)):
        path.write_bytes(whole[:left])
        assert SealedJournal.open(path) is None
        path.write_bytes(whole[:left] + bytes(len(whole) - left))  # the size was written, the blocks were not
        assert left >= len(whole) - 4 or SealedJournal.open(path) is None


def test_a_sealed_journal_with_a_flipped_bit_is_refused_or_none(tmp_path: Path):
    path = tmp_path / "journal"
    changes = [change([1, 5], [7, 8]), change([3], [255], dtype="<u1")]
    sealed(path, changes)
    whole = path.read_bytes()
    refused = 0
    for at in range(len(whole) - 4):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            opened = SealedJournal.open(path)
            found = None if opened is None else plain(list(opened.changes()))
        except FormatInvalid as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert found in (None, plain(changes))  # the reserved word of a record is not looked at
    assert refused > len(whole) // 2


def test_a_journal_may_end_with_bytes_of_no_meaning_only_if_it_is_not_sealed(tmp_path: Path):
    path = tmp_path / "journal"
    sealed(path, [change([1], [2])])
    path.write_bytes(path.read_bytes() + b"\0")
    assert SealedJournal.open(path) is None


@given(data=st.data())
def test_patching_sets_exactly_the_journaled_bits(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("patch")
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3), label="shape")
    axis = data.draw(st.integers(0, len(shape) - 1), label="axis")
    unit = data.draw(st.sampled_from([1, 2, 4, 8]), label="unit bytes")
    offset = data.draw(st.integers(0, 9), label="offset")
    cut = grid(shape, axis, Tiling(16, 64, 4))
    kind = np.dtype(f"<u{unit}")
    random = np.random.default_rng(data.draw(st.integers(0, 999), label="seed"))
    old = random.integers(0, 256, cut.units * unit, np.uint8).view(kind)
    expected = old.copy()
    changes: list[Change] = []
    for index in range(cut.count):
        frame = cut.frame(index)
        positions = np.flatnonzero(random.random(frame.units) < 0.2).astype(np.uint32)
        new = random.integers(0, 256, positions.size * unit, np.uint8).view(kind)
        if positions.size:
            changes.append(Change(0, offset, frame, positions, new))
        for position, value in zip(positions.tolist(), new, strict=True):
            expected[frame.offset(position)] = value
    file = folder / "weights"
    file.write_bytes(b"#" * offset + old.tobytes() + b"#" * 5)
    journal = sealed(folder / "journal", changes)
    descriptor = os.open(file, os.O_RDWR)
    try:
        for _ in range(2):  # writing them twice is writing them once
            patch([descriptor], journal.changes())
            assert b"#" * offset + expected.tobytes() + b"#" * 5 == file.read_bytes()
    finally:
        os.close(descriptor)


def test_bands_of_columns_too_wide_for_a_stretch_are_patched_run_by_run(tmp_path: Path):
    rows, columns = 3, (1 << 20) + 16
    cut = grid([rows, columns], 1, Tiling(1 << 15, 1 << 20, 16))
    assert cut.frame(0).runs == rows and cut.frame(0).stride > 1 << 20
    expected = np.zeros(rows * columns, np.uint8)
    changes: list[Change] = []
    for index in (0, cut.count - 1):
        frame = cut.frame(index)
        positions = np.array([0, frame.length - 1, frame.length, frame.units - 1], np.uint32)
        changes.append(Change(0, 0, frame, positions, np.array([1, 2, 3, 4], np.uint8)))
        for position, value in zip(positions.tolist(), (1, 2, 3, 4), strict=True):
            expected[frame.offset(position)] = value
    file = tmp_path / "weights"
    file.write_bytes(bytes(rows * columns))
    descriptor = os.open(file, os.O_RDWR)
    try:
        patch([descriptor], changes)
    finally:
        os.close(descriptor)
    assert expected.tobytes() == file.read_bytes()
