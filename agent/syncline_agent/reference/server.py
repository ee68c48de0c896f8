"""The engine's HTTP face.

POST /v1/completions  OpenAI's, with the versions that produced the tokens (completions.py)
GET  /v1/models       the one model
GET  /readyz          200 only while what is served is proven and the arm was not turned away
GET  /livez           200 while the process serves HTTP; ignores versions
GET  /status          JSON: engine, pool, pod, model; `unready` and `error`: why not, or null; `applied` {lineage, view,
                      version, digest, proven} or null; `arm`: connected, or connecting or refused and why;
                      `requests` {active, waiting}: sequences
GET  /metrics         Prometheus

What cannot be served now is 503 with Retry-After; what can never be is 400 (404 for another model), in OpenAI's shape.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from syncline.clock import Clock
from syncline.metrics import Metrics
from syncline_agent.reference import answers
from syncline_agent.reference.completions import Completions
from syncline_agent.reference.engine import ReferenceEngine

BODY_MAX_BYTES = 16 << 20

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class EngineServer:
    """Routes over one engine; starts nothing."""

    def __init__(self, engine: ReferenceEngine, *, clock: Clock, randomness: random.Random, metrics: Metrics) -> None:
        self._engine = engine
        self._clock, self._random, self._metrics = clock, randomness, metrics
        self._completions: Completions | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=BODY_MAX_BYTES, middlewares=[_openai_errors])
        app.add_routes(
            [
                web.post("/v1/completions", self._complete),
                web.get("/v1/models", self._models),
                web.get("/readyz", self._readyz),
                web.get("/livez", self._livez),
                web.get("/status", self._status),
                web.get("/metrics", self._show_metrics),
            ]
        )
        return app

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        running = self._engine.running
        if running is None:
            return web.json_response(
                answers.error(str(self._engine.unready), kind="unavailable", code="engine_not_ready"),
                status=503,
                headers={"Retry-After": "1"},
            )
        if self._completions is None:
            self._completions = Completions(
                running.scheduler, running.limits, clock=self._clock, randomness=self._random, metrics=self._metrics
            )
        return await self._completions.handle(http)

    async def _models(self, _: web.Request) -> web.Response:
        name = self._engine.settings.model
        return web.json_response(
            {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "syncline"}]}
        )

    async def _readyz(self, _: web.Request) -> web.Response:
        unready = self._engine.unready
        return web.json_response({"ready": unready is None, "reason": unready}, status=200 if unready is None else 503)

    async def _livez(self, _: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def _status(self, _: web.Request) -> web.Response:
        settings, running = self._engine.settings, self._engine.running
        body: dict[str, Any] = {
            "engine": "reference",
            "pool": settings.pool,
            "pod": settings.pod,
            "model": settings.model,
            "unready": self._engine.unready,
            "applied": None,
            "error": None,
            "arm": None,
            "requests": {"active": 0, "waiting": 0},
        }
        if running is not None:
            applied = running.live.applied
            active, waiting = running.scheduler.load
            body |= {
                "applied": None if applied is None else asdict(applied),
                "error": running.scheduler.error,
                "arm": running.arm.connection,
                "requests": {"active": active, "waiting": waiting},
            }
        return web.json_response(body)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


@web.middleware
async def _openai_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """What aiohttp itself refuses (no such path, too large a body) in the shape of everything else."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return web.json_response(
            answers.error(error.reason, kind="invalid_request_error"), status=error.status, headers=_allow(error)
        )


def _allow(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
