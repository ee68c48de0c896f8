"""The front door of a fleet: one address for clients in any language; each request goes where its version is served.

Which replica that is, and what is done when it refuses, is the library's (`syncline.route`); bytes go through by the gateway's own
code. It keeps no request, and may be run as often as it is needed.

/livez    200 while the process serves HTTP
/readyz   200 while a request that wishes nothing would be taken
/status   JSON: what is known of each replica
Everything else goes to a replica, which knows what is open.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from aiohttp import web
from yarl import URL

from syncline.errors import NoReplica
from syncline.route import Fleet, Wish
from syncline.route.asking import MOST_REFUSAL_BYTES, Answer, Lost, Unreached
from syncline.route.wishes import AFFINITY, WAIT, read_asked
from syncline_agent.gateway import refusals
from syncline_agent.gateway.engine import Engine, EngineAway
from syncline_agent.gateway.exchange import EngineLost, Exchange
from syncline_agent.gateway.headers import OURS
from syncline_agent.gateway.passing import pass_down
from syncline_agent.gateway.refusals import Code
from syncline_agent.gateway.relay import ClientGone, TooLarge, headers_up, read_body
from syncline_agent.gateway.routes import Kind
from syncline_agent.gateway.settings import GatewaySettings
from syncline_agent.listening import listen

GOODBYE_S = 30.0
"""What answers in flight get when the process ends."""


class FrontDoor:
    """Routes over a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        # Of a gateway's settings only its bounds on clients count here; what it asks is handed in by address.
        self._bounds = GatewaySettings("", Kind.VLLM, Path(), connect_seconds=5.0)
        self._gateways: dict[str, Engine] = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/status", self._status)
        app.router.add_route("*", "/{path:.*}", self._route)
        return app

    async def _route(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await read_body(request, self._bounds)
        except TooLarge:
            most = self._bounds.most_body_bytes
            return refusals.error(Code.BODY_TOO_LARGE, f"the body has more than {most} bytes")
        except TimeoutError:
            return refusals.error(Code.SLOW_BODY, "the body did not come")
        asked = read_asked({name.lower(): value for name, value in request.headers.items()}, body)
        headers = headers_up(request)
        headers.extend({name: value for name, value in request.headers.items() if _is_wish(name)})

        async def ask(url: str, more: Mapping[str, str]) -> Answer:
            base = URL(url)
            sent = headers.copy()
            sent.update(more)
            return await _Answer.of(
                self._gateway(str(base.origin())), request, base.path.rstrip("/"), body=asked.body or None, headers=sent
            )

        try:
            carried = await self._fleet.send(asked.wish, ask)
        except NoReplica as error:
            headers_down = {"x-should-retry": "false", "Retry-After": "1"}
            return web.json_response(error.body(), status=error.status, headers=headers_down)
        except Lost as error:
            return refusals.error(Code.ENGINE_LOST, str(error))
        answer = carried.answer
        assert isinstance(answer, _Answer)
        try:
            ours = {name: value for name, value in answer.exchange.headers.items() if name.lower().startswith(OURS)}
            return await pass_down(request, answer.exchange, self._bounds, begun=answer.begun, more=ours)
        except EngineLost:
            raise web.HTTPBadGateway from None  # its connection was cut: the client knows
        except ClientGone:
            raise web.HTTPRequestTimeout from None
        finally:
            carried.done()
            await answer.close()

    def _gateway(self, origin: str) -> Engine:
        if origin not in self._gateways:
            self._gateways[origin] = Engine(replace(self._bounds, engine_url=origin))
        return self._gateways[origin]

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._fleet.picked(Wish()) is not None:
            return web.Response(text="a replica takes requests\n")
        return web.Response(
            status=503, text="no replica takes requests; /status says why\n", headers={"Retry-After": "1"}
        )

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"replicas": self._fleet.table(), "trouble": self._fleet.trouble})


class _Answer:
    """A gateway's answer, and the connection that it comes on."""

    def __init__(self, exchange: Exchange, held: AsyncExitStack) -> None:
        self.exchange = exchange
        self.begun = b""
        self._held = held

    @classmethod
    async def of(
        cls, gateway: Engine, request: web.Request, prefix: str, *, body: bytes | None, headers: Mapping[str, str]
    ) -> _Answer:
        held, query = AsyncExitStack(), request.rel_url.raw_query_string
        asking = gateway.ask(request.method, prefix + request.path, query, body=body, headers=headers)
        try:
            return cls(await held.enter_async_context(asking), held)
        except EngineAway as error:
            raise Unreached(str(error)) from error
        except EngineLost as error:
            raise Lost(str(error)) from error

    @property
    def status(self) -> int:
        return self.exchange.status

    def header(self, name: str) -> str | None:
        return self.exchange.headers.get(name)

    async def read(self) -> bytes:
        try:
            while piece := await self.exchange.piece():
                self.begun += piece
                if len(self.begun) > MOST_REFUSAL_BYTES:
                    raise Lost("a refusal of more than 64 KiB")
        except EngineLost as error:
            raise Lost(str(error)) from error
        return self.begun

    async def close(self) -> None:
        await self._held.aclose()


async def serve(fleet: Fleet, host: str, port: int, told: asyncio.Future[tuple[str, int]] | None = None) -> None:
    """Until SIGTERM or SIGINT. `told` gets the address."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        FrontDoor(fleet).app(),
        access_log=None,
        handler_cancellation=True,  # a client that hangs up ends its request at the engine, too
        auto_decompress=False,
        shutdown_timeout=GOODBYE_S,
    )
    try:
        await runner.setup()
        address = await listen(runner, host, port)
        if told is not None:
            told.set_result(address)
        await stop.wait()
    finally:
        await runner.cleanup()


def _is_wish(name: str) -> bool:
    return name.lower().startswith(OURS) and name.lower() not in (WAIT, AFFINITY)
