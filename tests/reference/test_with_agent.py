"""Publisher, agent process and engine process on one node: what is published is what answers, whatever dies between."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from syncline.store.local import LocalStore
from syncline.testing.tables import safetensors_bytes
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.reference.generation import complete
from syncline_agent.reference.sampling import SamplingParams
from syncline_agent.testing.plain_model import Model, model
from syncline_agent.testing.threaded_ranks import Rank
from syncline_distributor.publisher import Publisher

Start = Callable[..., Any]


class Fleet:
    """One run in a local store, followed by one node."""

    def __init__(self, tiny: Any, folder: Path, start_engine: Start) -> None:
        self.tiny = tiny
        self.folder = folder
        self.start_engine = start_engine
        self.store = folder / "store"
        self.node = tiny.node
        self.publisher = Publisher(LocalStore(self.store), "demo")
        self.publisher.open()
        self.agents: list[subprocess.Popen[bytes]] = []

    def publish(self, version: int) -> None:
        """A version of the tiny run."""
        digest = self.publish_model(version, self.tiny.model(version))
        assert self.tiny.run.digest(version) == digest

    def publish_model(self, version: int, of: Model) -> str:
        """Any model as this version; its digest."""
        source = self.folder / f"checkpoint-{version}"
        source.mkdir()
        whole = safetensors_bytes(of.table.tensors, dict(of.bits))
        (source / "model.safetensors").write_bytes(whole)
        (source / "config.json").write_text(json.dumps(of.config.to_hf()))
        name = "character_tokenizer.json"
        (source / name).write_bytes((self.tiny.node / "original" / name).read_bytes())
        published = self.publisher.publish(source, step=version)
        assert version == published.version
        return published.manifest.digest

    def target(self, mode: str, version: int | None = None) -> None:
        wanted = {"mode": mode} | ({} if version is None else {"version": version})
        body = {"run": "demo", "view": "main", "policy": "keep", "version": wanted, "suspend": False, "generation": 1}
        new = self.folder / "target.new"
        new.write_text(json.dumps(body))
        new.rename(self.folder / "target.json")

    def start_agent(self, kill_at: str | None = None) -> subprocess.Popen[bytes]:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        flags = {
            "--store": str(self.store),
            "--target": str(self.folder / "target.json"),
            "--node-dir": str(self.node),
            "--pool": "default",
            "--node": "node-0",
            "--port": str(self.port),
        }
        with (self.folder / "agent.log").open("ab") as log:
            agent = subprocess.Popen(
                [sys.executable, "-m", "syncline_agent", *(part for pair in flags.items() for part in pair)],
                env={**os.environ} | ({"SYNCLINE_KILL_AT": kill_at} if kill_at else {}),
                stderr=log,
            )
        self.agents.append(agent)
        return agent

    def wait_serving(self, engine: Any, version: int) -> None:
        pause = threading.Event()
        for _ in range(800):
            status = engine.status()
            applied = status["applied"]
            if applied is not None and (version, True) == (applied["version"], applied["proven"]):
                assert self.tiny.run.digest(version) == applied["digest"]
                return
            pause.wait(0.05)
        raise AssertionError(f"never served {version}: {status}\n{(self.folder / 'agent.log').read_text()[-3000:]}")

    def check(self, engine: Any, version: int) -> None:
        """What answers is that version, token for token."""
        self.wait_serving(engine, version)
        choice = engine.complete(max_tokens=12)["choices"][0]
        assert [version] == [span["version"] for span in choice["weight_version"]["spans"]]
        self.tiny.check_replay(choice)

    def apply_path(self) -> str:
        """How the last version came into the engine."""
        return self.status()["apply_path"]

    def status(self) -> dict[str, Any]:
        """What the agent says."""
        return httpx.get(f"http://127.0.0.1:{self.port}/status", timeout=60).json()

    def ask_gateway_socket(self, path: str) -> dict[str, Any]:
        """What the agent says to a gateway."""
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.node / "gateway.sock"))) as client:
            return client.get(f"http://agent{path}", timeout=60).json()

    def wait_status(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What the agent says when that is true of it."""
        pause = threading.Event()
        for _ in range(1200):
            status = self.status()
            if holds(status):
                return status
            pause.wait(0.05)
        raise AssertionError(f"not within 60 s: {status}")


