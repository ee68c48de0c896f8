"""A request lane in one event loop: a real gateway, the agent's real socket with commits made by hand, and an engine whose
answers are the test's.

The log of commits, the pins and HTTP are those that ship; only what the engine says is made up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import uvloop
from aiohttp import web

from syncline.clock import SystemClock
from syncline.logs import logger
from syncline.metrics import Metrics
from syncline_agent.engine import Applied, Crossing
from syncline_agent.gateway.measuring import GatewayMetrics
from syncline_agent.gateway.process import running
from syncline_agent.gateway.routes import Kind
from syncline_agent.gateway.settings import GatewaySettings
from syncline_agent.lane.advertised import Advertising
from syncline_agent.lane.commits import CommitLog
from syncline_agent.lane.epochs import Epochs
from syncline_agent.lane.face import listen_at, make_face
from syncline_agent.lane.pins import Pins
from syncline_agent.reporting import Reporter
from syncline_agent.status import Identity

MOST_S = 100.0
Told = TypeVar("Told")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def run(scene: Coroutine[Any, Any, Told]) -> Told:
    """In the loop that a gateway runs in, and within `MOST_S`: what ends other tests is a signal, and this loop waits on through one."""
    return uvloop.run(asyncio.wait_for(scene, MOST_S))


def applied(version: int) -> Applied:
    """What is served as this version."""
    return Applied("lineage-1", "main", version, f"{version:032x}", True)


@dataclass
class AgentHere:
    """What a gateway asks of an agent, moved by hand."""

    socket: Path
    name: str = "log-1"
    wakes: int = 0
    version: int | None = None
    _runner: web.AppRunner | None = None

    def __post_init__(self) -> None:
        self.commits = CommitLog(self.name)
        self.pins = Pins(SystemClock())
        self.advertising = Advertising(SystemClock())
        self.epochs = Epochs()
        self.report = Reporter(Identity("c", "n", "p", "node-0"), Metrics())
        self.report.say(run="demo", lineage="lineage-1")

    async def start(self) -> None:
        face = make_face(
            self.report.read,
            self.commits,
            pins=self.pins,
            wake=self._wake,
            advertising=self.advertising,
            epochs=self.epochs,
        )
        self._runner = web.AppRunner(face, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await listen_at(self._runner, self.socket)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def find(self, version: int) -> None:
        """An engine comes that serves this, proven."""
        self.commits.note(Crossing(None, applied(version), None, None))
        self._serves(version)

    def commit(self, version: int, *, spans: Mapping[str, int] | None, ended: Collection[str] | None = ()) -> None:
        """A commit, or an undo."""
        before = None if self.version is None else applied(self.version)
        self.commits.note(Crossing(before, applied(version), spans, ended))
        self._serves(version)

    def lose(self) -> None:
        """The engine went away."""
        self.commits.note(Crossing(None, None, None, None))
        self.version = None
        self.report.say(applied=None, in_service=False, error="no engine to commit to")

    def _serves(self, version: int) -> None:
        self.version = version
        self.report.say(
            applied=applied(version),
            in_service=True,
            target=version,
            head=version,
            lag_versions=0,
            lag_most=0.0,
            head_age=0.0,
        )

    def _wake(self) -> None:
        self.wakes += 1


@dataclass
class EngineHere:
    """An engine whose every answer is the test's; it knows what it was asked, and who hung up."""

    answer: Answer
    asked: list[web.Request] = field(default_factory=list[web.Request])
    bodies: list[bytes] = field(default_factory=list[bytes])
    left: int = 0
    port: int = 0
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        self.bodies.append(await request.read())
        ended = False
        try:
            response = await self.answer(request)
            ended = True
            return response
        finally:
            self.left += not ended


@dataclass
class Lane:
    """The three, and a client."""

    agent: AgentHere
    engine: EngineHere
    http: aiohttp.ClientSession
    url: str
    metrics: GatewayMetrics

    async def ask(self, body: Any, path: str = "/v1/completions", **headers: str) -> tuple[int, Any, Mapping[str, str]]:
        """Status, parsed body and headers of an answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(path, json=body, headers=named) as answer:
            return answer.status, await answer.json(), answer.headers


@asynccontextmanager
async def open_lane(
    folder: Path, answer: Answer, *, kind: Kind = Kind.VLLM, serves: int | None = 7, **settings: Any
) -> AsyncIterator[Lane]:
    """A gateway in front of it all, which knows of `serves`."""
    agent = AgentHere(folder / "gateway.sock")
    if serves is not None:
        agent.find(serves)
    async with AsyncExitStack() as held:
        engine = EngineHere(answer)
        await engine.start()
        held.push_async_callback(engine.stop)
        await agent.start()
        held.push_async_callback(agent.stop)
        metrics = GatewayMetrics()
        wanted = replace(
            GatewaySettings(f"http://127.0.0.1:{engine.port}", kind, agent.socket, state_seconds=0.05), **settings
        )
        address = await held.enter_async_context(
            running(
                wanted,
                clock=SystemClock(),
                randomness=random.Random(1),
                metrics=metrics,
                log=logger("gateway"),
                goodbye_s=0.2,
            )
        )
        url = "http://{}:{}".format(*address)
        http = await held.enter_async_context(
            aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60), auto_decompress=False)
        )
        lane = Lane(agent, engine, http, url, metrics)
        await _wait_known(lane, serves)
        yield lane


async def _wait_known(lane: Lane, serves: int | None) -> None:
    """Until the gateway has heard of the agent."""
    while True:
        async with lane.http.get("/status") as answer:
            said = await answer.json()
        if said["agent"] == "answers" and said["applied"] == serves and (serves is None or said["ready"]):
            return
