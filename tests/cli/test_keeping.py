"""`publish`, `materialize`, `follow`, `mark-bad` and `gc`: what changes a run or keeps a folder on it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from syncline.checkpoint import OwnFiles
from syncline.clock import SystemClock
from syncline.store.local import LocalStore
from syncline.wire.records import LeaseRecord
from syncline_cli import follow as follow_module
from syncline_distributor.publisher import Publisher

Call = Callable[..., Any]


def bits_of(folder: Path) -> dict[str, bytes]:
    """Every tensor's bytes, read by the safetensors library rather than ours."""
    text = (folder / "model.safetensors").read_bytes()
    header = int.from_bytes(text[:8], "little")
    entries = json.loads(text[8 : 8 + header])
    body = text[8 + header :]
    return {name: body[slice(*entry["data_offsets"])] for name, entry in entries.items() if name != "__metadata__"}


# --- publish


def test_publish_makes_a_run_and_then_its_versions(syncline: Call, trainer: Any, tmp_path: Path) -> None:
    options = ("--store", tmp_path / "store", "--run", "new", "--state-dir", tmp_path / "state", "--json")
    first = syncline("publish", trainer.step(), *options, "--step", 1).document
    assert (1, "anchor-only", None, 1) == (first["version"], first["kind"], first["parent"], first["step"])
    second = syncline(
        "publish", trainer.step(), *options, "--step", 2, "--label", "by=hand", "--label", "a=b=c"
    ).document
    # Each call takes the writer's right by an empty version of a new epoch: that was version 2.
    assert (3, "delta", 2, 15) == (second["version"], second["kind"], second["parent"], second["changed_units"])
    shown = syncline("show", 3, *options[:4], "--json").document
    assert ({"by": "hand", "a": "b=c"}, 2) == (shown["labels"], shown["epoch"])
    assert second["digest"] == shown["digest"]


def test_publish_says_what_it_committed(syncline: Call, run: Any, trainer: Any) -> None:
    ended = syncline("publish", trainer.step(), *run.options)
    assert (0, "") == (ended.code, ended.err)
    assert ended.out.startswith("version 7  delta  ")
    assert f"digest {run.reader.manifest(7).digest}" in ended.out


def test_a_first_version_without_a_state_dir_is_whole_and_the_next_rebuilds_its_base(
    syncline: Call, trainer: Any, tmp_path: Path
) -> None:
    options = ("--store", tmp_path / "store", "--run", "new", "--json")
    assert "anchor-only" == syncline("publish", trainer.step(), *options).document["kind"]
    assert "delta" == syncline("publish", trainer.step(), *options).document["kind"]


def test_other_shapes_become_a_version_with_all_weights(syncline: Call, run: Any, trainer: Any) -> None:
    trainer.weights["norm.weight"] = trainer.weights["norm.weight"][:20]
    assert "anchor-only" == syncline("publish", trainer.write(), *run.options, "--json").document["kind"]


def test_a_fork_names_its_parent(syncline: Call, run: Any, trainer: Any) -> None:
    made = syncline("publish", trainer.step(), *run.options, "--parent", 3, "--json").document
    assert ("fork", 3, 6) == (made["kind"], made["parent"], made["base"])


def test_a_parent_that_does_not_exist_is_refused_before_anything_is_written(
    syncline: Call, run: Any, trainer: Any
) -> None:
    ended = syncline("publish", trainer.step(), *run.options, "--parent", 9)
    assert 8 == ended.code
    assert "version 9 of demo/main does not exist; the newest is 5" in ended.err
    assert 5 == run.reader.head().version


def test_a_folder_that_cannot_be_read_is_refused_before_anything_is_written(
    syncline: Call, run: Any, tmp_path: Path
) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        ended = syncline("publish", folder, *run.options)
        assert ended.code in (3, 8)
        assert str(folder) in ended.err
    assert 5 == run.reader.head().version


def test_non_finite_weights_are_published_or_refused_as_told(syncline: Call, run: Any, trainer: Any) -> None:
    trainer.weights["norm.weight"][4] = np.uint16(0x7FC0)
    folder = trainer.write()
    refused = syncline("publish", folder, *run.options, "--refuse-nonfinite", "--json")
    assert (8, "NonFiniteWeights") == (refused.code, refused.document["error"]["type"])
    assert 1 == syncline("publish", folder, *run.options, "--json").document["nonfinite"]


