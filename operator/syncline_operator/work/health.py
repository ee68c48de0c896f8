"""Whether this process is alive and ready, and its metrics, by HTTP: `/livez`, `/readyz`, `/metrics`.

Alive says that starting anew would not help: an API server that is down is no reason, a look that never ends or a watch
that tells nothing is. Ready says that this process knows the cluster and could lead; it does not depend on leading, or
a roll-out of two would never end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from syncline_operator.kube.resources import Resource
from syncline_operator.work.queue import WorkQueue
from syncline_operator.work.seen import Seen


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """When a process is given up."""

    queue_age_s: float = 300.0
    """An object that was due for so long, while this process led."""
    lists_missed: int = 2
    """So many lists in a row that found what the watch of that kind had not told."""


class Health:
    """Asked by the probes."""

    def __init__(
        self,
        settings: HealthSettings,
        *,
        queue: WorkQueue,
        works: Callable[[], bool],
        missed: Mapping[Resource, int],
        seen: Iterable[Seen],
        failed: Mapping[Resource, str],
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._works = works
        self._missed = missed
        self._seen = list(seen)
        self._failed = failed

    def wrong(self) -> str | None:
        """Why this process should be started anew; None while it should not."""
        age_s = self._queue.age_s
        if self._works() and age_s > self._settings.queue_age_s:
            return f"an object has been due for {age_s:.0f} s, more than {self._settings.queue_age_s:g}"
        for resource, times in self._missed.items():
            if times >= self._settings.lists_missed:
                return f"the watch of {resource.plural} is stuck: {times} lists in a row found what it had not told"
        return None

    def unready(self) -> str | None:
        """What is not known yet; None once this process could lead."""
        missing = [seen.resource for seen in self._seen if not seen.whole]
        if not missing:
            return None
        told = "; ".join(self._failed[resource] for resource in missing if resource in self._failed)
        return f"not listed yet: {', '.join(resource.plural for resource in missing)}{told and f' ({told})'}"


def make_app(health: Health, registry: CollectorRegistry) -> web.Application:
    """Routes over what is handed in; starts nothing."""

    async def live(_request: web.Request) -> web.Response:
        wrong = health.wrong()
        return web.Response(text="alive\n") if wrong is None else web.Response(status=500, text=f"{wrong}\n")

    async def ready(_request: web.Request) -> web.Response:
        missing = health.unready()
        return web.Response(text="ready\n") if missing is None else web.Response(status=503, text=f"{missing}\n")

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/livez", live)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", metrics)
    return app
