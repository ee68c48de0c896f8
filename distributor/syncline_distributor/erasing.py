"""Deleting a whole view of a run: what `syncline-distributor erase` does, and nothing else ever does.

Only objects of the named lineage: a name that another training has taken since is refused. What leads goes before what
it leads to (head, manifests, then chunks and files), so that at no moment anybody is led to what is gone; run.json goes
last, and stays while the run has another view. A pass that was cut off is taken up by the next. Whoever still writes
is not fenced: end the trainer first.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from syncline.chain import ChainReader
from syncline.errors import LineageChanged, NotFound, SynclineError
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.store.keys import RunKeys, ViewKeys
from syncline_distributor.loops import Loop

log = structlog.get_logger()
AT_ONCE = 16
"""Deletes on their way; a store answers each in milliseconds to tens of them."""
BATCH = 512
TOLD = 16
"""Keys that `/status` names of what is left."""


@dataclass(slots=True)
class Eraser:
    """One view of one run on its way out."""

    store: WeightStore
    keys: ViewKeys
    lineage: str
    deleted: int = 0
    left: Sequence[str] = ()
    """As of the last look, in the order in which they go."""
    done: bool = False
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "syncline-erase"))

    def tick(self) -> float | None:
        """One pass; None once nothing is left. LineageChanged where the name is another training's now."""
        self._check()
        self.left = sorted((info.key for info in self.store.list_after(self.keys.prefix)), key=self._order)
        while self.left:
            batch = [key for key in self.left[:BATCH] if self._order(key)[0] == self._order(self.left[0])[0]]
            errors = dict(zip(batch, self._pool.map(self._delete, batch), strict=True))
            failed = [key for key, error in errors.items() if error is not None]
            self.deleted += len(batch) - len(failed)
            self.left = [*failed, *self.left[len(batch) :]]
            for error in filter(None, errors.values()):
                raise error
        if next(iter(self.store.list_after(self.keys.prefix, limit=1)), None) is not None:
            return 0.0  # a node wrote its heartbeat meanwhile
        self._end_run()
        self.done = True
        log.info("erased", deleted=self.deleted, run=self.keys.run, view=self.keys.view, phase="erase")
        return None

    def _delete(self, key: str) -> SynclineError | None:
        try:
            self.store.delete(key)
        except SynclineError as error:
            return error
        return None

    def _check(self) -> None:
        try:
            found = ChainReader(self.store, self.keys.run, self.keys.view).run_record().lineage
        except NotFound:
            return  # an earlier process came as far as run.json
        if found != self.lineage:
            raise LineageChanged(
                f"run {self.keys.run} in {self.store.url} belongs to lineage {found}, not to {self.lineage}: another "
                "training has taken the name, and nothing of it is deleted"
            )

    def _end_run(self) -> None:
        run = RunKeys(self.keys.run)
        others = (info.key for info in self.store.list_after(run.prefix) if info.key != run.run_json)
        if next(others, None) is None:
            self.store.delete(run.run_json)
            self.deleted += 1

    def _order(self, key: str) -> tuple[int, str]:
        keys = self.keys
        if key == keys.head:
            return 0, key
        if key.startswith(keys.versions):
            return 1, key
        if key.startswith(keys.skips) or (key.startswith(keys.anchors) and key.endswith("/manifest.json")):
            return 2, key
        return 3, key


def erasing_status(eraser: Eraser, loop: Loop) -> dict[str, Any]:
    """`/status` while a run is erased:

    {"run", "view", "store": {"url"},
     "erasure": {"deleted", "left_count", "left": [the first keys that are left], "done",
                 "error": what stopped the last pass or null, "kind": class of that error or null}}
    """
    return {
        "run": eraser.keys.run,
        "view": eraser.keys.view,
        "store": {"url": eraser.store.url},
        "erasure": {
            "deleted": eraser.deleted,
            "left_count": len(eraser.left),
            "left": list(eraser.left[:TOLD]),
            "done": eraser.done,
            "error": loop.error,
            "kind": loop.kind,
        },
    }


def make_erasing_app(eraser: Eraser, loop: Loop, metrics: Metrics) -> web.Application:
    """`/status`, `/metrics`, `/livez` and `/readyz`, as they are elsewhere."""

    async def status(_request: web.Request) -> web.Response:
        return web.json_response(erasing_status(eraser, loop))

    async def metric_text(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def livez(_request: web.Request) -> web.Response:
        return web.json_response({"alive": not loop.broken}, status=503 if loop.broken else 200)

    async def readyz(_request: web.Request) -> web.Response:
        return web.json_response({"ready": True})

    app = web.Application()
    app.add_routes(
        [
            web.get("/status", status),
            web.get("/metrics", metric_text),
            web.get("/livez", livez),
            web.get("/readyz", readyz),
        ]
    )
    return app
