"""The gateway process: builds the parts, serves until it is told to stop, lets answers end. Knows no rule of the lane."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline_agent.gateway.advertising import advertised
from syncline_agent.gateway.agent import Agent
from syncline_agent.gateway.bounds import Bounds
from syncline_agent.gateway.door import Door
from syncline_agent.gateway.engine import Engine
from syncline_agent.gateway.labelling import Labelling
from syncline_agent.gateway.measuring import GatewayMetrics
from syncline_agent.gateway.mirror import Mirror
from syncline_agent.gateway.pool import PoolPolicy
from syncline_agent.gateway.server import GatewayServer
from syncline_agent.gateway.settings import GatewaySettings
from syncline_agent.listening import listen
from syncline_agent.policy import TargetFile

GOODBYE_S = 30.0
"""What answers in flight get when the process ends."""
COLLECT_AT = 10_000, 100, 100
"""Python's own 700, 10, 10 look at all that is held for two hundred streams each time some of them begin, for tens of milliseconds. A
request leaves no circles, so there is nearly nothing to find."""
LINGER_S = 1.0
"""How long a body that was refused is still read, so that its client sees why."""


@asynccontextmanager
async def running(
    settings: GatewaySettings,
    *,
    clock: Clock,
    randomness: random.Random,
    metrics: GatewayMetrics,
    log: FilteringBoundLogger,
    goodbye_s: float = GOODBYE_S,
) -> AsyncIterator[tuple[str, int]]:
    """A gateway that listens; the address. Rejected when that cannot be had."""
    agent, engine = Agent(settings.socket), Engine(settings)
    mirror = Mirror(agent, clock=clock, state_seconds=settings.state_seconds, log=log)
    pool = PoolPolicy(
        None if settings.target is None else TargetFile(settings.target),
        Bounds(settings.max_version_lag, settings.max_lag_seconds),
        log=log,
    )
    pool.look()
    door = Door(mirror, agent, pool, settings, clock=clock, metrics=metrics)
    labelling = Labelling(engine, mirror, door, settings, randomness=randomness, metrics=metrics)
    server = GatewayServer(engine, door, labelling, pool, settings, metrics=metrics, log=log)
    runner = web.AppRunner(
        server.app(),
        access_log=None,
        handler_cancellation=True,  # a client that hangs up ends its request at the engine, too
        keepalive_timeout=settings.head_seconds,
        lingering_time=LINGER_S,
        auto_decompress=False,
        shutdown_timeout=goodbye_s,
    )
    following = asyncio.gather(mirror.follow(), pool.follow())
    try:
        await runner.setup()
        address = await listen(runner, settings.host, settings.port)
        async with advertised(settings.advertise, agent, metrics=metrics, log=log):
            yield address
    finally:
        await runner.cleanup()
        await door.close()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await agent.close()


async def serve(
    settings: GatewaySettings,
    *,
    clock: Clock,
    randomness: random.Random,
    metrics: GatewayMetrics,
    log: FilteringBoundLogger,
) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(settings, clock=clock, randomness=randomness, metrics=metrics, log=log) as address:
        gc.collect()
        gc.freeze()  # what stands by now is never looked at again
        gc.set_threshold(*COLLECT_AT)
        log.info(
            "gateway listening",
            address="{}:{}".format(*address),
            engine=settings.engine_url,
            socket=str(settings.socket),
        )
        await stop.wait()
        log.info("stopping")
