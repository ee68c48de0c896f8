"""`verify`: what is damaged, missing or different is found and named, and ends with 9."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web

from syncline.clock import ManualClock
from syncline.errors import StoreUnavailable
from syncline.metrics import Metrics
from syncline.store.local import LocalStore
from syncline.wire.records import VersionManifest
from syncline_agent.fetch import Source
from syncline_agent.policy import Target, encode_target
from syncline_agent.replica import Replica
from syncline_agent.server import make_app
from syncline_agent.settings import AgentSettings
from syncline_agent.testing.bits import stores_of
from syncline_cli import context

Call = Callable[..., Any]


def flip(file: Path, at: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def problems(syncline: Call, run: Any, *more: str) -> list[str]:
    """What `verify store` found, as `version: text`, after the exit code was checked."""
    ended = syncline("verify", "store", *run.options, "--json", *more)
    assert 9 == ended.code
    assert not ended.document["ok"]
    return [f"{p['version']}: {p['problem']}" for p in ended.document["problems"]]


# --- a store


@pytest.mark.parametrize("more", [(), ("--deep",)])
def test_a_whole_store_is_found_whole(syncline: Call, run: Any, more: tuple[str, ...]) -> None:
    document = syncline("verify", "store", *run.options, "--json", *more).document
    counts = {"head": 5, "versions": 5, "anchors": 2, "skips": 1, "deep": bool(more)}
    assert {"ok": True, "problems": []} | counts == {k: v for k, v in document.items() if k not in ("objects", "bytes")}
    out = syncline("verify", "store", *run.options, *more).out
    assert out.startswith("ok  checked 5 versions up to 5, 2 anchors, 1 skip delta: ")
    how = "anchors read whole and head rebuilt" if more else "anchors by their sizes; --deep reads them too"
    assert out.endswith(f" read ({how})\n")


def test_what_was_read_is_counted_by_objects_and_bytes(syncline: Call, run: Any) -> None:
    keys, reader = run.reader.keys, run.reader
    chunks = {c.blake3 for v in range(1, 6) for c in reader.manifest(v).chunks}
    chunks |= {c.blake3 for c in reader.skip(5, 3).chunks} | {reader.manifest(1).tensors.blake3}
    read = {keys.chunk(c) for c in chunks} | {keys.version(v) for v in range(1, 6)}
    read |= {keys.anchor(3), keys.skip(5, 3)}
    document = syncline("verify", "store", *run.options, "--json").document
    assert (len(read), sum(run.file(k).stat().st_size for k in read)) == (document["objects"], document["bytes"])
    files = {
        reader.anchor_file(anchor, f.name) for v in (1, 3) for anchor in [reader.anchor(v)] for f in anchor.body.files
    }
    read |= files
    document = syncline("verify", "store", *run.options, "--json", "--deep").document
    assert (len(read), sum(run.file(k).stat().st_size for k in read)) == (document["objects"], document["bytes"])


def test_a_flipped_byte_in_a_chunk_is_found(syncline: Call, run: Any) -> None:
    chunk = run.chunk_of(2)
    flip(chunk)
    (found,) = problems(syncline, run)
    assert found.startswith("2: ") and chunk.name in found and "does not hash" in found
    out = syncline("verify", "store", *run.options).out
    assert out.startswith("DIFFERS  version 2: ") and chunk.name in out
    assert "version 2 cannot be reached, version 5 still is; put the object back from a mirror or a backup" in out
    assert "\n1 problem; checked 5 versions up to 5, " in out


def test_what_damage_means_for_those_who_follow_is_told(syncline: Call, run: Any) -> None:
    def ways_out() -> list[str]:
        return [p["way_out"] for p in syncline("verify", "store", *run.options, "--json").document["problems"]]

    (chunk,) = run.reader.skip(5, 3).chunks
    flip(run.file(run.reader.keys.chunk(chunk.blake3)))
    assert ["version 5 is still reached another way; nothing need be done"] == ways_out()
    flip(run.chunk_of(5))
    assert all(out.startswith("nobody can join version 5; put the object back") for out in ways_out())
    assert all("or publish a version that carries all weights: end the writer" in out for out in ways_out())


def test_a_damaged_tensor_table_is_told_once_and_as_what_every_version_needs(syncline: Call, run: Any) -> None:
    table = run.file(run.reader.keys.chunk(run.reader.manifest(5).tensors.blake3))
    flip(table)
    (found,) = syncline("verify", "store", *run.options, "--json").document["problems"]
    assert f"{table.name} does not hash to its name" in found["problem"]
    assert "it is the tensor table of version 5 and of each with the same tensors" in found["problem"]
    assert found["way_out"].startswith("nobody can join version 5; put the object back from a mirror")


@pytest.mark.parametrize("version", [1, 3, 5])
def test_a_truncated_manifest_is_found(syncline: Call, run: Any, version: int) -> None:
    manifest = run.file(run.reader.keys.version(version))
    manifest.write_bytes(manifest.read_bytes()[:-9])
    found = problems(syncline, run)
    assert any(p.startswith(f"{version}: ") and run.reader.keys.version(version) in p for p in found)


def test_a_missing_version_between_others_is_found(syncline: Call, run: Any) -> None:
    run.store.delete(run.reader.keys.version(2))
    assert ["2: version 2 is missing between 1 and 3; join from an anchor above"] == problems(syncline, run)


def test_what_retention_took_from_the_old_end_is_not_missed(syncline: Call, run: Any) -> None:
    for version in (1, 2):
        run.store.delete(run.reader.keys.version(version))
    assert 0 == syncline("verify", "store", *run.options, "--deep").code


def test_a_store_that_nobody_can_join_is_found(syncline: Call, run: Any) -> None:
    run.store.delete(run.reader.keys.version(1))
    run.store.delete(run.reader.keys.anchor(3))
    assert any("nobody can join" in p for p in problems(syncline, run))


def test_an_epoch_that_falls_is_found(syncline: Call, run: Any) -> None:
    manifest: VersionManifest = run.reader.manifest(2)
    raised = manifest.model_copy(update={"epoch": 7})
    run.store.put(run.reader.keys.version(2), raised.encode())
    assert any("version 3 carries epoch 1, its predecessor 7" in p for p in problems(syncline, run))


def test_digests_that_do_not_sum_up_are_found(syncline: Call, run: Any) -> None:
    manifest: VersionManifest = run.reader.manifest(4)
    run.store.put(run.reader.keys.version(4), manifest.model_copy(update={"digest": "ab" * 16}).encode())
    assert any(p.startswith("4: ") and "do not sum" in p for p in problems(syncline, run))


def test_an_anchor_file_that_is_short_is_found_at_once_and_a_flipped_one_by_deep(syncline: Call, run: Any) -> None:
    anchor = run.reader.anchor(3)
    file = run.file(run.reader.anchor_file(anchor, "model.safetensors"))
    flip(file)
    assert 0 == syncline("verify", "store", *run.options).code
    assert any(p.startswith("3: ") and "model.safetensors" in p for p in problems(syncline, run, "--deep"))
    file.write_bytes(file.read_bytes()[:-1])
    assert any(p.startswith("3: ") and "model.safetensors" in p for p in problems(syncline, run))
    file.unlink()
    assert any(p.startswith("3: ") and "is gone" in p for p in problems(syncline, run))


def test_a_damaged_skip_delta_is_found(syncline: Call, run: Any) -> None:
    (chunk,) = run.reader.skip(5, 3).chunks
    flip(run.file(run.reader.keys.chunk(chunk.blake3)))
    assert all(p.startswith("5: ") for p in problems(syncline, run))


def test_a_store_that_is_down_is_no_difference(syncline: Call, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "open_store", lambda *_, **__: Failing(run.folder))
    ended = syncline("verify", "store", *run.options, "--json")
    assert (3, "StoreUnavailable") == (ended.code, ended.document["error"]["type"])


class Failing(LocalStore):
    """A store whose chunks cannot be fetched now."""

    def get_range_into(self, key: str, offset: int, buffer: Any) -> None:
        raise StoreUnavailable(f"{key}: the store answers 503; try again later")


# --- a checkpoint folder


def test_of_many_tensors_that_differ_the_first_are_told_and_the_others_counted(
    syncline: Call, run: Any, trainer: Any
) -> None:
    trainer.weights |= {f"layers.{n}.extra": trainer.weights["norm.weight"] for n in range(30)}
    ended = syncline("verify", "checkpoint", trainer.write(), *run.options, "--version", 2)
    assert 9 == ended.code
    *told, more, summary = ended.out.splitlines()
    assert 10 == sum(line.startswith("DIFFERS  ") for line in told) == len(told)
    total = int(summary.partition(" ")[0])
    assert f"…        {total - 10} more; --json names them all" == more


@pytest.fixture
def held(syncline: Call, run: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "held"
    assert 0 == syncline("materialize", folder, *run.options).code
    return folder


def test_a_folder_that_holds_its_version_is_right(syncline: Call, run: Any, held: Path) -> None:
    document = syncline("verify", "checkpoint", held, *run.options, "--json").document
    assert (True, 5, 3) == (document["ok"], document["version"], document["tensors"])


def test_a_flipped_bit_in_a_folder_is_found_and_its_tensor_named(syncline: Call, run: Any, held: Path) -> None:
    flip(held / "model.safetensors")
    ended = syncline("verify", "checkpoint", held, *run.options, "--json")
    assert 9 == ended.code
    assert 1 == len(ended.document["problems"])
    assert ended.document["problems"][0]["tensor"] in {"norm.weight", "embed.weight", "layers.0.o_proj.weight"}


def test_a_folder_is_compared_with_another_version_when_asked(syncline: Call, run: Any, held: Path) -> None:
    ended = syncline("verify", "checkpoint", held, *run.options, "--version", 2, "--json")
    assert (9, 3) == (ended.code, len(ended.document["problems"]))


def test_the_trainers_own_folder_can_be_compared(syncline: Call, run: Any) -> None:
    ended = syncline("verify", "checkpoint", run.checkpoints[2], *run.options, "--version", 2)
    told = f"ok  version 2: 3 tensors compared, digest {run.reader.manifest(2).digest}\n"
    assert (0, told) == (ended.code, ended.out)
    ended = syncline("verify", "checkpoint", run.checkpoints[2], *run.options)
    assert 8 == ended.code
    assert "it was not written by Syncline; say --version N" in ended.err


def test_a_folder_whose_writing_did_not_end_is_told(syncline: Call, run: Any, held: Path) -> None:
    (held / ".syncline" / "marker.json").unlink()
    ended = syncline("verify", "checkpoint", held, *run.options)
    assert 8 == ended.code
    assert f"nothing says which version {held} holds: a write to it did not end" in ended.err


def test_tensors_that_are_missing_or_too_many_are_named(syncline: Call, run: Any, trainer: Any) -> None:
    trainer.weights["extra.weight"] = trainer.weights.pop("norm.weight")
    trainer.weights["embed.weight"] = trainer.weights["embed.weight"][:10]
    ended = syncline("verify", "checkpoint", trainer.write(), *run.options, "--version", 2, "--json")
    assert 9 == ended.code
    text = [p["problem"] for p in ended.document["problems"]]
    assert "extra.weight: version 2 has no such tensor" in text
    assert "norm.weight: missing in the folder" in text
    assert "embed.weight: BF16 [10, 48], version 2 has BF16 [64, 48]" in text


def test_a_folder_of_another_training_is_told(syncline: Call, run: Any, held: Path, trainer: Any) -> None:
    options = ("--store", run.folder, "--run", "other")
    syncline("publish", trainer.step(), *options)
    ended = syncline("verify", "checkpoint", held, *options, "--version", 1, "--json")
    assert 9 == ended.code
    assert "lineage" in ended.document["problems"][0]["problem"]


def test_a_folder_that_does_not_exist_is_a_wrong_command_line(syncline: Call, run: Any, tmp_path: Path) -> None:
    assert 2 == syncline("verify", "checkpoint", tmp_path / "missing", *run.options).code


# --- a replica


class Serving:
    """An application on a loopback port, in a thread."""

    def __init__(self, app: web.Application) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(app), self._loop).result(30)

    async def _start(self, app: web.Application) -> str:
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


@pytest.fixture
def agent(run: Any, tmp_path: Path) -> Iterator[tuple[str, Replica]]:
    """A real agent's HTTP face over a replica that serves version 5, proven."""
    folder, clock, store = tmp_path / "node", ManualClock(), run.store
    folder.mkdir()
    settings = AgentSettings(stores=[str(run.folder)], target=folder / "target.json", node_dir=folder, node="node-a")
    settings.target.write_text(encode_target(Target("demo", generation=1)))
    replica = Replica(
        settings,
        sources=[Source("origin", store)],
        consumers=store,
        clock=clock,
        random=random.Random(1),
        log=structlog.get_logger(),
    )
    for _ in range(200):
        clock.advance(replica.node.follower.tick())
        if replica.live is None:
            replica.start_engine()
        if replica.serving is not None and replica.serving.version == 5:
            break
    app = make_app(
        replica.node.reporter.read,
        heartbeats=lambda: replica.node.heart.state,
        alive=lambda: True,
        sweep=replica.node.engine.sweep,
        registry=Metrics().registry,
    )
    serving = Serving(app)
    yield serving.url, replica
    serving.stop()


