"""The service's HTTP face: `/status`, `/head` (long poll), `/metrics`, `/livez`, `/readyz`. It only reads what
the loops know."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from syncline.metrics import Metrics
from syncline.wire.records import VersionManifest
from syncline_distributor.status import Reporter

LONG_POLL_MAX_S = 30.0


class HeadBell:
    """Wakes long polls in the event loop when a loop thread sees a new head."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self.closed = False
        """The process is going down: nobody waits any more."""

    def ring(self, _head: VersionManifest) -> None:
        """Called from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            pass  # the event loop has closed: the process is going down

    def _wake(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def close(self, _app: web.Application) -> None:
        """Let every long poll end now, so that none holds up the end of the process."""
        self.closed = True
        self._wake()

    async def wait(self, timeout_s: float) -> None:
        """Until the next head, or the timeout."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            pass  # the caller looks at what is there and says 204


def make_app(reporter: Reporter, metrics: Metrics, bell: HeadBell) -> web.Application:
    """The application; `/head?after=N&timeout=S` answers once head is beyond N, or 204 after S seconds (at most 30)."""

    async def status(_request: web.Request) -> web.Response:
        return web.json_response(reporter.status())

    async def head(request: web.Request) -> web.Response:
        try:
            after = int(request.query.get("after", "0"))
            timeout = min(LONG_POLL_MAX_S, max(0.0, float(request.query.get("timeout", "30"))))
        except ValueError:
            return web.json_response({"error": "after is a version and timeout is seconds"}, status=400)
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            found = reporter.observer.head
            if found is not None and found.version > after:
                body: dict[str, Any] = {
                    "version": found.version,
                    "epoch": found.epoch,
                    "lineage": found.lineage,
                    "digest": found.digest,
                }
                return web.json_response(body)
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or bell.closed:
                return web.Response(status=204)
            await bell.wait(left)

    async def metric_text(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def livez(_request: web.Request) -> web.Response:
        broken = [loop.name for loop in reporter.loops if loop.broken]
        return web.json_response({"alive": reporter.alive(), "broken": broken}, status=200 if reporter.alive() else 503)

    async def readyz(_request: web.Request) -> web.Response:
        reason = reporter.unready()
        if reason is None:
            return web.json_response({"ready": True})
        return web.json_response({"ready": False, "reason": reason}, status=503)

    app = web.Application()
    app.on_shutdown.append(bell.close)
    app.add_routes(
        [
            web.get("/status", status),
            web.get("/head", head),
            web.get("/metrics", metric_text),
            web.get("/livez", livez),
            web.get("/readyz", readyz),
        ]
    )
    return app
