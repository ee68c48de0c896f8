"""The committed store: today's writers still make it to the byte, and both readers still read it to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import zstandard
from blake3 import blake3

from syncline.chain import ChainReader, newest_allowed
from syncline.checkpoint import materialize
from syncline.clock import ManualClock
from syncline.store.local import LocalStore
from syncline.store.memory import MemoryStore
from syncline.wire.records import ConsumerRecord, HeadRecord, LeaseRecord

GOLDEN = Path(__file__).resolve().parent / "golden"
EXPECTED: dict[str, dict[str, dict[str, str]]] = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
VERSIONS = range(1, 10)
EVERY = [(run, int(version)) for run, versions in EXPECTED.items() for version in versions]


def committed() -> dict[str, bytes]:
    root = GOLDEN / "store"
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    """A copy: nothing may write beside the committed files."""
    copy = MemoryStore(ManualClock())
    for key, data in committed().items():
        copy.put(key, data)
    return copy


def hashes(path: Path) -> dict[str, str]:
    """BLAKE3 of every tensor in a safetensors file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    spans = {name: entry["data_offsets"] for name, entry in header.items()}
    return {name: blake3(data[start + low : start + high]).hexdigest() for name, (low, high) in spans.items()}


def test_today_s_writers_make_the_committed_bytes(scripts: Callable[[str], ModuleType]) -> None:
    maker = scripts("make_golden")
    made = maker.make()
    now, before = made.objects, committed()
    assert sorted(before) == sorted(now)
    differ = [key for key in before if before[key] != now[key]]
    assert [] == differ, f"zstd here is {zstandard.ZSTD_VERSION}; see make_golden.py for when these files may change"
    assert (GOLDEN / "expected.json").read_text(encoding="utf-8") == maker.expected_text(made)


@pytest.mark.parametrize(("run", "version"), EVERY)
def test_the_independent_reader_reads_every_version(
    run: str, version: int, reads: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    told = reads(GOLDEN / "store", run, "--version", str(version), "--by-word", out=out)
    assert version == told["version"]
    assert EXPECTED[run][str(version)] == hashes(out)
    assert (["z.lm_head"] if run == "golden" else None) == told["aliases"].get("z.embed")


def test_the_independent_reader_knows_every_object_of_the_store(
    reads: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    told = reads(GOLDEN / "store", "golden", "--audit", out=tmp_path / "out.safetensors")
    objects = {"anchor": 1, "anchor file": 12, "chunk": 9, "consumer": 1, "head": 1, "lease": 1, "skip": 1}
    assert objects | {"version": 9, "veto": 1} == told["objects"]
    assert 9 == told["version"]
    context = reads(GOLDEN / "store", "context", "--audit", out=tmp_path / "out.safetensors")
    assert {"anchor file": 2, "chunk": 3, "head": 1, "version": 3} == context["objects"]
    assert 2 + sum((*told["objects"].values(), *context["objects"].values())) == len(committed())


def test_the_skip_delta_and_the_deltas_that_it_spares_lead_to_the_same_bits(
    reads: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    short = reads(GOLDEN / "store", "golden", "--version", "5", out=one)
    long = reads(GOLDEN / "store", "golden", "--version", "5", "--no-skips", out=other)
    assert ["anchor 1", "skip delta 1 to 4", "delta 4 to 5"] == short["path"]
    assert ["anchor 1", "delta 1 to 2", "delta 2 to 3", "delta 3 to 4", "delta 4 to 5"] == long["path"]
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(("run", "version"), [each for each in EVERY if each != ("golden", 8)])
def test_the_library_reads_every_version(run: str, version: int, store: MemoryStore, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    materialize(ChainReader(store, run), version, folder)
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= hashes(path)
    assert EXPECTED[run][str(version)] == found


def test_the_committed_context_frames_hold_lanes_tables_of_one_and_of_many_tensors_and_escapes(
    scripts: Callable[[str], ModuleType],
) -> None:
    lane_shifts: set[int] = set()
    zones: set[int] = set()
    escapes = False
    for key, data in committed().items():
        if not (key.startswith("context/main/chunks/") and data.startswith(b"SLCH")):
            continue
        sharing: dict[int, set[int]] = {}
        for frame in scripts("reader_chunks").chunk(key, data):
            assert frame.coding is not None
            table = frame.coding.table
            lane_shifts.add(frame.coding.lane_shift)
            zones.add(table.zone)
            sharing.setdefault(id(table), set()).add(frame.tensor)
            escapes |= any(0 in values.symbols for values in table.lists)
        assert {1, 2} <= {len(tensors) for tensors in sharing.values()}, key
    assert {10, 15} == lane_shifts
    assert {18, 19, 20} == zones
    assert escapes


def test_the_library_reads_the_records_beside_the_chain(store: MemoryStore) -> None:
    reader = ChainReader(store, "golden")
    fork = reader.manifest(4)
    assert (3, 2) == (fork.base, fork.parent)
    assert {8: "reward collapsed"} == {version: veto.reason for version, veto in reader.vetoes().items()}
    assert 9 == newest_allowed(9, reader.vetoes())
    assert [1, 6, 7] == list(reader.anchors())
    assert {4: [1]} == dict(reader.skip_bases())
    assert [1, 1, 1, 1, 2, 2, 2, 2, 2] == [reader.manifest(version).epoch for version in VERSIONS]
    keys = committed()
    head, beat, lease = (
        next(k for k in keys if k.startswith(f"golden/main/{n}")) for n in ("head", "consumers", "leases")
    )
    assert (9, 2) == (HeadRecord.parse(keys[head], what=head).version, HeadRecord.parse(keys[head], what=head).epoch)
    assert (6, 5) == (
        ConsumerRecord.parse(keys[beat], what=beat).applied,
        ConsumerRecord.parse(keys[beat], what=beat).boot,
    )
    assert 4 == LeaseRecord.parse(keys[lease], what=lease).version


def test_a_local_store_on_the_committed_folder_lists_it() -> None:
    listed = [info.key for info in LocalStore(GOLDEN / "store").list_after("")]
    assert sorted(committed()) == listed
