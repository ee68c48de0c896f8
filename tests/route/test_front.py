"""The front door: what it passes both ways, what it says by itself, and that its clients and theirs are told apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from syncline_agent.listening import listen
from syncline_cli.front import FrontDoor

BODY = {"model": "m", "prompt": "x", "max_tokens": 4}
Open = Callable[..., Any]


@asynccontextmanager
async def door_of(here: Any) -> AsyncIterator[aiohttp.ClientSession]:
    runner = web.AppRunner(
        FrontDoor(here.fleet).app(), handler_cancellation=True, auto_decompress=False, shutdown_timeout=0.2
    )
    await runner.setup()
    address = await listen(runner, "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession("http://{}:{}".format(*address)) as session:
            yield session
    finally:
        await runner.cleanup()


def test_wishes_go_up_and_what_the_gateway_says_of_versions_comes_down(open_here: Open) -> None:
    async def go() -> None:
        async with open_here({"a": 6, "b": 7}) as here, door_of(here) as http:
            wishes = {"x-syncline-min-version": "7", "x-syncline-affinity": "s", "x-syncline-wait-seconds": "30"}
            async with http.post("/v1/completions", json=BODY, headers=wishes | {"x-request-id": "mine"}) as answer:
                assert (200, "7") == (answer.status, answer.headers["x-syncline-version-start"])
                assert answer.headers["X-Request-Id"].startswith("mine-")
                assert 7 == (await answer.json())["weight_version"]["end"]
            asked = here.lanes["b"].engine.asked[0]
            assert "/v1/completions" == asked.path
            async with http.post("/v1/completions?x=1", json=BODY | {"weight_version": {"exact": 6}}) as answer:
                assert (200, "a") == (answer.status, (await answer.json())["choices"][0]["text"])
            async with http.get("/v1/admin") as answer:
                assert (404, "not_open") == (answer.status, (await answer.json())["error"]["code"])
            assert all(row["in_flight"] == 0 for row in here.fleet.table())

    asyncio.run(go())


def test_it_says_by_itself_whether_and_why_not(open_here: Open) -> None:
    async def go() -> None:
        async with open_here({"a": 6}) as here, door_of(here) as http:
            async with http.get("/readyz") as answer:
                assert 200 == answer.status
            async with http.post("/v1/completions", json=BODY, headers={"x-syncline-exact-version": "3"}) as answer:
                error = (await answer.json())["error"]
                assert (409, "no_replica", False) == (answer.status, error["code"], error["retry"])
                assert "false" == answer.headers["x-should-retry"]
            here.lanes["a"].agent.lose()
            await here.until(lambda row: not row["proven"])
            async with http.get("/readyz") as answer:
                assert 503 == answer.status
            async with http.get("/status") as answer:
                told = (await answer.json())["replicas"]
                assert ["nothing proven is served there"] == [row["why"] for row in told]
            headers = {"x-syncline-wait-seconds": "0.1"}
            async with http.post("/v1/completions", json=BODY, headers=headers) as answer:
                assert 503 == answer.status

    asyncio.run(go())


def test_a_client_that_hangs_up_ends_its_request_at_the_engine(open_here: Open) -> None:
    async def go() -> None:
        begun = asyncio.Event()

        async def answer(_: web.Request) -> web.StreamResponse:
            begun.set()
            await asyncio.sleep(1000)
            raise AssertionError

        async with open_here({"a": 7}, answers={"a": answer}) as here, door_of(here) as http:
            asking = asyncio.create_task(http.post("/v1/completions", json=BODY).__aenter__())
            await begun.wait()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            while not here.lanes["a"].engine.left:
                await asyncio.sleep(0.01)
            await here.until(lambda row: row["in_flight"] == 0)

    asyncio.run(go())


def test_a_stream_that_breaks_off_breaks_off_for_the_client(open_here: Open) -> None:
    async def go() -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            await response.write(b"half")
            assert request.transport is not None
            request.transport.abort()
            return response

        async with open_here({"a": 7}, answers={"a": answer}) as here, door_of(here) as http:
            try:
                async with http.post("/v1/completions", json=BODY) as got:
                    await got.read()
                    whole = True
            except aiohttp.ClientError:
                whole = False
            assert not whole
            assert 1 == len(here.asked)

    asyncio.run(go())
