"""`log`, `show` and `diff`: what a run holds, from its manifests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from syncline.store.local import LocalStore
from syncline.wire.records import ConsumerRecord
from syncline_cli.output import Output
from syncline_distributor.publisher import Publisher

Call = Callable[..., Any]


def heartbeat(run: Any, node: str, **changes: Any) -> ConsumerRecord:
    record = ConsumerRecord(
        lineage=run.reader.run_record().lineage,
        cluster="local",
        namespace="default",
        pool="pool",
        node=node,
        ttl_ms=60_000,
        applied=3,
        applied_digest=run.reader.manifest(3).digest,
        proven=True,
        target=3,
        pinned=None,
        boot=None,
        lag_ms=None,
        phase="serving",
        apply_path="stage",
        error=None,
        leaving=False,
    ).model_copy(update=changes)
    run.store.put(run.reader.keys.consumer("local", "default", "pool", node), record.encode())
    return record


def test_log_lists_versions_newest_first_with_what_they_cost(syncline: Call, run: Any) -> None:
    entries = syncline("log", *run.options, "--json").document
    assert [5, 4, 3, 2, 1] == [e["version"] for e in entries]
    assert ["fork", "delta", "delta", "delta", "anchor-only"] == [e["kind"] for e in entries]
    assert [2, 3, 2, 1, None] == [e["parent"] for e in entries]
    assert [12, 13, 12, 11, 10] == [e["step"] for e in entries]
    assert [False, False, True, False, True] == [e["anchor"] for e in entries]
    assert [15] * 4 == [e["changed_units"] for e in entries[:4]]
    whole = (64 * 48 + 40 * 64 + 33) * 2
    assert whole == entries[4]["payload_bytes"]
    assert all(0 < e["payload_bytes"] < whole / 10 and e["bits_per_change"] > 0 for e in entries[:4])


def test_log_as_a_table_names_kind_anchor_and_veto(syncline: Call, run: Any) -> None:
    assert 0 == syncline("mark-bad", 4, *run.options).code
    ended = syncline("log", *run.options)
    lines = ended.out.splitlines()
    assert "" == ended.err
    assert ["version", "parent", "step", "kind"] == lines[0].split()[:4]
    assert ["5", "2", "12", "fork"] == lines[1].split()[:4]
    assert ["4", "3", "13", "delta", "BAD"] == lines[2].split()[:5]
    assert ["3", "2", "12", "delta", "+anchor"] == lines[3].split()[:5]
    assert ["1", "-", "10", "anchor-only"] == lines[5].split()[:4]


def test_log_says_who_serves_a_version(syncline: Call, run: Any) -> None:
    heartbeat(run, "node-a")
    heartbeat(run, "node-b", proven=False)
    heartbeat(run, "node-c", ttl_ms=0)
    heartbeat(run, "gone", leaving=True)
    heartbeat(run, "of-another-training", lineage="ab" * 16)
    entries = {e["version"]: e["served_by"] for e in syncline("log", *run.options, "--json").document}
    assert ["pool/node-a", "pool/node-b (unproven)", "pool/node-c (silent)"] == entries[3]
    assert [] == entries[5]


def test_a_heartbeat_that_is_garbage_is_named_and_does_not_hide_the_log(syncline: Call, run: Any) -> None:
    key = run.reader.keys.consumer("local", "default", "pool", "odd")
    run.store.put(key, b"not a record")
    ended = syncline("log", *run.options, "--json")
    assert (0, 5) == (ended.code, len(ended.document))
    assert key in ended.err


def test_a_manifest_that_is_garbage_is_named_and_does_not_hide_the_others(syncline: Call, run: Any) -> None:
    run.file(run.reader.keys.version(2)).write_bytes(b"{")
    ended = syncline("log", *run.options, "--json")
    kinds = {e["version"]: e["kind"] for e in ended.document}
    assert {5: "fork", 4: "delta", 3: "delta", 2: "unreadable", 1: "anchor-only"} == kinds
    assert "version 2 cannot be read" in ended.err
    assert "unreadable" in syncline("log", *run.options).out


def test_log_reads_no_more_manifests_than_it_shows(syncline: Call, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    get = LocalStore.get

    def counting(store: LocalStore, key: str, **more: Any) -> Any:
        read.append(key)
        return get(store, key, **more)

    monkeypatch.setattr(LocalStore, "get", counting)
    assert [5, 4] == [e["version"] for e in syncline("log", *run.options, "-n", 2, "--json").document]
    versions = {key for key in read if "/versions/" in key}
    # Files without an anchor manifest lie at 1: only its own manifest says that it is anchor-only.
    assert {run.reader.keys.version(v) for v in (5, 4, 1)} == versions


def test_log_goes_on_below_a_hole(syncline: Call, run: Any) -> None:
    for version in (2, 3, 4):
        run.store.delete(run.reader.keys.version(version))
    assert [5, 1] == [e["version"] for e in syncline("log", *run.options, "-n", "2", "--json").document]


def test_a_run_without_versions_says_so(syncline: Call, tmp_path: Path) -> None:
    publisher = Publisher(LocalStore(tmp_path / "store"), "empty")
    publisher.open()
    publisher.close()
    options = ("--store", tmp_path / "store", "--run", "empty")
    for command in (["log"], ["materialize", tmp_path / "out"], ["verify", "store"], ["show", 1]):
        ended = syncline(*command, *options)
        assert (8, "") == (ended.code, ended.out)
        assert "a version of empty/main does not exist; publish one with `syncline publish`" in ended.err


def test_a_view_that_does_not_exist_is_told_with_those_that_do(syncline: Call, run: Any, tmp_path: Path) -> None:
    shutil.copytree(run.folder / "demo" / "main", run.folder / "demo" / "main-2")
    run.store.put("demo/typo/clock", b"syncline")
    told = "view typo of run demo does not exist; check --view; the run has main, main-2\n"
    for command in (["log"], ["materialize", tmp_path / "out"], ["verify", "store"], ["show", 1], ["diff", 1, 2]):
        ended = syncline(*command, *run.options, "--view", "typo")
        assert (8, "") == (ended.code, ended.out)
        assert ended.err.endswith(told)
    assert syncline("gc", *run.options, "--view", "typ").code == 8


def test_show_tells_everything_about_a_version(syncline: Call, run: Any) -> None:
    manifest = run.reader.manifest(3)
    document = syncline("show", 3, *run.options, "--json").document
    assert (manifest.digest, manifest.identity(), 3) == (document["digest"], document["identity"], document["version"])
    assert (None, 15) == (document["marked_bad"], document["summary"]["changed_units"])
    out = syncline("show", 3, *run.options).out
    assert manifest.digest in out
    assert "note=[bold]plain[/bold]" in out
    assert "marked bad" not in out
    (codecs,) = [line for line in out.splitlines() if line.startswith("codecs")]
    used = manifest.statistics.codecs.items()
    assert ", ".join(f"{name} {changes} changes" for name, changes in used) == codecs.removeprefix("codecs").strip()


def test_show_lists_tensors_and_what_the_delta_holds_of_each(syncline: Call, run: Any) -> None:
    listed = syncline("show", 2, *run.options, "--tensors", "--json").document["tensor_list"]
    assert [("embed.weight", "BF16", [64, 48]), ("layers.0.o_proj.weight", "BF16", [40, 64])] == [
        (t["name"], t["dtype"], t["shape"]) for t in listed[:2]
    ]
    assert [5, 5, 5] == [t["changed_units"] for t in listed]
    held = run.chunk_of(2).stat().st_size
    assert 0 < sum(t["delta_bytes"] for t in listed) < held
    assert set(run.reader.manifest(2).statistics.codecs) == {c for t in listed for c in t["codecs"]}
    lines = syncline("show", 2, *run.options, "--tensors").out.splitlines()
    assert ["tensor", "dtype", "shape", "changed", "delta", "codecs", "also", "named"] == lines[-4].split()
    assert ["embed.weight", "BF16", "64x48", "5"] == lines[-3].split()[:4]
    whole = syncline("show", 1, *run.options, "--tensors").out.splitlines()
    assert ["embed.weight", "BF16", "64x48", "-", "-", "-"] == whole[-3].split()
    assert "tensor_list" not in syncline("show", 2, *run.options, "--json").document


def test_tied_names_are_shown_with_the_tensor_that_they_share(syncline: Call, tmp_path: Path, trainer: Any) -> None:
    trainer.weights = {"model.embed_tokens.weight": trainer.weights["embed.weight"], **trainer.weights}
    trainer.weights["lm_head.weight"] = trainer.weights["model.embed_tokens.weight"]
    folder = trainer.write()
    (folder / "config.json").write_text('{"tie_word_embeddings": true}')
    options = ("--store", tmp_path / "store", "--run", "tied")
    assert 0 == syncline("publish", folder, *options).code
    (row,) = [r for r in syncline("show", 1, *options, "--tensors").out.splitlines() if "lm_head" in r]
    assert ["model.embed_tokens.weight", "lm_head.weight"] == [row.split()[0], row.split()[-1]]
    made = syncline("materialize", tmp_path / "out", *options)
    assert "lm_head.weight is tied to model.embed_tokens.weight: written once, under that name\n" in made.out
    document = syncline("materialize", tmp_path / "out", *options, "--json").document
    assert {"model.embed_tokens.weight": ["lm_head.weight"]} == document["tied"]


def test_figures_for_people_have_few_digits_and_those_for_machines_all(syncline: Call, run: Any) -> None:
    exact = syncline("show", 2, *run.options, "--json").document["summary"]
    lines = syncline("show", 2, *run.options).out.splitlines()
    rows = dict(line.rstrip().split(maxsplit=1) for line in lines)
    assert f"{exact['bits_per_change']:.2f}" == rows["bits_per_change"]
    assert f"{100 * exact['changed_ratio']:.3g} %" == rows["changed_ratio"]
    assert len(str(exact["changed_ratio"])) > 8


def test_show_says_why_a_version_is_marked_bad(syncline: Call, run: Any) -> None:
    syncline("mark-bad", 3, *run.options, "--reason", "reward\x1b[2J fell")
    assert "reward\x1b[2J fell" == syncline("show", 3, *run.options, "--json").document["marked_bad"]
    out = syncline("show", 3, *run.options).out
    assert "reward�[2J fell" in out
    assert "\x1b" not in out


def test_diff_names_what_changed_between_two_versions(syncline: Call, run: Any) -> None:
    document = syncline("diff", 1, 2, *run.options, "--json").document
    assert sorted(["embed.weight", "layers.0.o_proj.weight", "norm.weight"]) == document["changed"]
    assert ([], [], 0) == (document["appeared"], document["disappeared"], document["same"])
    assert "3 tensors differ, 0 are the same" in syncline("diff", 1, 2, *run.options).out
    same = syncline("diff", 2, 2, *run.options)
    assert (0, "0 tensors differ, 3 are the same\n") == (same.code, same.out)


def test_diff_names_tensors_that_came_and_went(syncline: Call, run: Any, trainer: Any) -> None:
    trainer.weights["new.weight"] = trainer.weights.pop("norm.weight")
    assert 0 == syncline("publish", trainer.write(), *run.options).code
    head = syncline("log", *run.options, "-n", 1, "--json").document[0]["version"]
    document = syncline("diff", 5, head, *run.options, "--json").document
    assert (["new.weight"], ["norm.weight"]) == (document["appeared"], document["disappeared"])


def test_a_table_in_a_narrow_terminal_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(as_json=False)
    output.out = Console(width=30)
    output.table(["version", "kind", "served by"], [["12", "delta +anchor BAD", "pool/node-a, pool/node-b"]])
    text = capsys.readouterr().out
    assert "…" not in text
    assert all(part in text for part in ("12", "delta +anchor BAD", "pool/node-a,", "pool/node-b"))
