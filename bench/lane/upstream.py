"""An engine that streams tokens at a pace and says in each when it was sent, and the agent's socket beside it.

Run as a process: `python -m bench.lane.upstream NODE_DIR PORT`. A request's `max_tokens` events come at `pace` a second, or as
fast as they are taken where that is 0.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from aiohttp import web

from syncline_agent.testing.lanes import AgentHere


async def stream(request: web.Request) -> web.StreamResponse:
    asked: dict[str, Any] = await request.json()
    if not asked.get("stream"):
        choice = {"index": 0, "text": "a", "finish_reason": "length"}
        return web.json_response({"id": "cmpl-1", "choices": [choice], "usage": {"completion_tokens": 1}})
    pace, tokens = float(asked["pace"]), int(asked["max_tokens"])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    began = monotonic()
    for at in range(tokens):
        if pace:
            await asyncio.sleep(max(0.0, began + at / pace - monotonic()))
        finish = '"length"' if at == tokens - 1 else "null"
        await response.write(
            b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","sent":%.6f,"choices":[{"index":0,'
            b'"text":"a","logprobs":null,"finish_reason":%s,"token_ids":[17]}]}\n\n' % (monotonic(), finish.encode())
        )
        if not pace and at % 32 == 0:
            await asyncio.sleep(0)
    await response.write(b"data: [DONE]\n\n")
    return response


async def main(node_dir: Path, port: int) -> None:
    agent = AgentHere(node_dir / "gateway.sock")
    agent.find(1)
    await agent.start()
    app = web.Application()
    app.router.add_post("/v1/completions", stream)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
