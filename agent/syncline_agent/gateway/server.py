"""The gateway's HTTP face: what clients may call of the engine, and the gateway's own paths.

/readyz   200 exactly while the agent says that the engine is in service: proven, or by its --serve-unproven yes; else 503 and why
/livez    200 while the process serves HTTP; ignores versions
/health   the engine's own, while the gateway is ready
/status   JSON: what is applied and aimed at, requests here
/metrics  Prometheus

Whatever is not open is 404, whether the engine has it or not.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from structlog.typing import FilteringBoundLogger

from syncline_agent.gateway import refusals
from syncline_agent.gateway.admission import Refused, judge
from syncline_agent.gateway.door import Door
from syncline_agent.gateway.engine import Engine, EngineAway
from syncline_agent.gateway.exchange import EngineLost
from syncline_agent.gateway.labelling import Labelling
from syncline_agent.gateway.measuring import GatewayMetrics
from syncline_agent.gateway.passing import pass_on
from syncline_agent.gateway.pool import PoolPolicy
from syncline_agent.gateway.refusals import Code
from syncline_agent.gateway.relay import ClientGone
from syncline_agent.gateway.routes import Routes, Shape
from syncline_agent.gateway.settings import GatewaySettings
from syncline_agent.gateway.wanted import Wanted


class GatewayServer:
    """Routes over the gateway's parts; starts nothing."""

    def __init__(
        self,
        engine: Engine,
        door: Door,
        labelling: Labelling,
        pool: PoolPolicy,
        settings: GatewaySettings,
        *,
        metrics: GatewayMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._engine = engine
        self._door = door
        self._labelling = labelling
        self._pool = pool
        self._settings = settings
        self._routes = Routes(settings.engine_kind, settings.open_paths)
        self._metrics = metrics
        self._log = log

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/health", self._health)
        app.router.add_get("/status", self._status)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_route("*", "/{path:.*}", self._engines)
        return app

    async def _engines(self, request: web.Request) -> web.StreamResponse:
        route = self._routes.find(request.method, request.path)
        if route is None:
            self._count("refused", Code.NOT_OPEN)
            message = f"{request.method} {request.path:.200} is not open at this gateway"
            return refusals.error(Code.NOT_OPEN, message)
        try:
            if route.shape is not Shape.PLAIN:
                return await self._labelling.handle(request, route)
            response = await pass_on(request, route, self._engine, self._settings)
            self._count("answered", "passed_on")
            return response
        except EngineAway as error:
            self._count("failed", Code.ENGINE_AWAY)
            return refusals.unavailable(Code.ENGINE_AWAY, str(error))
        except EngineLost as error:
            self._count("failed", Code.ENGINE_LOST)
            return refusals.unavailable(Code.ENGINE_LOST, str(error))
        except TimeoutError:
            self._count("refused", Code.SLOW_BODY)
            return refusals.error(Code.SLOW_BODY, "the body did not come")
        except ClientGone:
            self._count("left", "")
            raise web.HTTPRequestTimeout from None
        except asyncio.CancelledError:
            self._count("left", "")
            raise

    async def _readyz(self, _: web.Request) -> web.Response:
        seen = self._door.seen()
        if self._door.ready and seen.applied is not None:
            how = "proven" if seen.applied.proven else "served unproven"
            return web.Response(text=f"{how}: version {seen.applied.version}\n")
        verdict = judge(Wanted(), seen)
        why = verdict.message if isinstance(verdict, Refused) else seen.silence
        return web.Response(status=503, text=f"not proven: {why}\n", headers={"Retry-After": "1"})

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _health(self, request: web.Request) -> web.StreamResponse:
        if not self._door.ready:
            return await self._readyz(request)
        if await self._engine.answers(self._routes.health):
            return web.Response()
        return web.Response(status=503, text="the engine does not answer\n", headers={"Retry-After": "1"})

    async def _status(self, _: web.Request) -> web.Response:
        seen, bounds = self._door.seen(), self._pool.bounds
        state, applied, lag = seen.state, seen.applied, seen.lag
        return web.json_response(
            {
                "ready": self._door.ready,
                "run": state and state.run,
                "view": state and state.view,
                "applied": None if applied is None else applied.version,
                "lineage": applied and applied.lineage,
                "epoch": self._door.epoch,
                "digest": applied and applied.digest,
                "target": state and state.target,
                "head": state and state.head,
                "lag_versions": lag.versions,
                "lag_seconds_most": None if lag.seconds is None else round(lag.seconds, 3),
                "head_age_seconds": None if lag.head_age is None else round(lag.head_age, 3),
                "max_version_lag": bounds and bounds.versions,
                "max_lag_seconds": bounds and bounds.seconds,
                "generation": self._pool.generation,
                "target_error": self._pool.error,
                "agent": seen.silence or "answers",
                "engine": self._settings.engine_url,
                "requests": {"waiting": self._metrics.waiting, "at_engine": self._metrics.begun.total()},
            }
        )

    async def _show_metrics(self, _: web.Request) -> web.Response:
        seen = self._door.seen()
        self._metrics.look(
            applied=None if seen.applied is None else seen.applied.version,
            ready=self._door.ready,
            lag=seen.lag,
            target_error=self._pool.error is not None,
        )
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _count(self, outcome: str, reason: str) -> None:
        self._metrics.requests.labels(outcome, reason).inc()
