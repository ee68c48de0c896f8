"""What requests leave behind in the gateway's process: nothing that waits for Python's collector, which stops every stream."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path

from aiohttp import web

from syncline_agent.testing.lanes import Lane, open_lane, run

ASK = {"model": "m", "prompt": "x", "stream": True}


async def answer(request: web.Request) -> web.StreamResponse:
    asked = await request.json() if request.method == "POST" else {}
    last = {"choices": [{"index": 0, "token_ids": [1], "finish_reason": "stop"}]}
    if not asked.get("stream"):
        return web.json_response(last)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"choices": [{"index": 0, "token_ids": [1], "finish_reason": null}]}\n\n')
    if asked["prompt"] == "dies":
        assert request.transport is not None
        request.transport.abort()
        return response
    if asked["prompt"] == "waits":
        await asyncio.Event().wait()
    await response.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    return response


async def every_way(lane: Lane) -> None:
    """Answered whole and as a stream, refused, broken off by either side, passed on."""
    for body in (ASK | {"stream": False}, {"weight_version": {"min": 9, "wait_seconds": 0}}):
        await lane.ask(body)
    for prompt in ("x", "dies"):
        async with lane.http.post("/v1/completions", json=ASK | {"prompt": prompt}) as got:
            await got.read()
    async with lane.http.post("/v1/completions", json=ASK | {"prompt": "waits"}) as got:
        await got.content.readany()
        got.close()
    async with lane.http.get("/v1/models") as got:
        await got.read()


def test_no_part_of_the_gateway_waits_for_the_collector_when_its_request_is_over(tmp_path: Path) -> None:
    async def go() -> list[str]:
        async with open_lane(tmp_path, answer) as lane:
            await every_way(lane)
            gc.collect()
            gc.set_debug(gc.DEBUG_SAVEALL)
            for _ in range(3):
                await every_way(lane)
            while lane.metrics.begun.total():
                await asyncio.sleep(0.01)
            gc.collect()
            return sorted({f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage})

    try:
        left = run(go())
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert [] == [name for name in left if name.startswith(("syncline_agent.gateway", "httptools"))]