def test_a_label_without_a_value_is_a_wrong_command_line(syncline: Call, run: Any, trainer: Any) -> None:
    ended = syncline("publish", trainer.step(), *run.options, "--label", "alone")
    assert (2, "") == (ended.code, ended.out)
    assert "--label name=value" in ended.err


# --- materialize


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_materialize_writes_the_very_bits_of_a_version(syncline: Call, run: Any, tmp_path: Path, version: int) -> None:
    out = tmp_path / "out"
    document = syncline("materialize", out, *run.options, "--version", version, "--json").document
    assert (version, run.reader.manifest(version).digest) == (document["version"], document["digest"])
    assert bits_of(run.checkpoints[version]) == bits_of(out)
    with safe_open(out / "model.safetensors", "np") as opened:
        assert {"embed.weight", "layers.0.o_proj.weight", "norm.weight"} == set(opened.keys())


def test_materialize_takes_the_newest_version_that_is_not_marked_bad(syncline: Call, run: Any, tmp_path: Path) -> None:
    syncline("mark-bad", 5, *run.options)
    out = tmp_path / "out"
    ended = syncline("materialize", out, *run.options)
    assert (0, "") == (ended.code, ended.err)
    assert ended.out.startswith(f"{out}  version 4  11.3 kB  digest ")
    refused = syncline("materialize", out, *run.options, "--version", 5, "--json")
    assert (5, "VersionVetoed") == (refused.code, refused.document["error"]["type"])


