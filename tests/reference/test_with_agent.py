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
from pathlib import Path
from typing import Any

import httpx
import pytest

from syncline.store.local import LocalStore
from syncline.testing.tables import safetensors_bytes
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
        source = self.folder / f"checkpoint-{version}"
        source.mkdir()
        whole = safetensors_bytes(self.tiny.run.table.tensors, self.tiny.run.weights(version))
        (source / "model.safetensors").write_bytes(whole)
        for name in ("config.json", "character_tokenizer.json"):
            (source / name).write_bytes((self.tiny.node / "original" / name).read_bytes())
        published = self.publisher.publish(source, step=version)
        assert (version, self.tiny.run.digest(version)) == (published.version, published.manifest.digest)

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
        return httpx.get(f"http://127.0.0.1:{self.port}/status", timeout=10).json()["apply_path"]


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


@pytest.mark.timeout(300)
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

    engine.kill()
    doomed = fleet.start_engine(kill_at="apply.scattering", ready=False)
    fleet.publish(4)
    assert -signal.SIGKILL == doomed.process.wait(60)
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 4)

    agent.kill()
    agent.wait(10)
    assert 200 == engine.http.get("/readyz").status_code  # it serves on
    fleet.start_agent()
    fleet.target("Pinned", 3)
    fleet.check(engine, 3)

    engine.kill()
    weights = next(fleet.tiny.checkpoint.glob("*.safetensors"))
    os.truncate(weights, weights.stat().st_size - 1)
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 3)


@pytest.mark.timeout(300)
def test_an_engine_of_two_ranks_follows_in_place_and_survives_a_kill_of_all_in_a_write(fleet: Fleet) -> None:
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
