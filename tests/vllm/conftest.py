"""Runs of a small model in local stores, agents that follow them, and vLLM servers beside those.

vLLM lives in an environment of its own (`make vllm`); without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
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
from syncline.testing.small_qwen import PROMPTS, SmallQwen
from syncline.testing.vllm_server import QUIET, VllmServer
from syncline_agent.testing.cores import Core, Cores
from syncline_agent.vllm.gate import CoreGate
from syncline_distributor.publisher import Publisher

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SYNCLINE_VLLM_PYTHON", ROOT / ".venv-vllm/bin/python"))


def bound(ranks: int) -> dict[str, str]:
    """Each of several workers on cores of its own; vLLM wants to be told."""
    cores = sorted(os.sched_getaffinity(0))
    if ranks == 1:
        return {}
    if len(cores) < ranks:
        pytest.skip(f"{ranks} workers of vLLM need a core each, here are {len(cores)}")
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores[:ranks]))}


class Fresh:
    """Tokens of a vLLM without Syncline that was started on a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "fresh.log"
        environ = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(PYTHON), str(Path(__file__).parent / "fresh.py")],
                env={**os.environ, **QUIET, **environ},
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def tokens(self, checkpoint: Path, *, ranks: int = 1, adapter: Path | None = None) -> dict[str, list[list[int]]]:
        """By model, the tokens of each prompt."""
        asked = {"folder": str(checkpoint), "prompts": PROMPTS, "ranks": ranks, "bound": bound(ranks)}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({**asked, "adapter": None if adapter is None else str(adapter)}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("TOKENS "):
                return json.loads(line.removeprefix("TOKENS "))
        raise AssertionError(f"vLLM drew nothing from {checkpoint}:\n{self._log.read_text()[-4000:]}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=30)


class Fleet:
    """A run in a local store, an agent that follows it, and the vLLM servers beside it, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store, self.node = folder / "store", folder / "node"
        self.node.mkdir()
        self.model = SmallQwen()
        self.publisher = Publisher(LocalStore(self.store), "small")
        self.publisher.open()
        self.digests: dict[int, str] = {}
        self.agent: subprocess.Popen[bytes] | None = None
        self._server: VllmServer | None = None
        self._port = 0
        self._generation = 0
        self.http = httpx.Client(timeout=60.0)
        self._pause = threading.Event()
        self.target()

    # --- the run ---------------------------------------------------------------------------------------------------

    def publish(self, *, parent: int | None = None) -> int:
        """The model's newest weights as the next version, kept as a folder."""
        source = self.folder / "next"
        source.mkdir()
        self.model.write(source)
        published = self.publisher.publish(source, step=len(self.digests), parent=parent)
        self.digests[published.version] = published.manifest.digest
        source.rename(self.checkpoint(published.version))
        return published.version

    def publish_next(self, *, ends: bool = False) -> int:
        """A step of the training, published."""
        self.model.step(ends=ends)
        return self.publish()

    def checkpoint(self, version: int) -> Path:
        return self.folder / f"version-{version}"

    # --- the agent -------------------------------------------------------------------------------------------------

    def target(self, mode: str = "Latest", version: int | None = None, policy: str = "keep") -> None:
        """Say what to serve, and wait until an agent that runs has heard it."""
        self._generation += 1
        wanted = {"mode": mode} | ({} if version is None else {"version": version})
        body = {"run": "small", "view": "main", "policy": policy, "version": wanted, "suspend": False}
        new = self.folder / "target.new"
        new.write_text(json.dumps({**body, "generation": self._generation}))
        new.rename(self.folder / "target.json")
        if self.agent is not None:
            self.wait(lambda: self.status()["generation"] == self._generation or None, "heard its target")

    def start_agent(self, kill_at: str | None = None) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self._port = free.getsockname()[1]
        flags = {
            "--store": str(self.store),
            "--target": str(self.folder / "target.json"),
            "--node-dir": str(self.node),
            "--pool": "p",
            "--node": "n",
            "--port": str(self._port),
        }
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "syncline_agent", *(part for pair in flags.items() for part in pair)],
                env={**os.environ} | ({"SYNCLINE_KILL_AT": kill_at} if kill_at else {}),
                stderr=log,
            )

    def kill_agent(self) -> None:
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait(10)
            self.agent = None

    def agent_died(self) -> int:
        """How an agent ended that was to kill itself."""
        assert self.agent is not None
        code = self.agent.wait(120)
        self.agent = None
        return code

    def status(self) -> dict[str, Any]:
        return self.http.get(f"http://127.0.0.1:{self._port}/status").json()

    def readyz(self) -> httpx.Response:
        return self.http.get(f"http://127.0.0.1:{self._port}/readyz")

    def commits(self) -> list[dict[str, Any]]:
        """The agent's log of them, as a gateway reads it."""
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.node / "gateway.sock"))) as client:
            return client.get("http://agent/v1/commits").json()["commits"]

    def verify(self) -> dict[str, Any]:
        """What a sweep of all live memory finds."""
        return self.http.post(f"http://127.0.0.1:{self._port}/verify", timeout=120).json()

    def wait(self, found: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
        """What `found` returns, as soon as that is not None."""
        for _ in range(int(seconds / 0.05)):
            try:
                result = found()
            except httpx.TransportError:
                result = None
            if result is not None:
                return result
            self._pause.wait(0.05)
        raise AssertionError(f"never {what}\n{self._told()}")

    def _told(self) -> str:
        try:
            said = self.http.get(f"http://127.0.0.1:{self._port}/status").text if self._port else ""
        except httpx.TransportError as error:
            said = f"no agent: {error}"
        agent = self.folder / "agent.log"
        server = "" if self._server is None else self._server.told()
        return f"{said}\n{server}\n{agent.read_text()[-4000:] if agent.exists() else ''}"

    # --- the engine ------------------------------------------------------------------------------------------------

    @property
    def server(self) -> VllmServer:
        assert self._server is not None
        return self._server

    def start_server(
        self, ranks: int = 1, executor: str = "mp", adapters: dict[str, Path] | None = None, **environ: str
    ) -> VllmServer:
        """vLLM on the node's checkpoint, as soon as the agent has brought that."""
        self.wait(lambda: (self.node / "checkpoint/.syncline/marker.json").exists() or None, "a checkpoint")
        armed = {"SYNCLINE_ARM_SOCKET": str(self.node / "arm.sock"), "SYNCLINE_POOL": "p", "SYNCLINE_POD": "n"}
        self._server = VllmServer(
            PYTHON,
            self.node / "checkpoint",
            self.folder / "vllm.log",
            {**armed, **bound(ranks), **environ},
            ranks=ranks,
            executor=executor,
            adapters=adapters,
        )
        self._server.wait_ready()
        return self._server

    def wait_serving(self, version: int, *, proven: bool = True) -> dict[str, Any]:
        """The agent's status once the engine serves a version and nothing is under way."""

        def served() -> dict[str, Any] | None:
            status = self.status()  # once: between two looks a version may come
            applied = status["applied"]
            there = applied is not None and (version, proven) == (applied["version"], applied["proven"])
            return status if there and status["in_service"] and status["phase"] == "Idle" else None

        status = self.wait(served, f"served {version}")
        assert self.digests[version] == status["applied"]["digest"]
        return status

    def follow(self, version: int, path: str = "delta") -> None:
        """Wait until the engine serves a version that came in place, and says so itself."""
        assert path == self.wait_serving(version)["apply_path"]
        assert str(version) == self.server.weight_version

    def drawn(self, model: str = "m") -> list[list[int]]:
        """Greedy tokens of each prompt."""
        return [self.server.complete(prompt, model=model) for prompt in PROMPTS]

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
        if self.agent is not None and self.agent.poll() is None:
            self.agent.terminate()
            try:
                self.agent.wait(15)
            except subprocess.TimeoutExpired:
                self.agent.kill()
        self.http.close()


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The Python of vLLM's environment."""
    if not PYTHON.exists():
        pytest.skip("no environment of vLLM; `make vllm` makes it")
    return PYTHON


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, vllm_python: Path) -> Iterator[Fresh]:
    fresh = Fresh(tmp_path_factory.mktemp("fresh"))
    yield fresh
    fresh.close()


@pytest.fixture
def fleet(tmp_path: Path, vllm_python: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def serving_fleet(tmp_path_factory: pytest.TempPathFactory, vllm_python: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("serving"))
    try:
        fleet.publish()
        fleet.start_agent()
        fleet.start_server()
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def serving(serving_fleet: Fleet) -> Fleet:
    """A fleet whose vLLM serves the newest version, whatever a test before this one left."""
    if serving_fleet.agent is None or serving_fleet.agent.poll() is not None:
        serving_fleet.start_agent()
    serving_fleet.target()
    serving_fleet.wait_serving(max(serving_fleet.digests))
    return serving_fleet


@pytest.fixture
def make() -> Iterator[Callable[..., tuple[Core, CoreGate]]]:
    """Starts a core with its gate; see `Cores.start`."""
    cores = Cores()
    yield cores.start
    cores.end()
