"""A tiny model as a run of versions that differ a lot, and engines that serve it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from aiohttp import web

from syncline.clock import SystemClock
from syncline.logs import logger
from syncline.metrics import Metrics
from syncline.store.local import LocalStore
from syncline.testing.tables import TILING, safetensors_bytes
from syncline.testing.weight_run import WeightRun, Weights
from syncline.wire.records import TilingPart
from syncline.wire.tensors import TensorSpec, TensorTable, split_axis
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import DeltaFiles, StageRequest
from syncline_agent.reference.config import ModelConfig
from syncline_agent.reference.engine import EngineSettings, ReferenceEngine
from syncline_agent.reference.model import Decoder, token_logprobs
from syncline_agent.reference.server import EngineServer
from syncline_agent.reference.tokenizer import CharacterTokenizer
from syncline_agent.testing.plain_model import Model
from syncline_distributor.publisher import Publisher

ALPHABET = "0123456789+=abc "
TOKENIZER = CharacterTokenizer(ALPHABET)
CONFIG = ModelConfig(
    vocab=TOKENIZER.vocab,
    hidden=32,
    intermediate=48,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    max_positions=512,
    tied=True,
)


ASKED: dict[str, Any] = {
    "prompt": "1+2=",
    "max_tokens": 40,
    "return_token_ids": True,
    "logprobs": 0,
    "ignore_eos": True,
}


@dataclass
class NodeRun:
    """Versions of a model, on disk where an agent would have them."""

    node: Path
    run: WeightRun
    config: ModelConfig

    @property
    def checkpoint(self) -> Path:
        return self.node / "checkpoint"

    @property
    def socket(self) -> Path:
        return self.node / "arm.sock"

    def step(self) -> int:
        """A version that clearly says something else: the sign of one weight in ten is turned."""
        draw = np.random.default_rng(self.run.newest)
        changed: Weights = self.run.copy(self.run.newest)
        for units in changed.values():
            units[draw.random(units.size) < 0.1] ^= units.dtype.type(1 << (8 * units.itemsize - 1))
        return self.run.add(changed)

    def write_checkpoint(self, folder: Path, version: int) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.run.checkpoint(folder, version, {"config.json": json.dumps(self.config.to_hf())})

    def model(self, version: int) -> Model:
        """The version as any engine would read it."""
        return Model(self.config, self.run.table, self.run.weights(version))

    def request(self, base: int, target: int, *, checkpoint: Path | None = None) -> StageRequest:
        between = () if checkpoint else range(base + 1, target + 1)
        return StageRequest(
            lineage=self.run.lineage,
            view="main",
            base=base,
            base_digest=self.run.digest(base),
            target=target,
            target_digest=self.run.digest(target),
            table=self.run.table_file,
            tiling=self.run.tiling.tiling,
            deltas=[DeltaFiles(v, self.run.digest(v), self.run.delta(v - 1, v)) for v in between],
            checkpoint=checkpoint,
        )


@dataclass
class TinyRun(NodeRun):
    """Those of the tiny model, which has a tokenizer and is plain enough to be replayed."""

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        """The version as torch weights of its own."""
        shapes = CONFIG.tensors()
        return {
            name: torch.from_numpy(units.view(np.int16).copy()).view(torch.bfloat16).view(shapes[name])
            for name, units in self.run.weights(version).items()
        }

    def check_replay(self, choice: dict[str, Any]) -> None:
        """Feed a choice's tokens anew, each under the version stamped on it and over the cache that the versions before
        it left: the log-probabilities that the engine gave come out, and no others."""
        stamped = [v for s in choice["weight_version"]["spans"] for v in [s["version"]] * (s["last"] - s["first"] + 1)]
        assert len(choice["token_ids"]) == len(stamped)
        now = stamped[0]
        live = self.weights(now)
        decoder = Decoder(CONFIG, live, slots=1)
        fed, position, found = choice["prompt_token_ids"], 0, []
        for token, version in zip(choice["token_ids"], stamped, strict=True):
            if version != now:
                for name, tensor in self.weights(version).items():
                    live[name].copy_(tensor)
                now = version
            logits = decoder.forward(fed, [0] * len(fed), range(position, position + len(fed)))[-1]
            found.append(float(token_logprobs(logits, torch.tensor(token))))
            position += len(fed)
            fed = [token]
        assert found == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-3)

    def write_checkpoint(self, folder: Path, version: int) -> None:
        super().write_checkpoint(folder, version)
        TOKENIZER.save(folder)


@pytest.fixture
def node_of(tmp_path: Path) -> Callable[..., NodeRun]:
    """Any model as a run of three versions, of which the first stands materialized."""

    def make(of: Model, *, tiling: TilingPart = TILING) -> NodeRun:
        torch.set_num_threads(1)
        folder = tmp_path / "other-node"
        made = NodeRun(folder, WeightRun(folder, of.table, of.bits, tiling=tiling), of.config)
        made.step()
        made.step()
        made.write_checkpoint(made.checkpoint, 1)
        return made

    return make


@pytest.fixture
def tiny(tmp_path: Path) -> TinyRun:
    """Version 1 stands materialized; there are two more."""
    torch.set_num_threads(1)  # so small a model is no work to share
    draw = np.random.default_rng(11)
    first: Weights = {}
    for name, shape in CONFIG.tensors().items():
        floats = draw.normal(1.0 if "norm" in name else 0.0, 0.4, shape).astype(np.float32)
        first[name] = torch.from_numpy(floats).bfloat16().view(torch.int16).numpy().view(np.uint16).reshape(-1).copy()
    table = TensorTable(
        tensors=[
            TensorSpec(name=name, dtype="BF16", shape=list(shape), axis=split_axis(name, list(shape)))
            for name, shape in sorted(CONFIG.tensors().items())
        ]
    )
    run = TinyRun(tmp_path / "node", WeightRun(tmp_path / "node", table, first), CONFIG)
    run.step()
    run.step()
    run.write_checkpoint(run.checkpoint, 1)
    return run


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[[Model], WeightRun]:
    """Three versions of any model, of which it is the first."""

    def make(of: Model) -> WeightRun:
        run = WeightRun(tmp_path / "node", of.table, of.bits)
        run.step()
        run.step()
        return run

    return make


class Served:
    """An engine as its clients see it."""

    http: httpx.Client

    def complete(self, **body: Any) -> dict[str, Any]:
        """A whole answer."""
        answer = self.http.post("/v1/completions", json=ASKED | body)
        assert 200 == answer.status_code, answer.text
        return answer.json()

    def stream(self, **body: Any) -> Iterator[dict[str, Any]]:
        """The events of an answer as they come."""
        with self.http.stream("POST", "/v1/completions", json={**ASKED, **body, "stream": True}) as answer:
            assert 200 == answer.status_code
            for line in answer.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line[len("data: ") :])

    def status(self) -> dict[str, Any]:
        return self.http.get("/status").json()

    def metrics(self) -> str:
        return self.http.get("/metrics").text


@dataclass
class EngineProcess(Served):
    """A real engine process and a client of it."""

    process: subprocess.Popen[str]
    http: httpx.Client

    def wait_ready(self) -> None:
        def check() -> None:
            assert self.process.poll() is None, "the engine ended"

        wait_ready(self.http, check)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def agent(tiny: TinyRun) -> Iterator[ArmServer]:
    """The agent's end of the arm socket."""
    with ArmServer(tiny.socket) as server:
        yield server


