"""A trainer asks two real replicas that it finds by their heartbeats, by the front door and by the library, while versions are
committed, one of them lags, and one is killed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from syncline.route import FleetSettings, Wish, open_fleet
from syncline.route.roster import RosterSettings
from syncline_agent.testing.gateways import GatewayProcess

MODEL = "syncline-reference"
PATIENCE_S = 100.0
CLIENTS = 4


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return free.getsockname()[1]


class OneNode:
    """An agent, an engine and a gateway that says where it is reached."""

    def __init__(self, fleet: Any, name: str) -> None:
        self.fleet = fleet
        self.of = replace(fleet.tiny, node=fleet.folder / name)
        self.of.node.mkdir()
        self.target = fleet.folder / f"target-{name}.json"
        self.aim({"mode": "Latest"})
        flags = {
            "--store": str(fleet.store),
            "--target": str(self.target),
            "--node-dir": str(self.of.node),
            "--pool": "default",
            "--node": name,
            "--port": "0",
        }
        with (fleet.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "syncline_agent", *(part for pair in flags.items() for part in pair)]
            self.agent = subprocess.Popen(command, stderr=log)
        self.engine = fleet.start_engine("--slots", "6", ready=False, node=self.of)

    def aim(self, version: dict[str, Any]) -> None:
        new = Path(f"{self.target}.new")
        new.write_text(json.dumps({"run": "demo", "version": version}))
        new.rename(self.target)

    def open_gateway(self) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        url = str(self.engine.http.base_url).rstrip("/")
        self.gateway = GatewayProcess(url, "reference", self.of.node, "--advertise", self.url, port=int(port))
        self.gateway.wait_ready()

    def stop(self) -> None:
        self.agent.kill()
        self.agent.wait(10)
        if hasattr(self, "gateway"):
            self.gateway.stop()


@pytest.fixture
def node_called() -> Iterator[Callable[[Any, str], OneNode]]:
    with ExitStack() as held:

        def start(fleet: Any, name: str) -> OneNode:
            node = OneNode(fleet, name)
            held.callback(node.stop)
            return node

        yield start


@pytest.fixture
def front_door(fleet: Any) -> Iterator[Callable[[], str]]:
    """`syncline route` as a process; its address."""
    started: list[subprocess.Popen[str]] = []

    def start() -> str:
        command = [sys.executable, "-m", "syncline_cli", "route", "--store", str(fleet.store), "--run", "demo"]
        door = subprocess.Popen(
            [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        started.append(door)
        assert door.stdout is not None
        return json.loads(door.stdout.readline())["url"]

    yield start
    for door in started:
        door.terminate()
        assert 0 == door.wait(60)


def wait_until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not holds():
        pause.wait(0.05)


@pytest.mark.timeout(400)
def test_requests_find_the_replica_that_serves_their_version_whatever_happens_to_the_others(
    fleet: Any, node_called: Callable[[Any, str], OneNode], front_door: Callable[[], str]
) -> None:
    fleet.publish(1)
    a, b = node_called(fleet, "a"), node_called(fleet, "b")
    for node in (a, b):
        fleet.wait_serving(node.engine, 1)
        node.open_gateway()
    b.aim({"mode": "Pinned", "version": 1})
    table: list[dict[str, Any]] = []

    async def named() -> None:
        quick = FleetSettings(roster=RosterSettings(members_seconds=0.2))
        async with open_fleet(str(fleet.store), run="demo", settings=quick) as opened:
            while len(opened.table()) < 2:
                await asyncio.sleep(0.05)
            table[:] = opened.table()
            # the library, by the official client
            http: Any = opened.http  # the client's types name the httpx that it brings, and it takes either
            client = openai.AsyncOpenAI(
                base_url=opened.base_url, api_key="none", http_client=http, max_retries=0, timeout=PATIENCE_S
            )
            told = await client.completions.create(model=MODEL, prompt="1+2=", max_tokens=4, stream=True)
            events: list[Any] = [chunk.to_dict() async for chunk in told]
            assert [1] == [e["weight_version"]["end"] for e in events if "weight_version" in e]
            models = await client.models.list()
            assert [MODEL] == [model.id for model in models.data]
            assert {a.url, b.url} == {opened.picked(Wish(affinity=str(n))) for n in range(40)}

    asyncio.run(asyncio.wait_for(named(), PATIENCE_S))
    assert {(a.url, "local/default/default/a", 1), (b.url, "local/default/default/b", 1)} == {
        (row["url"], row["replica"], row["applied"]) for row in table
    }

    url = front_door()
    newest, over, killed = 1, threading.Event(), threading.Event()
    seen: list[int] = []
    cut_off: list[Exception] = []

    def keep_asking(number: int) -> None:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
        seed = number
        while not over.is_set():
            seed += CLIENTS
            least = newest
            wish = {"weight_version": {"min": least, "wait_seconds": PATIENCE_S}, "ignore_eos": True}
            more: dict[str, Any] = {
                "model": MODEL,
                "prompt": "1+2=",
                "max_tokens": 24,
                "seed": seed,
                "extra_body": wish,
            }
            try:
                if seed % 2:
                    said = [chunk.to_dict() for chunk in client.completions.create(stream=True, **more)]
                    label: Any = next(event["weight_version"] for event in said if "weight_version" in event)
                else:
                    label = client.completions.create(**more).to_dict()["weight_version"]
            except Exception as error:
                assert killed.is_set(), f"failed while nothing was killed: {error!r}"
                cut_off.append(error)
                continue
            assert label["start"] >= least, (least, label)
            seen.append(label["end"])

    with ThreadPoolExecutor(CLIENTS) as clients:
        asking = [clients.submit(keep_asking, number) for number in range(CLIENTS)]
        try:
            for version in (2, 3):
                fleet.publish(version)
                newest = version
                wait_until(lambda v=version: seen.count(v) >= CLIENTS or any(f.done() for f in asking))
            b.aim({"mode": "Latest"})  # it lagged all the while, on version 1
            fleet.wait_serving(b.engine, 3)
            killed.set()
            a.gateway.process.kill()  # in the middle of answers; those that had not begun go to the other
            lost = len(seen)
            wait_until(lambda: len(seen) > lost + 3 * CLIENTS or any(f.done() for f in asking))
        finally:
            over.set()
        for future in asking:
            future.result(PATIENCE_S)
    # Only a stream that had begun when its gateway was killed may break, and so no client twice.
    assert len(cut_off) <= CLIENTS, cut_off
    assert all(type(error).__module__.startswith(("openai", "httpx")) for error in cut_off), cut_off
    assert not any(isinstance(error, openai.APIStatusError) for error in cut_off), cut_off
    assert {2, 3} <= set(seen)
    told = subprocess.run(
        [
            *(sys.executable, "-m", "syncline_cli", "route", "--once", "--json", "--min", "3"),
            *("--gateway", a.url, "--gateway", b.url),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    shown = json.loads(told.stdout)
    assert (0, b.url) == (told.returncode, shown["picked"])
    assert ["no", "now"] == [row["able"] for row in shown["replicas"]]