def test_a_replica_sweeps_its_memory_and_agrees_with_the_store(
    syncline: Call, run: Any, agent: tuple[str, Replica]
) -> None:
    url, _ = agent
    document = syncline("verify", "replica", f"{url}/", *run.options, "--json").document
    assert (True, 5, run.reader.manifest(5).digest, True) == (
        document["ok"],
        document["version"],
        document["digest"],
        document["proven"],
    )
    told = (
        f"ok  {url} holds version 5, digest {run.reader.manifest(5).digest}: all of its live memory was read, and is "
    )
    assert syncline("verify", "replica", url, *run.options).out == f"{told}what the store says\n"


def test_a_flipped_bit_in_live_memory_is_a_difference(syncline: Call, run: Any, agent: tuple[str, Replica]) -> None:
    url, replica = agent
    assert replica.live is not None
    stores_of(replica.live)[0][7] ^= 1
    ended = syncline("verify", "replica", url, *run.options, "--json")
    assert 9 == ended.code
    assert (False, False) == (ended.document["ok"], ended.document["proven"])
    *_, last = syncline("verify", "replica", url, *run.options).out.splitlines()
    assert f"1 problem; {url} is not proven" == last


def test_a_replica_of_another_training_is_a_difference(
    syncline: Call, run: Any, agent: tuple[str, Replica], trainer: Any
) -> None:
    options = ("--store", run.folder, "--run", "other")
    syncline("publish", trainer.step(), *options)
    ended = syncline("verify", "replica", agent[0], *options)
    assert 9 == ended.code
    assert "another training" in ended.out