def test_materialize_refuses_a_folder_of_somebody_elses_files(syncline: Call, run: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    ended = syncline("materialize", tmp_path, *run.options)
    assert 8 == ended.code
    assert "name an empty folder" in ended.err
    assert "mine" == (tmp_path / "notes.txt").read_text()


def test_a_path_that_is_a_file_is_refused_by_name(syncline: Call, run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = syncline("materialize", tmp_path / "file", *run.options)
    assert 8 == ended.code
    assert f"{tmp_path / 'file'}; check the path" in ended.err


def test_a_run_whose_only_way_to_a_version_is_broken_ends_with_5(syncline: Call, run: Any, tmp_path: Path) -> None:
    run.store.delete(run.reader.keys.version(2))
    run.store.delete(run.reader.keys.anchor(3))
    ended = syncline("materialize", tmp_path / "out", *run.options, "--version", 3, "--json")
    assert (5, "LinkMissing") == (ended.code, ended.document["error"]["type"])
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_chunk_that_is_damaged_is_never_used(syncline: Call, run: Any, tmp_path: Path) -> None:
    run.store.delete(run.reader.keys.anchor(3))
    chunk = run.chunk_of(2)
    damaged = bytearray(chunk.read_bytes())
    damaged[-1] ^= 1
    chunk.write_bytes(damaged)
    ended = syncline("materialize", tmp_path / "out", *run.options, "--version", 2)
    assert 4 == ended.code
    assert "no way from nothing applied to version 2: the delta from version 1 to 2 cannot be used: " in ended.err
    assert f"{chunk.name} does not hash to its name" in ended.err


def test_a_version_that_is_marked_bad_is_refused_with_its_reason(syncline: Call, run: Any, tmp_path: Path) -> None:
    for version in range(1, 6):
        syncline("mark-bad", version, *run.options, "--reason", f"reward {version} fell")
    refused = syncline("materialize", tmp_path / "out", *run.options, "--version", 4)
    assert 5 == refused.code
    assert "version 4 was marked bad (reward 4 fell); choose another target" in refused.err
    none_left = syncline("materialize", tmp_path / "out", *run.options)
    assert 5 == none_left.code
    assert "every version of demo/main was marked bad, the newest, 5, because: reward 5 fell; publish" in none_left.err


def test_a_collected_version_is_told_from_one_that_never_was(syncline: Call, run: Any, tmp_path: Path) -> None:
    for version in (1, 2):
        run.store.delete(run.reader.keys.version(version))
    for command in (["materialize", tmp_path / "out", "--version"], ["show"], ["diff", 5]):
        ended = syncline(*command, 1, *run.options)
        assert 5 == ended.code
        assert "version 1 of demo/main was collected by retention; versions 3 to 5 are left" in ended.err
        ended = syncline(*command, 77, *run.options)
        assert 8 == ended.code
        assert "version 77 of demo/main does not exist; the newest is 5" in ended.err


# --- follow


def test_follow_brings_a_folder_to_head_and_ends_where_it_is_told_to(syncline: Call, run: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    document = syncline("follow", out, *run.options, "--until", 5, "--json").document
    assert (5, 12, "fork") == (document["version"], document["step"], document["kind"])
    assert bits_of(run.checkpoints[5]) == bits_of(out)
    assert syncline("follow", out, *run.options, "--until", 3).out.startswith(f"{out}  version 5  step 12  ")


class Script(SystemClock):
    """A clock whose sleeps run what happens meanwhile, one thing a sleep, and end the command when all has happened."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self._acts = iter(acts)
        self.slept: list[float] = []
        self._ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._ahead += 60.0
        act = next(self._acts, None)
        if act is None:
            raise KeyboardInterrupt
        act()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
    def script(*acts: Callable[[], object]) -> Script:
        clock = Script(*acts)
        monkeypatch.setattr(follow_module, "SystemClock", lambda: clock)
        return clock

    return script


def nothing() -> None:
    """An idle poll."""


def test_follow_leaves_a_version_that_is_marked_bad_and_comes_back(
    syncline: Call, run: Any, tmp_path: Path, scripted: Callable[..., Script]
) -> None:
    veto = run.file(run.reader.keys.veto(5))
    assert 0 == syncline("mark-bad", 5, *run.options).code
    text = veto.read_bytes()
    veto.unlink()
    scripted(lambda: veto.write_bytes(text), nothing, veto.unlink)
    ended = syncline("follow", tmp_path / "out", *run.options, "--json")
    assert 130 == ended.code
    assert [5, 4, 5] == [json.loads(line)["version"] for line in ended.out.splitlines()]
    told = "version 5 was marked bad (marked bad by hand); holding version 4 until a better one comes"
    assert [told] == [line for line in ended.err.splitlines() if "version 5" in line]
    assert bits_of(run.checkpoints[5]) == bits_of(tmp_path / "out")


def test_follow_looks_for_what_is_left_below_a_head_that_is_marked_bad(
    syncline: Call, run: Any, tmp_path: Path, scripted: Callable[..., Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    syncline("mark-bad", 5, *run.options)
    run.store.delete(run.reader.keys.version(4))
    looked: list[str] = []
    get = LocalStore.get

    def counting(store: LocalStore, key: str, **more: Any) -> Any:
        looked.append(key)
        return get(store, key, **more)

    monkeypatch.setattr(LocalStore, "get", counting)
    scripted()
    ended = syncline("follow", tmp_path / "out", *run.options, "--json")
    assert 3 == ended.document["version"]
    assert run.reader.keys.version(4) not in looked


def test_follow_waits_for_the_first_version_and_survives_a_store_that_is_gone(
    syncline: Call, run: Any, tmp_path: Path, scripted: Callable[..., Script]
) -> None:
    folder, away = run.folder, tmp_path / "away"
    folder.rename(away)
    chunks = run.file(run.reader.keys.chunks.rstrip("/"))
    hidden = tmp_path / "hidden"

    def back_without_chunks() -> None:
        away.rename(folder)
        chunks.rename(hidden)

    clock = scripted(nothing, back_without_chunks, nothing, nothing, lambda: hidden.rename(chunks))
    ended = syncline("follow", tmp_path / "out", *run.options, "--until", 5, "--poll", 1, "--json")
    assert (0, 5) == (ended.code, ended.document["version"])
    told = [line for line in ended.err.splitlines() if line.startswith("waiting") or line.endswith("; trying again")]
    empty = "nothing was ever published there: the store is empty, or its address is wrong; check --store"
    assert f"waiting for the first version of demo/main; {empty}" == told[0]
    assert len(told) > 1 and len(set(told)) == len(told)
    assert [1, 1, 2, 4, 8] == clock.slept


def test_follow_of_a_view_that_does_not_exist_names_those_that_do(
    syncline: Call, run: Any, tmp_path: Path, scripted: Callable[..., Script]
) -> None:
    scripted(nothing)
    ended = syncline("follow", tmp_path / "out", *run.options, "--view", "typo")
    assert (130, "") == (ended.code, ended.out)
    assert 1 == ended.err.count("waiting for the first version of demo/typo; the run has main: check --view")


def test_follow_waits_for_a_later_version_after_one_of_a_fenced_writer(
    syncline: Call, run: Any, tmp_path: Path, trainer: Any, scripted: Callable[..., Script]
) -> None:
    lowered = run.reader.manifest(4).model_copy(update={"epoch": 9})
    run.store.put(run.reader.keys.version(4), lowered.encode())
    scripted(nothing)
    ended = syncline("follow", tmp_path / "out", *run.options)
    assert (130, "") == (ended.code, ended.out)
    assert "a fenced writer wrote it; wait for a later version or mark it bad; trying again" in ended.err


def test_follow_says_once_what_it_meets_at_every_try(
    syncline: Call, run: Any, tmp_path: Path, scripted: Callable[..., Script]
) -> None:
    table = run.file(run.reader.keys.chunk(run.reader.manifest(5).tensors.blake3))
    table.write_bytes(bytes(table.stat().st_size))
    scripted(nothing, nothing, nothing)
    ended = syncline("follow", tmp_path / "out", *run.options)
    lines = ended.err.splitlines()
    assert 130 == ended.code
    assert any(line.startswith("warning: avoided a step (step anchor, version 3") for line in lines)
    assert len(set(lines)) == len(lines)


def test_follow_ends_when_the_run_name_was_used_again(
    syncline: Call, run: Any, tmp_path: Path, trainer: Any, scripted: Callable[..., Script]
) -> None:
    def another_training() -> None:
        run.folder.rename(tmp_path / "old")
        syncline("publish", trainer.step(), *run.options)

    scripted(another_training, *[nothing] * 12)
    ended = syncline("follow", tmp_path / "out", *run.options)
    assert 5 == ended.code
    assert "the run name was reused" in ended.err


def test_follow_hears_of_a_version_from_the_distributor_before_its_next_poll(
    syncline: Call, run: Any, tmp_path: Path, trainer: Any
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-m", "syncline_distributor", "serve", *run.options, "--state-dir", tmp_path / "state", "--port", port]
    out = tmp_path / "out"

    def publish_once_five_is_held() -> None:
        while not OwnFiles(out).marker.exists():
            threading.Event().wait(0.05)
        publisher = Publisher(run.store, "demo")
        publisher.publish(trainer.step())
        publisher.close()

    publishing = threading.Thread(target=publish_once_five_is_held, daemon=True)
    with subprocess.Popen([sys.executable, *map(str, words)], stderr=subprocess.DEVNULL) as distributor:
        publishing.start()
        url = f"http://127.0.0.1:{port}"
        ended = syncline("follow", out, *run.options, "--poll", 3600, "--until", 6, "--distributor", url, "--json")
        distributor.terminate()
    publishing.join(30)
    versions = [json.loads(line)["version"] for line in ended.out.splitlines()]
    assert (0, 5, run.reader.head().version) == (ended.code, versions[0], versions[-1])


def test_follow_says_once_that_no_distributor_answers_and_goes_on(
    syncline: Call, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "VETOES_EVERY_S", 0.1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        later = threading.Timer(1.0, run.file(run.reader.keys.veto(5)).unlink)
        assert 0 == syncline("mark-bad", 5, *run.options).code
        later.start()
        ended = syncline("follow", tmp_path / "out", *run.options, "--until", 5, "--poll", 0.1, "--distributor", url)
    later.join()
    assert 0 == ended.code
    assert 1 == ended.err.count(f"no distributor answers at {url}; looking at the store by itself meanwhile")
    assert 2 == syncline("follow", tmp_path / "out", *run.options, "--distributor", "127.0.0.1:9402").code


# --- mark-bad


def test_a_mark_is_taken_back_by_undo(syncline: Call, run: Any) -> None:
    marked = syncline("mark-bad", 4, *run.options, "--reason", "reward fell", "--json")
    assert {"version": 4, "bad": True, "reason": "reward fell"} == marked.document
    assert "reward fell" == run.reader.vetoes()[4].reason
    undone = syncline("mark-bad", 4, *run.options, "--undo", "--json")
    assert {"version": 4, "bad": False, "reason": None} == undone.document
    assert {} == run.reader.vetoes()
    assert "version 4 was not marked bad\n" == syncline("mark-bad", 4, *run.options, "--undo").out


def test_marking_what_does_not_exist_is_refused(syncline: Call, run: Any) -> None:
    assert 8 == syncline("mark-bad", 9, *run.options).code
    assert 8 == syncline("mark-bad", 4, "--undo", "--store", run.folder, "--run", "typo").code


# --- gc


@pytest.fixture
def collectable(run: Any, syncline: Call, trainer: Any) -> Iterator[Any]:
    """The run with two more whole versions, so that retention needs none below them, and all of it an hour old."""
    for rows in (20, 10):
        trainer.weights["norm.weight"] = trainer.weights["norm.weight"][:rows]
        assert 0 == syncline("publish", trainer.write(), *run.options).code
    for file in run.folder.rglob("*"):
        if file.is_file():
            before = file.stat().st_mtime - 3600
            os.utime(file, (before, before))
    return run


def test_gc_shows_first_and_deletes_only_when_told(syncline: Call, collectable: Any) -> None:
    options = (*collectable.options, "--lease-period", 1, "--nobody-writes")
    versions = collectable.reader.versions()
    dry = syncline("gc", *options)
    assert 0 == dry.code
    assert "dry run: nothing was deleted; say --delete" in dry.out
    assert versions == collectable.reader.versions()
    document = syncline("gc", *options, "--json").document
    assert (0, collectable.reader.keys.version(1)) == (
        document["deleted"],
        next(o["key"] for o in document["unneeded"] if "/versions/" in o["key"]),
    )
    ended = syncline("gc", *options, "--delete", "--json")
    assert (0, len(document["unneeded"]), document["bytes"]) == (
        ended.code,
        ended.document["deleted"],
        ended.document["deleted_bytes"],
    )
    assert "waiting 1 s" in ended.err
    left = collectable.reader.versions()
    assert left == versions[-len(left) :] and len(left) < len(versions)
    assert 0 == syncline("verify", "store", *collectable.options, "--deep").code
    again = syncline("gc", *options)
    assert "0 objects, 0 B are needed by nobody" in again.out and "dry run" not in again.out


def test_gc_keeps_as_many_versions_as_asked(syncline: Call, collectable: Any) -> None:
    ended = syncline("gc", *collectable.options, "--lease-period", 1, "--keep-versions", 100, "--json")
    assert [] == [o["key"] for o in ended.document["unneeded"] if "/versions/" in o["key"]]


def test_gc_refuses_where_it_cannot_know_what_is_needed(syncline: Call, collectable: Any) -> None:
    collectable.file(collectable.reader.keys.version(2)).write_bytes(b"{")
    ended = syncline("gc", *collectable.options, "--lease-period", 1, "--delete", "--nobody-writes")
    assert 8 == ended.code
    assert "nothing can be collected in demo/main: version 2 cannot be read" in ended.err


def test_gc_does_not_delete_after_a_lease_period_that_a_writer_could_outlast(collectable: Any, syncline: Call) -> None:
    ended = syncline("gc", *collectable.options, "--lease-period", 1, "--delete")
    assert 2 == ended.code
    assert "--nobody-writes" in ended.err


def test_gc_says_why_no_version_is_to_be_deleted(syncline: Call, collectable: Any) -> None:
    options = (*collectable.options, "--lease-period", 1, "--nobody-writes")
    young = syncline("gc", *collectable.options, "--lease-period", 7200)
    assert "nobody needs version 1, but nothing younger than 2 h is deleted" in young.out.splitlines()
    many = syncline("gc", *options, "--keep-versions", 100, "--json").document
    assert "version 1 and all above it stay for the newest 100 (--keep-versions)" == many["why_versions_stay"]
    reader = collectable.reader
    lease = LeaseRecord(lineage=reader.run_record().lineage, version=2, ttl_ms=60_000, owner="copy")
    collectable.store.put(reader.keys.lease("copy"), lease.encode())
    held = syncline("gc", *options)
    assert "version 1 and all above it stay: leases/copy.json needs version 2" in held.out.splitlines()
    collectable.store.delete(reader.keys.lease("copy"))
    assert syncline("gc", *options, "--json").document["why_versions_stay"] is None


def test_gc_of_a_run_with_one_anchor_says_that_joiners_need_it(syncline: Call, trainer: Any, tmp_path: Path) -> None:
    options = ("--store", tmp_path / "store", "--run", "new")
    for _ in range(2):
        assert 0 == syncline("publish", trainer.step(), *options).code
    told = "version 1 and all above it stay for whoever joins, who starts from one of the newest 2 anchors: 1; "
    assert f"{told}`syncline-distributor serve` writes more" in syncline("gc", *options).out.splitlines()
