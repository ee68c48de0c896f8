"""The list behind the watches: every few minutes all objects are read, all are due for a look, and what no watch had
told is counted.

A watch that keeps missing what lists find is stuck; liveness then has the process started anew.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import SynclineError
from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.resources import Document, ObjectKey, Resource
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.work.queue import WorkQueue
from syncline_operator.work.seen import Seen, Suspect


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of objects that are watched, and which objects one of them has looked at."""

    resource: Resource
    leads_to: Callable[[Document], Iterable[ObjectKey]]
    labels: str = ""
    """A selector that the server applies."""
    trim: Callable[[Document], Document] = lambda document: document
    """What is kept of an object."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """When lists are read."""

    every_s: float = 300.0
    grace_s: float = 10.0
    """For how long after a list the watch may still tell what it found."""
    again_s: float = 5.0
    """After a list that failed."""


class Sweep:
    """Lists all sources, for all namespaces that the operator serves."""

    def __init__(
        self,
        client: KubeClient,
        sources: Sequence[Source],
        seen: dict[Resource, Seen],
        queue: WorkQueue,
        settings: SweepSettings,
        *,
        namespaces: Sequence[str],
        metrics: OperatorMetrics,
        clock: Clock,
        randomness: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._sources = sources
        self._seen = seen
        self._queue = queue
        self._settings = settings
        self._namespaces = namespaces or ("",)
        self._metrics = metrics
        self._clock = clock
        self._randomness = randomness
        self._log = log
        self.in_row: dict[Resource, int] = {source.resource: 0 for source in sources}
        """How many lists in a row found what the watch had missed."""
        self.failed: dict[Resource, str] = {}
        """Why the newest list of a kind could not be read."""
        for source in sources:  # a counter that is not there yet cannot be alerted on
            metrics.missed_events.labels(source.resource.kind)

    async def run(self) -> None:
        """Sweep until cancelled, the first time at once."""
        while True:
            whole = await self.sweep()
            pause_s = self._settings.every_s * self._randomness.uniform(0.9, 1.1) if whole else self._settings.again_s
            await asyncio.sleep(pause_s)

    async def sweep(self) -> bool:
        """One list of every source; whether all could be read."""
        found: list[tuple[Source, list[Suspect]]] = []
        for source in self._sources:
            seen = self._seen[source.resource]
            seen.begin_list()
            try:
                for_all = [
                    await self._client.list(source.resource, namespace=name, labels=source.labels, trim=source.trim)
                    for name in (self._namespaces if source.resource.namespaced else ("",))
                ]
            except SynclineError as error:
                self._metrics.lists.labels(source.resource.kind, "failed").inc()
                if self.failed.get(source.resource) != str(error):
                    self._log.warning("could not list", kind=source.resource.kind, reason=str(error))
                self.failed[source.resource] = str(error)
                continue
            self.failed.pop(source.resource, None)
            self._metrics.lists.labels(source.resource.kind, "done").inc()
            gone = [key for document in seen for key in source.leads_to(document)]
            was_whole = seen.whole
            suspects = seen.compare(for_all)
            found.append((source, suspects if was_whole else []))  # before the first there was no watch
            for key in {*gone, *(key for document in seen for key in source.leads_to(document))}:
                self._queue.add(key)
        if any(suspects for _, suspects in found):
            await asyncio.sleep(self._settings.grace_s)
        for source, suspects in found:
            self._count(source, self._seen[source.resource].missed(suspects))
        return len(found) == len(self._sources)

    def _count(self, source: Source, missed: list[ObjectKey]) -> None:
        self.in_row[source.resource] = self.in_row[source.resource] + 1 if missed else 0
        if missed:
            self._metrics.missed_events.labels(source.resource.kind).inc(len(missed))
            named = [str(key) for key in missed[:5]]
            self._log.warning(
                "a list found what no watch had told", kind=source.resource.kind, objects=named, count=len(missed)
            )
