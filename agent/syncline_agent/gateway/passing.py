"""Requests that go on as they are: nothing in them or their answers is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from syncline_agent.gateway.engine import Engine
from syncline_agent.gateway.exchange import EngineLost, Exchange
from syncline_agent.gateway.relay import Down, headers_up
from syncline_agent.gateway.routes import Route
from syncline_agent.gateway.settings import GatewaySettings


async def pass_on(
    request: web.BaseRequest, route: Route, engine: Engine, settings: GatewaySettings
) -> web.StreamResponse:
    """A whole request, streamed both ways."""
    body = _body(request, settings.body_seconds) if request.can_read_body else None
    query = request.rel_url.raw_query_string
    async with engine.ask(request.method, route.path, query, body=body, headers=headers_up(request)) as answer:
        return await pass_down(request, answer, settings)


async def pass_down(
    request: web.BaseRequest,
    answer: Exchange,
    settings: GatewaySettings,
    *,
    begun: bytes = b"",
    more: dict[str, str] | None = None,
) -> web.StreamResponse:
    """An answer, byte for byte; `begun` is what was read of it already, `more` are headers beside its own. EngineLost, after the client's
    connection was cut."""
    with Down(request, settings.stall_seconds) as down:
        response = await down.begin(answer, more, same_length=True)
        down.keep(begun)

        def take(piece: bytes) -> bool:
            down.keep(piece)
            return down.send()

        try:
            while not answer.over:
                await answer.pour(take)
                await down.flush()
        except (EngineLost, TimeoutError):
            down.cut()
            raise
        await down.end()
        return response


async def _body(request: web.BaseRequest, seconds: float) -> AsyncIterator[bytes]:
    """TimeoutError when it stands still."""
    while True:
        async with asyncio.timeout(seconds):
            piece = await request.content.readany()
        if not piece:
            return
        yield piece
