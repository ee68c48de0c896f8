"""The agent's HTTP face: `/status` (its JSON is documented in status.py), `/metrics`, `/readyz`, `/livez`, and
`POST /verify`, which has the engine sweep all its live memory now: 200 with `{version, digest, lineage, proven}`, 409
when memory holds something else, 503 when no engine can answer. Who asks while a sweep runs gets the answer of that
sweep. Nothing here changes what is served.

`/readyz` is 200 exactly while the replica is in service: proven, or by `--serve-unproven yes` without proof, which it then
says; staleness is refused a request, not a pod.
`/livez` says that the follower's thread runs, and ignores versions.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from syncline.errors import Corrupt, SynclineError
from syncline_agent.engine import Applied
from syncline_agent.lane.advertised import Advertised
from syncline_agent.status import Status


def make_app(
    status: Callable[[], Status],
    *,
    heartbeats: Callable[[], str],
    alive: Callable[[], bool],
    sweep: Callable[[], Applied],
    registry: CollectorRegistry,
    gateway: Callable[[], Advertised | None] = lambda: None,
) -> web.Application:
    """Routes over what is handed in; starts nothing."""

    async def show_status(_request: web.Request) -> web.Response:
        beside = gateway()
        said = None if beside is None else dataclasses.asdict(beside)
        body = {**status().to_json(heartbeats=heartbeats()), "gateway": said}
        return web.json_response(body, dumps=lambda value: json.dumps(value, indent=2))

    async def show_metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def ready(_request: web.Request) -> web.Response:
        now = status()
        applied = now.applied
        if now.in_service and applied is not None and not applied.proven:
            why = now.engine.unprovable if now.engine is not None else None
            return web.Response(text=f"served unproven: version {applied.version} (--serve-unproven yes): {why}\n")
        if now.in_service and applied is not None:
            second = now.engine.second if now.engine is not None else None
            also = "" if second is None else f"; {second}"
            return web.Response(text=f"proven: version {applied.version}{also}\n")
        return web.Response(status=503, text=f"not proven: {now.error or now.phase.value}\n")

    async def live(_request: web.Request) -> web.Response:
        if alive():
            return web.Response(text="alive\n")
        return web.Response(status=500, text="the follower's thread has ended; restart the agent\n")

    sweeping: asyncio.Task[Applied] | None = None

    async def verify(_request: web.Request) -> web.Response:
        nonlocal sweeping
        if sweeping is None or sweeping.done():
            sweeping = asyncio.create_task(asyncio.to_thread(sweep))
            # Also when everybody who asked has hung up: a failure that nobody waits for is no news to asyncio.
            sweeping.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            held = await asyncio.shield(sweeping)
        except SynclineError as error:
            body = {"error": {"type": type(error).__name__, "message": str(error)}}
            return web.json_response(body, status=409 if isinstance(error, Corrupt) else 503)
        return web.json_response(dataclasses.asdict(held))

    app = web.Application()
    app.router.add_get("/status", show_status)
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/livez", live)
    app.router.add_post("/verify", verify)
    return app
