"""The agent's HTTP face: `/status` (its JSON is documented in status.py), `/metrics`, `/readyz`, `/livez`. Reads
only.

`/readyz` is 200 exactly while the replica is proven and in service; staleness is refused a request, not a pod.
`/livez` says that the follower's thread runs, and ignores versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from syncline_agent.status import Status


def make_app(
    status: Callable[[], Status],
    *,
    heartbeats: Callable[[], str],
    alive: Callable[[], bool],
    registry: CollectorRegistry,
) -> web.Application:
    """Routes over what is handed in; starts nothing."""

    async def show_status(_request: web.Request) -> web.Response:
        body = status().to_json(heartbeats=heartbeats())
        return web.json_response(body, dumps=lambda value: json.dumps(value, indent=2))

    async def show_metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def ready(_request: web.Request) -> web.Response:
        now = status()
        if now.in_service and now.applied is not None:
            return web.Response(text=f"proven: version {now.applied.version}\n")
        return web.Response(status=503, text=f"not proven: {now.error or now.phase.value}\n")

    async def live(_request: web.Request) -> web.Response:
        if alive():
            return web.Response(text="alive\n")
        return web.Response(status=500, text="the follower's thread has ended; restart the agent\n")

    app = web.Application()
    app.router.add_get("/status", show_status)
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/livez", live)
    return app
