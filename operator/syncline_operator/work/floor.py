"""An operator put together: client, watches, lists, queue, Lease, Events and probes around reconciles that are handed
in.

Every process watches and lists, so that the next leader knows the cluster already; reconciles run only in the one that
leads. Ends by itself when a part ends: what is left then is for whoever started it.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline_operator.kube.access import Access
from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.lease import Election, LeaseSettings
from syncline_operator.kube.recording import EventSettings, Recorder
from syncline_operator.kube.resources import Document, Resource
from syncline_operator.kube.writing import Writer
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.work.health import Health, HealthSettings, make_app
from syncline_operator.work.queue import QueueSettings, WorkQueue
from syncline_operator.work.seen import Seen
from syncline_operator.work.sweep import Source, Sweep, SweepSettings
from syncline_operator.work.watching import WatchSettings, watch
from syncline_operator.work.workers import Reconcile, Workers

STEP_S = 0.2


@dataclass(frozen=True, slots=True)
class FloorSettings:
    """Of one operator process."""

    lease: LeaseSettings
    namespaces: tuple[str, ...] = ()
    """Empty: the whole cluster."""
    host: str = "0.0.0.0"
    port: int = 8080
    at_once: int = 4
    deadline_s: float = 120.0
    request_s: float = 30.0
    queue: QueueSettings = field(default_factory=QueueSettings)
    sweep: SweepSettings = field(default_factory=SweepSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)
    events: EventSettings = field(default_factory=EventSettings)
    health: HealthSettings = field(default_factory=HealthSettings)


@dataclass(frozen=True, slots=True)
class Floor:
    """What a reconcile stands on."""

    client: KubeClient
    writer: Writer
    recorder: Recorder
    seen: Mapping[Resource, Seen]
    queue: WorkQueue
    metrics: OperatorMetrics
    identity: str


async def operate(
    access: Access,
    sources: Sequence[Source],
    reconciles: Callable[[Floor], Mapping[Resource, Reconcile]],
    settings: FloorSettings,
    *,
    identity: str,
    metrics: OperatorMetrics,
    clock: Clock,
    randomness: random.Random,
    log: FilteringBoundLogger,
) -> None:
    """Run until SIGTERM or SIGINT; the Lease is given back at the end."""
    seen = {source.resource: Seen(source.resource, trim=source.trim) for source in sources}
    leads_to = {source.resource: source.leads_to for source in sources}
    queue = WorkQueue(settings.queue, clock=clock, randomness=randomness)
    stop, watches_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def lead(leads: bool) -> None:
        metrics.leading.set(leads)
        queue.restart()

    def tell(resource: Resource, document: Document, deleted: bool) -> None:
        seen[resource].tell(document, deleted=deleted)
        for key in leads_to[resource](document):
            queue.add(key)

    def take_signals() -> None:
        # Again when kopf has begun, which takes them too: here reconciles end first, then the Lease, then the watches.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)

    async def follow() -> None:
        # kopf looks once which kinds a server has: not before each could be listed, however long that takes.
        while not all(known.whole for known in seen.values()):
            if watches_end.is_set():
                return
            await asyncio.sleep(STEP_S)
        await watch(
            access,
            sources,
            tell,
            namespaces=settings.namespaces,
            settings=settings.watch,
            stop=watches_end,
            started=take_signals,
            clock=clock,
            log=log,
        )

    take_signals()
    async with KubeClient(access, metrics=metrics, clock=clock, timeout_s=settings.request_s) as client:
        election = Election(
            client, settings.lease, identity=identity, clock=clock, randomness=randomness, log=log, changed=lead
        )
        recorder = Recorder(
            client,
            election,
            settings.events,
            instance=identity,
            metrics=metrics,
            clock=clock,
            randomness=randomness,
            log=log,
        )
        floor = Floor(client, Writer(client, election), recorder, seen, queue, metrics, identity)

        def may_work() -> bool:
            return election.leads and all(known.whole for known in seen.values())

        workers = Workers(
            queue,
            reconciles(floor),
            may_work=may_work,
            at_once=settings.at_once,
            deadline_s=settings.deadline_s,
            metrics=metrics,
            clock=clock,
            log=log,
        )
        sweep = Sweep(
            client,
            sources,
            seen,
            queue,
            settings.sweep,
            namespaces=settings.namespaces,
            metrics=metrics,
            clock=clock,
            randomness=randomness,
            log=log,
        )
        health = Health(
            settings.health, queue=queue, works=may_work, missed=sweep.in_row, seen=seen.values(), failed=sweep.failed
        )
        runner = web.AppRunner(make_app(health, metrics.registry), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, settings.host, settings.port).start()
        # Before the watches: when kopf ends, it ends every task that began after it.
        parts = {
            asyncio.create_task(part, name=name)
            for name, part in (
                ("workers", workers.run()),
                ("sweep", sweep.run()),
                ("events", recorder.run()),
                ("stop", stop.wait()),
            )
        }
        standing = asyncio.create_task(election.run(), name="election")
        watching = asyncio.create_task(follow(), name="watches")
        every = {*parts, standing, watching}
        try:
            ended, _ = await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(parts)
            await _end({standing})
            await election.give_back()
            watches_end.set()
            await asyncio.wait({watching}, timeout=10)
            await _end({watching})
            await runner.cleanup()
        for task in ended:
            if task.get_name() != "stop":
                log.error("a part of the operator ended", part=task.get_name())
                task.result()
                raise RuntimeError(f"{task.get_name()} ended and never should")


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