@pytest.fixture
def fleet(tiny: Any, tmp_path: Path, start_engine: Start) -> Iterator[Fleet]:
    tiny.checkpoint.rename(tiny.node / "original")  # the agent makes its own
    tiny.step()
    fleet = Fleet(tiny, tmp_path, start_engine)
    fleet.target("Latest")
    yield fleet
    for agent in fleet.agents:
        if agent.poll() is None:
            agent.terminate()
            try:
                agent.wait(10)
            except subprocess.TimeoutExpired:
                agent.kill()


@pytest.mark.timeout(600)
def test_a_node_joins_follows_goes_back_and_survives_a_kill_of_either_process(fleet: Fleet) -> None:
    fleet.publish(1)
    agent = fleet.start_agent()
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 1)
    fleet.publish(2)
    fleet.publish(3)
    fleet.check(engine, 3)
    fleet.target("Pinned", 2)
    fleet.check(engine, 2)
    fleet.target("Latest")
    fleet.check(engine, 3)
    state, page = fleet.ask_gateway_socket("/v1/state"), fleet.ask_gateway_socket("/v1/commits")
    assert (3, True, page["log"]) == (state["applied"]["version"], state["in_service"], state["log"])
    switches = [tuple(at and at["version"] for at in (c["before"], c["after"])) for c in page["commits"]]
    assert ((None, 1), [(3, 2), (2, 3)]) == (switches[0], switches[-2:])
    assert all({} == c["spans"] and c["ended"] for c in page["commits"][-2:])

    engine.kill()
    doomed = fleet.start_engine(kill_at="apply.scattering", ready=False)
    fleet.publish(4)
    assert -signal.SIGKILL == doomed.process.wait(60)
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 4)
    gone = fleet.ask_gateway_socket(f"/v1/commits?after={page['last']}")["commits"]
    assert (3, None) == (gone[0]["before"]["version"], gone[0]["after"])  # another engine may come with another version
    assert 4 == gone[-1]["after"]["version"]

    agent.kill()
    agent.wait(10)
    before = page["log"]
    assert 200 == engine.http.get("/readyz").status_code  # it serves on
    fleet.start_agent()
    fleet.target("Pinned", 3)
    fleet.check(engine, 3)
    assert before != fleet.ask_gateway_socket("/v1/state")["log"]

    engine.kill()
    weights = next(fleet.tiny.checkpoint.glob("*.safetensors"))
    flip(weights)
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 3)  # other base weights: made whole from the store
    assert 'syncline_digest_failures_total{phase="load"' in engine.metrics()

    engine.kill()
    weights = next(fleet.tiny.checkpoint.glob("*.safetensors"))
    os.truncate(weights, weights.stat().st_size - 1)
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 3)


