"""Tells the agent, again and again, where this gateway is reached and how much it has to do; at its end, that it is not any more.

Only where the gateway was told its address: behind a sidecar's loopback, a Service or an ingress nobody can guess it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from structlog.typing import FilteringBoundLogger

from syncline_agent.gateway.agent import Agent, AgentSilent
from syncline_agent.gateway.measuring import GatewayMetrics
from syncline_agent.lane.advertised import REPEAT_S


@asynccontextmanager
async def advertised(
    url: str | None, agent: Agent, *, metrics: GatewayMetrics, log: FilteringBoundLogger
) -> AsyncIterator[None]:
    """As long as the gateway listens."""
    if url is None:
        yield
        return
    telling = asyncio.create_task(_tell(url, agent, metrics, log))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        try:
            await agent.withdraw()
        except AgentSilent:
            pass  # it forgets by itself


async def _tell(url: str, agent: Agent, metrics: GatewayMetrics, log: FilteringBoundLogger) -> None:
    told = True
    while True:
        try:
            await agent.advertise(url, waiting=metrics.waiting, at_engine=metrics.begun.total())
            told = True
        except AgentSilent as error:
            if told:
                log.warning("the agent does not hear where this gateway is reached", error=str(error))
            told = False
        await asyncio.sleep(REPEAT_S)
