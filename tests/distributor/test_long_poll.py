"""Long polls of `/head`: none holds up the end of the process."""

from __future__ import annotations

import asyncio

import httpx
from aiohttp import web
from aiohttp.typedefs import Handler

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.metrics import Metrics
from syncline.store.memory import MemoryStore
from syncline_distributor.server import HeadBell, make_app
from syncline_distributor.status import Observer, Reporter


def test_a_poll_that_waits_ends_with_the_process(store: MemoryStore, clock: ManualClock) -> None:
    async def polled() -> int:
        observer = Observer(ChainReader(store, "run"), clock, Metrics(), on_head=None)
        reporter = Reporter(observer, None, None, None, [], None)
        arrived = asyncio.Event()

        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            arrived.set()
            return await handler(request)

        app = make_app(reporter, Metrics(), HeadBell(asyncio.get_running_loop()))
        app.middlewares.append(noted)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/head?after=0&timeout=30"
            poll = asyncio.create_task(client.get(url, timeout=60))
            await arrived.wait()
            await asyncio.wait_for(runner.cleanup(), 15)
            return (await poll).status_code

    assert 204 == asyncio.run(polled())
