"""Bounded memory: mapped pages are let go and stay readable, deltas are taken some frames at a time, and a file is hashed
in whatever order its parts come."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import Buffer

from syncline.chain import ChainReader
from syncline.checkpoint import advancing, journal, let_go, materialize
from syncline.checkpoint import download as downloading
from syncline.clock import ManualClock
from syncline.delta import Delta
from syncline.store.memory import MemoryStore
from syncline.testing.stored_runs import TABLE, TILING, StoredRun

MAPPED_MIB = 32


def resident_file_mib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssFile")).split()[1]) // 1024


def test_a_view_that_is_let_go_takes_no_memory_and_reads_the_same(tmp_path: Path):
    units = np.random.default_rng(0).integers(0, 1 << 16, MAPPED_MIB << 19, dtype=np.uint16)
    units.tofile(tmp_path / "weights")
    with (tmp_path / "weights").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = np.frombuffer(mapped, np.uint8)[16:].view(np.uint16)
    assert np.array_equal(units[8:], view)
    before = resident_file_mib()
    let_go(view)
    assert MAPPED_MIB // 2 < before - resident_file_mib()
    assert np.array_equal(units[8:], view)


def test_other_memory_is_left_alone():
    let_go(np.arange(5))
    let_go(memoryview(b"abc"))


@pytest.mark.parametrize("staged_bytes", [1, 1000])
def test_a_tensor_is_advanced_some_frames_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staged_bytes: int):
    run = StoredRun(MemoryStore(ManualClock()))
    run.first()
    for _ in range(3):
        run.step()
    reader = ChainReader(run.store, "run")
    checkpoint = materialize(reader, 1, tmp_path / "checkpoint")
    monkeypatch.setattr(advancing, "STAGED_BYTES", staged_bytes)
    monkeypatch.setattr(journal, "LET_GO_BYTES", 1)
    staged: list[int] = []
    stage_tensor = advancing.stage_tensor
    monkeypatch.setattr(
        advancing, "stage_tensor", lambda *args, **more: (staged.append(args[2]), stage_tensor(*args, **more))[1]
    )
    manifests = [run.manifests[version] for version in (2, 3, 4)]
    deltas = [
        Delta.parse(TABLE, TILING.tiling, [(ref.blake3, reader.chunk(ref)) for ref in m.chunks]) for m in manifests
    ]
    passed: list[int] = []
    checkpoint.advance(manifests, deltas, passed=lambda: passed.append(1))
    checkpoint.verify(run.manifests[4])
    assert len({tensor for delta in deltas for tensor in delta.tensors}) == len(passed)
    assert len(passed) < len(staged)  # a tensor in more than one part


class ReversingStore(MemoryStore):
    """Holds the first ranges of weight files back until as many others have come as there are streams left."""

    def __init__(self, streams: int) -> None:
        super().__init__(ManualClock())
        self.others = threading.Semaphore(0)
        self.held = streams - 1

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        weights = key.endswith(".safetensors")
        if weights and offset == 0:
            for _ in range(self.held):
                assert self.others.acquire(timeout=20)
        super().get_range_into(key, offset, buffer)
        if weights and offset:
            self.others.release()


def test_a_file_is_verified_whose_parts_come_in_another_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = StoredRun(ReversingStore(streams=4))
    run.first()
    monkeypatch.setattr(downloading, "PART_BYTES", 500)
    monkeypatch.setattr(downloading, "SYNC_BYTES", 1500)
    checkpoint = materialize(ChainReader(run.store, "run"), 1, tmp_path / "checkpoint", streams=4)
    checkpoint.verify(run.manifests[1])