@pytest.mark.timeout(600)
def test_an_engine_of_two_ranks_follows_in_place_and_survives_a_kill_of_all_in_a_write_and_of_one_at_rest(
    fleet: Fleet,
) -> None:
    fleet.publish(1)
    fleet.start_agent()
    doomed = fleet.start_engine("--tp", "2", kill_at="apply.scattering", ready=False)
    fleet.check(doomed, 1)
    fleet.publish(2)
    assert doomed.process.wait(60) in (1, -signal.SIGKILL)  # it died, or found that the other rank did
    engine = fleet.start_engine("--tp", "2", ready=False)
    fleet.check(engine, 2)
    fleet.publish(3)
    fleet.check(engine, 3)
    assert "delta" == fleet.apply_path()
    fleet.target("Pinned", 2)
    fleet.check(engine, 2)
    assert "undo" == fleet.apply_path()

    (rank,) = (
        int(child)
        for task in Path(f"/proc/{engine.process.pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    )
    os.kill(rank, signal.SIGKILL)
    assert 1 == engine.process.wait(60)
    fleet.target("Latest")
    status = fleet.wait_status(lambda s: s["engine"] is None and s["target"] == 3)
    assert (False, None) == (status["in_service"], status["applied"])
    assert "no engine to commit to" in status["error"]
    engine = fleet.start_engine("--tp", "2", ready=False)
    fleet.check(engine, 3)
    assert "delta" == fleet.apply_path()


@pytest.mark.timeout(300)
def test_other_tensors_are_refused_by_name_while_the_old_version_is_served_and_taken_at_a_restart(fleet: Fleet) -> None:
    fp8 = model(fleet.tiny.config, kind="FP8")
    fleet.publish(1)
    fleet.start_agent()
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 1)

    quantized = fleet.publish_model(2, fp8)
    status = fleet.wait_status(lambda s: s["failures"] > 0)
    assert "version 2 has other tensors than version 1; restart the engine" in status["error"]
    assert (1, 1, True) == (status["applied"]["version"], status["lag_versions"], status["in_service"])
    fleet.check(engine, 1)
    engine.kill()
    engine = fleet.start_engine(ready=False)
    check_model(engine, 2, quantized, fp8)

    changed = turned(fp8)
    digest = fleet.publish_model(3, changed)
    check_model(engine, 3, digest, changed)
    assert "delta" == fleet.apply_path()

    unknown = TensorSpec(name="model.extra.weight", dtype="U8", shape=[5], axis=0)
    tensors = sorted([*fp8.table.tensors, unknown], key=lambda spec: spec.name)
    more = replace(
        changed, table=TensorTable(tensors=tensors), bits={**changed.bits, unknown.name: np.zeros(5, np.uint8)}
    )
    fleet.publish_model(4, more)
    assert "other tensors" in fleet.wait_status(lambda s: s["failures"] > 0)["error"]
    check_model(engine, 3, digest, changed)
    engine.kill()
    engine = fleet.start_engine(ready=False)
    wait_reason(engine, "unknown tensors ['model.extra.weight'] for the config")
    status = fleet.wait_status(lambda s: s["engine"] is None)
    assert (False, 4) == (status["in_service"], status["target"])
    digest = fleet.publish_model(5, fp8)
    check_model(engine, 5, digest, fp8)


def flip(file: Path) -> None:
    """Turn a bit near the end of a file."""
    with file.open("r+b") as opened:
        opened.seek(-5, os.SEEK_END)
        (byte,) = opened.read(1)
        opened.seek(-5, os.SEEK_END)
        opened.write(bytes([byte ^ 0x10]))


def turned(of: Model) -> Model:
    """The same with the sign of every hundredth number or so of its matrices turned."""
    bits = {name: units.copy() for name, units in of.bits.items()}
    for units in bits.values():
        units[::97] ^= units.dtype.type(1 << (8 * units.itemsize - 1))
    return replace(of, bits=bits)


def wait_reason(engine: Any, says: str) -> None:
    pause = threading.Event()
    for _ in range(1200):
        reason = str(engine.http.get("/readyz").json()["reason"])
        if says in reason:
            return
        pause.wait(0.05)
    raise AssertionError(f"not within 60 s: {reason}")


def check_model(engine: Any, version: int, digest: str, of: Model) -> None:
    """What answers is that version, proven, and says what an engine says that has only ever held it."""
    wait_reason(engine, "None")
    pause = threading.Event()
    for _ in range(800):
        applied = engine.status()["applied"]
        if (version, digest, True) == (applied["version"], applied["digest"], applied["proven"]):
            break
        pause.wait(0.05)
    prompt = [1, 4, 14, 5]
    alone = complete(Rank(of).decoder, [prompt], [SamplingParams(temperature=0.0)], end=-1, limit=8)
    choice = engine.complete(prompt=prompt, max_tokens=8, temperature=0.0)["choices"][0]
    assert (list(alone[0].tokens), version) == (choice["token_ids"], choice["weight_version"]["end"])
