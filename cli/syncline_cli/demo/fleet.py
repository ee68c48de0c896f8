"""The demo's fleet: one store, one distributor, two nodes with an agent and a reference engine each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from syncline.clock import Clock
from syncline.errors import EngineUnavailable
from syncline.testing.seaweed import start_seaweed
from syncline_agent.policy import Target, encode_target
from syncline_cli.demo.processes import Processes, free_port

RUN = "demo"
NODES = ("node-a", "node-b")


@dataclass(frozen=True, slots=True)
class Node:
    """Where a node's processes answer."""

    name: str
    folder: Path
    agent: str
    engine: str


@dataclass(slots=True)
class Fleet:
    """A running fleet."""

    store: str
    environment: dict[str, str]
    source: Path
    distributor: str
    nodes: list[Node] = field(default_factory=list[Node])
    http: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=5))
    """One client for all: a new one a call would cost more than the call. Loopback needs no proxy."""

    def status(self, node: Node) -> dict[str, Any] | None:
        """The agent's `/status`; None while it does not answer."""
        try:
            return self.http.get(f"{node.agent}/status").json()
        except (httpx.HTTPError, ValueError):
            return None

    def verify(self, node: Node) -> str:
        """Digest of a full sweep of the engine's live memory; what the agent says instead when memory holds something else."""
        try:
            answer = self.http.post(f"{node.agent}/verify", timeout=120)
            if answer.status_code == 409:
                return f"DIFFERS: {answer.json()['error']['message']}"
            return str(answer.raise_for_status().json()["digest"])
        except (httpx.HTTPError, ValueError) as error:
            raise EngineUnavailable(f"{node.name} did not sweep its memory: {error}; see its agent's log") from error


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The store's URL and what its clients need in their environment."""
    if kind != "s3":
        yield str(folder / "store"), {}
        return
    weed = start_seaweed(folder / "seaweed")
    try:
        keys = {"SYNCLINE_S3_ACCESS_KEY": weed.access_key, "SYNCLINE_S3_SECRET_KEY": weed.secret_key}
        yield f"{weed.url}", keys
    finally:
        weed.stop()


def start(processes: Processes, folder: Path, store: str, environment: dict[str, str]) -> Fleet:
    """Start distributor, agents and engines. The engines wait for the first version by themselves."""
    source = folder / "trainer"
    source.mkdir(parents=True)
    port = free_port()
    processes.start(
        "distributor",
        "syncline_distributor",
        [
            *(
                "watch",
                "--store",
                store,
                "--run",
                RUN,
                "--source",
                str(source),
                "--state-dir",
                str(folder / "distributor"),
            ),
            *(
                "--port",
                str(port),
                "--complete",
                "rename",
                "--poll-seconds",
                "0.2",
                "--anchor-every",
                "10",
                "--skip-every",
                "5",
            ),
        ],
        environment=environment,
    )
    fleet = Fleet(store, environment, source, f"http://127.0.0.1:{port}")
    for name in NODES:
        home = folder / name
        home.mkdir(parents=True)
        (home / "target.json").write_text(encode_target(Target(RUN, generation=1)), encoding="utf-8")
        agent, engine = free_port(), free_port()
        processes.start(
            f"agent-{name}",
            "syncline_agent",
            [
                *("--store", store, "--target", str(home / "target.json"), "--node-dir", str(home), "--pool", "demo"),
                *("--node", name, "--port", str(agent), "--distributor", fleet.distributor, "--heartbeat-seconds", "5"),
            ],
            environment=environment,
        )
        processes.start(
            f"engine-{name}",
            "syncline_agent.reference",
            [
                *("--checkpoint", str(home / "checkpoint"), "--socket", str(home / "arm.sock"), "--port", str(engine)),
                *("--pool", "demo", "--pod", name),
            ],
        )
        fleet.nodes.append(Node(name, home, f"http://127.0.0.1:{agent}", f"http://127.0.0.1:{engine}"))
    return fleet


def await_version(fleet: Fleet, processes: Processes, version: int, *, timeout_s: float, clock: Clock) -> None:
    """Wait until every node serves `version`, proven. EngineUnavailable, with what each node says, after `timeout_s`."""
    deadline = clock.monotonic() + timeout_s
    while True:
        processes.check()
        states = {node.name: fleet.status(node) for node in fleet.nodes}
        if all(
            s and s["applied"] and s["applied"]["version"] == version and s["applied"]["proven"]
            for s in states.values()
        ):
            return
        if clock.monotonic() > deadline:
            said = "; ".join(_said(name, state) for name, state in states.items())
            raise EngineUnavailable(f"version {version} did not arrive everywhere within {timeout_s:.0f} s: {said}")
        clock.sleep(0.1)


def _said(name: str, state: dict[str, Any] | None) -> str:
    """What a node says of itself, in a few words."""
    if state is None:
        return f"{name} does not answer"
    applied = state["applied"]
    serves = "nothing" if applied is None else f"{applied['version']} {'proven' if applied['proven'] else 'unproven'}"
    return f"{name} serves {serves}, phase {state['phase']}, error: {state['error'] or 'none'}"