def test_an_agent_without_an_engine_is_to_be_asked_again(syncline: Call, run: Any, agent: tuple[str, Replica]) -> None:
    url, replica = agent
    replica.stop_engine()
    ended = syncline("verify", "replica", url, *run.options, "--json")
    assert (3, "EngineUnavailable") == (ended.code, ended.document["error"]["type"])
    assert "no engine was started" in ended.err


@pytest.mark.parametrize(("status", "body"), [(200, ["hello"]), (404, {"error": {"message": "Not Found"}})])
def test_what_is_no_agent_is_told(syncline: Call, run: Any, status: int, body: Any) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_post("/verify", answer)
    other = Serving(app)
    ended = syncline("verify", "replica", other.url, *run.options)
    other.stop()
    assert 8 == ended.code
    assert f"{other.url} is not an agent (it answered {status} to POST /verify); pass the agent's address" in ended.err
    gone = syncline("verify", "replica", other.url, *run.options)
    assert 3 == gone.code
    assert "is an agent there, and up?" in gone.err


def test_an_address_without_http_is_a_wrong_command_line(syncline: Call, run: Any) -> None:
    ended = syncline("verify", "replica", "127.0.0.1:9401", *run.options)
    assert 2 == ended.code
    told = " ".join(ended.err.replace("│", " ").split())
    assert "Invalid value for URL: '127.0.0.1:9401' is no address: write http://host:port" in told