@pytest.fixture
def start_engine(tiny: TinyRun) -> Iterator[Callable[..., EngineProcess]]:
    """Start `python -m syncline_agent.reference` on the tiny run's node directory, or on another's."""
    started: list[EngineProcess] = []

    def start(
        *flags: str, kill_at: str | None = None, ready: bool = True, node: NodeRun | None = None
    ) -> EngineProcess:
        of = tiny if node is None else node
        environment = {**os.environ} | ({"SYNCLINE_KILL_AT": kill_at} if kill_at else {})
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "syncline_agent.reference"),
                *("--checkpoint", str(of.checkpoint), "--socket", str(of.socket), *flags),
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        address = _address(process)
        engine = EngineProcess(process, httpx.Client(base_url=f"http://{address}", timeout=30))
        started.append(engine)
        if ready:
            engine.wait_ready()
        return engine

    yield start
    for engine in started:
        engine.http.close()
        if engine.process.poll() is None:
            engine.kill()


def _address(process: subprocess.Popen[str]) -> str:
    """Where the process listens, out of its log; a thread reads on so that it never blocks."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        found = re.search(r"address=(\S+)", line)
        if found:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return found[1]
    raise AssertionError("the engine ended before it listened:\n" + "".join(lines))


class EngineHere(Served):
    """The same engine and the same HTTP on a port, in threads of the test's own process: no start-up to wait for."""

    def __init__(self, settings: EngineSettings) -> None:
        clock, metrics = SystemClock(), Metrics()
        self.engine = ReferenceEngine(
            settings, clock=clock, randomness=random.Random(1), metrics=metrics, log=logger("engine")
        )
        self._server = EngineServer(self.engine, clock=clock, randomness=random.Random(2), metrics=metrics)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        self.engine.start()

    async def _listen(self) -> int:
        self._runner = web.AppRunner(self._server.app(), handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    def wait_ready(self) -> None:
        wait_ready(self.http, lambda: None)

    def stop(self) -> None:
        self.http.close()
        self.engine.stop()
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def engine_here(tiny: TinyRun) -> Iterator[Callable[..., EngineHere]]:
    """Start an engine on the tiny run's node directory in this process; keywords are its settings."""
    started: list[EngineHere] = []

    def start(*, ready: bool = True, **settings: Any) -> EngineHere:
        engine = EngineHere(EngineSettings(tiny.checkpoint, tiny.socket, **settings))
        started.append(engine)
        if ready:
            engine.wait_ready()
        return engine

    yield start
    for engine in started:
        engine.stop()


class Fleet:
    """One run in a local store, followed by one node."""

    def __init__(self, tiny: TinyRun, folder: Path, start_engine: Callable[..., EngineProcess]) -> None:
        self.tiny = tiny
        self.folder = folder
        self.start_engine = start_engine
        self.store = folder / "store"
        self.node = tiny.node
        self.publisher = Publisher(LocalStore(self.store), "demo")
        self.publisher.open()
        self.agents: list[subprocess.Popen[bytes]] = []

    def hide_store(self) -> None:
        """What was published cannot be read any more."""
        self.store.rename(self.folder / "hidden")

    def show_store(self) -> None:
        """It can be again. A heartbeat may have made the folder meanwhile."""
        while True:
            shutil.rmtree(self.store, ignore_errors=True)
            try:
                (self.folder / "hidden").rename(self.store)
                return
            except OSError:
                continue

    def take_over(self) -> None:
        """Another writer begins, by a version of its own."""
        self.publisher = Publisher(LocalStore(self.store), "demo")
        self.publisher.open()

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

    def target(self, mode: str, version: int | None = None, **more: Any) -> None:
        wanted = {"mode": mode} | ({} if version is None else {"version": version})
        body = {"run": "demo", "view": "main", "policy": "keep", "version": wanted, "suspend": False, "generation": 1}
        body |= more
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
def fleet(tiny: TinyRun, tmp_path: Path, start_engine: Callable[..., EngineProcess]) -> Iterator[Fleet]:
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


def wait_ready(http: httpx.Client, check: Callable[[], None]) -> None:
    pause = threading.Event()
    for _ in range(1200):
        check()
        answer = http.get("/readyz")
        if answer.status_code == 200:
            return
        pause.wait(0.05)
    raise AssertionError(f"not ready within 60 s: {answer.text}")
