"""A run in a local store with its publisher, and the agent of one node that follows it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.request import Request, urlopen

from bench.processes import answer
from bench.vllm_run.models import Model
from bench.vllm_run.served import plain

from syncline.store.local import LocalStore
from syncline_distributor.publisher import Publisher

Status = dict[str, Any]


class Node:
    """Its folder holds everything: the store, the versions as they were published, the node's own files and logs."""

    def __init__(self, folder: Path, model: Model, executor: Executor) -> None:
        self.folder, self.model = folder, model
        self.node = folder / "node"
        self.node.mkdir(parents=True)
        self._publisher = Publisher(LocalStore(folder / "store"), "run", executor=executor)
        self._publisher.open()
        self._generation = 0
        self._agent: subprocess.Popen[bytes] | None = None
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self._port = free.getsockname()[1]
        self.digests: dict[int, str] = {}
        self.target()

    def checkpoint(self, version: int) -> Path:
        """What the trainer wrote as this version."""
        return self.folder / f"version-{version}"

    def publish(self) -> tuple[int, float]:
        """The newest weights as a version, and how long that took once they were written."""
        source = self.folder / "next"
        self.model.write(source)
        began = monotonic()
        published = self._publisher.publish(source, step=len(self.digests))
        seconds = monotonic() - began
        self.digests[published.version] = published.manifest.digest
        source.rename(self.checkpoint(published.version))
        return published.version, seconds

    def forget(self, version: int) -> None:
        shutil.rmtree(self.checkpoint(version))

    def target(self, version: int | None = None) -> None:
        """Serve this version, or always the newest."""
        self._generation += 1
        wanted = {"mode": "Latest"} if version is None else {"mode": "Pinned", "version": version}
        body = {"run": "run", "view": "main", "policy": "keep", "version": wanted, "suspend": False}
        new = self.folder / "target.new"
        new.write_text(json.dumps({**body, "generation": self._generation}))
        new.rename(self.folder / "target.json")

    def start_agent(self) -> None:
        flags = {
            "--store": str(self.folder / "store"),
            "--target": str(self.folder / "target.json"),
            "--node-dir": str(self.node),
            "--port": str(self._port),
            "--poll-seconds": "0.2",
        }
        with (self.folder / "agent.log").open("ab") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "syncline_agent", *(part for pair in flags.items() for part in pair)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stderr=log,
            )

    def status(self) -> Status | None:
        return answer(self._port)

    def said(self) -> str:
        """The agent's log."""
        return plain((self.folder / "agent.log").read_text())

    def verify(self) -> Status:
        """What a sweep of all live memory finds."""
        with urlopen(Request(f"http://127.0.0.1:{self._port}/verify", method="POST"), timeout=60) as told:
            return json.loads(told.read())

    def wait_checkpoint(self, timeout_s: float) -> None:
        self.wait(lambda: (self.node / "checkpoint/.syncline/marker.json").exists(), "a checkpoint", timeout_s)

    def wait_serving(self, version: int, timeout_s: float = 90.0) -> Status:
        """The agent's status once the engine serves a version, proven."""

        def served() -> Status | None:
            status = self.status()
            applied = None if status is None else status["applied"]
            if applied is None or (applied["version"], applied["proven"]) != (version, True):
                return None
            assert self.digests[version] == applied["digest"], "the agent names another digest than the publisher"
            return status

        return self.wait(served, f"version {version} in the engine", timeout_s)

    def wait(self, found: Callable[[], Any], what: str, timeout_s: float) -> Any:
        deadline = monotonic() + timeout_s
        while monotonic() < deadline:
            told = found()
            if told:
                return told
            sleep(0.01)
        raise TimeoutError(f"{what} did not come in {timeout_s:.0f} s; the agent says {json.dumps(self.status())}")

    def close(self) -> None:
        if self._agent is not None:
            self._agent.terminate()
            try:
                self._agent.wait(10)
            except subprocess.TimeoutExpired:
                self._agent.kill()
                self._agent.wait()
