"""The agent process: builds the parts, drives them from threads, serves HTTP, says goodbye. Knows no rule of
following."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web
from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import NotFound, SynclineError
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.store.first_of import FirstOf
from syncline.store.open import open_store
from syncline.store.retrying import RetryPolicy
from syncline_agent.background import Background
from syncline_agent.doorbell import Doorbell, TargetBell
from syncline_agent.driving import Driven
from syncline_agent.engine import Engine
from syncline_agent.fetch import Fetcher, Source
from syncline_agent.follower import Follower
from syncline_agent.headwatch import HeadWatch
from syncline_agent.heartbeat import Heart
from syncline_agent.lane.advertised import Advertising
from syncline_agent.lane.commits import CommitLog
from syncline_agent.lane.epochs import Epochs
from syncline_agent.lane.face import listen_at, make_face
from syncline_agent.lane.pins import Pins
from syncline_agent.listening import listen
from syncline_agent.mirrors import SourceHeads
from syncline_agent.nodecheckpoint import Chain, NodeCheckpoint
from syncline_agent.nodefiles import NodeFiles
from syncline_agent.policy import TargetFile
from syncline_agent.reading import NodeReader
from syncline_agent.reporting import Reporter
from syncline_agent.runs import instead_of
from syncline_agent.server import make_app
from syncline_agent.settings import AgentSettings
from syncline_agent.status import Identity

# The follower has its own, longer patience, and says meanwhile what it waits for.
STORE_PATIENCE = RetryPolicy(first_s=0.05, most_s=0.5, deadline_s=2.0)


class Node:
    """All parts of one node, wired, none of them running."""

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        *,
        sources: Sequence[Source],
        consumers: WeightStore,
        clock: Clock,
        random: random.Random,
        metrics: Metrics,
        log: FilteringBoundLogger,
        workers: int | None = None,
    ) -> None:
        """`workers` None fetches in the caller's thread, as a simulation must."""
        pool = ThreadPoolExecutor(workers, thread_name_prefix="fetch") if workers else None
        self.engine = engine
        self.files = NodeFiles(settings.node_dir)
        self.checkpoint = NodeCheckpoint(self.files, log, executor=pool, streams=workers or 1)
        identity = Identity(settings.cluster, settings.namespace, settings.pool, settings.node)
        self.reporter = Reporter(identity, metrics, log, clock=clock)
        self.advertising = Advertising(clock)
        self.heart = Heart(
            consumers,
            self.reporter.read,
            settings=settings.heart,
            clock=clock,
            random=_derived(random),
            log=log,
            gateway=self.advertising.now,
        )
        self.pins = Pins(clock)
        self.epochs = Epochs()
        self.follower = Follower(
            engine=engine,
            chains=_chains(sources, self.files, self.reporter, pool, log),
            files=self.files,
            checkpoint=self.checkpoint,
            targets=TargetFile(settings.target),
            heart=self.heart,
            reporter=self.reporter,
            pins=self.pins,
            epochs=self.epochs,
            settings=settings.follow,
            clock=clock,
            random=_derived(random),
            log=log,
        )
        self.background = Background(
            self.checkpoint,
            lambda: self.follower.chain,
            self.reporter.read,
            settings=settings.follow,
            clock=clock,
            log=log,
        )
        self.head_watch = HeadWatch(_nearest(sources, reporter=self.reporter, log=log), self.reporter, clock)
        self.source_heads = SourceHeads(sources, self.reporter) if len(sources) > 1 else None
        """None where there is only one source."""


def _derived(parent: random.Random) -> random.Random:
    """A generator of its own for each thread, replayable from the parent's seed."""
    return random.Random(parent.getrandbits(64))


def _nearest(sources: Sequence[Source], *, reporter: Reporter, log: FilteringBoundLogger) -> WeightStore:
    """All sources as one store."""

    def damaged(source: WeightStore, error: SynclineError) -> None:
        reporter.retried("corrupt")
        log.warning("passed over a damaged copy", store=source.url, error=str(error))

    return sources[0].store if len(sources) == 1 else FirstOf([s.store for s in sources], damaged=damaged)


def _chains(
    sources: Sequence[Source],
    files: NodeFiles,
    reporter: Reporter,
    pool: ThreadPoolExecutor | None,
    log: FilteringBoundLogger,
) -> Callable[[str, str], Chain]:
    store = _nearest(sources, reporter=reporter, log=log)

    told: dict[str, str] = {}
    """What the store holds in place of a run: asked once, for what is not there is asked for at every poll."""

    def make(run: str, view: str) -> Chain:
        fetcher = Fetcher(sources, files, executor=pool, fetched=reporter.fetched, retried=reporter.retried)
        reader = NodeReader(store, run, view, fetcher=fetcher, files=files)
        try:
            record = reader.run_record()
        except NotFound as error:
            hint = told.get(run) or instead_of(sources[-1].store)
            if hint is None:
                raise
            told.clear()
            told[run] = hint
            raise NotFound(f"run {run}", hint) from error
        told.clear()
        return Chain(record, reader, fetcher)

    return make


def open_sources(settings: AgentSettings, *, clock: Clock, metrics: Metrics) -> list[Source]:
    """The stores of the settings, nearest first, called mirror and origin."""
    stores = [open_store(url, clock=clock, metrics=metrics, policy=STORE_PATIENCE) for url in settings.stores]
    names = ["origin"] if len(stores) == 1 else ["mirror", *(f"mirror{i}" for i in range(2, len(stores))), "origin"]
    return [Source(name, store) for name, store in zip(names, stores, strict=True)]


async def serve(
    settings: AgentSettings, node: Node, commits: CommitLog, metrics: Metrics, log: FilteringBoundLogger
) -> None:
    """Run the node until SIGTERM or SIGINT; then say goodbye to the store. Rejected when HTTP has no place to listen."""
    machines = [
        Driven("follower", node.follower.tick, log),
        Driven("heart", node.heart.tick, log),
        Driven("background", node.background.tick, log),
        Driven("head", node.head_watch.tick, log),
    ]
    if node.source_heads is not None:
        machines.append(Driven("sources", node.source_heads.tick, log))
    machines.append(Driven("target", TargetBell(settings.target, machines[0].wake).tick, log))
    bells: list[Driven] = []
    if settings.distributor is not None:
        bell = Doorbell(settings.distributor, lambda: node.reporter.status.head, machines[0].wake)
        bells.append(Driven("doorbell", bell.tick, log))
    app = make_app(
        node.reporter.read,
        heartbeats=lambda: node.heart.state,
        gateway=node.advertising.now,
        alive=lambda: machines[0].alive,
        sweep=node.engine.sweep,
        registry=metrics.registry,
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    # Whoever waits for a commit there need not be waited for.
    answers = make_face(
        node.reporter.read,
        commits,
        pins=node.pins,
        wake=machines[0].wake,
        advertising=node.advertising,
        epochs=node.epochs,
    )
    face = web.AppRunner(answers, access_log=None, shutdown_timeout=0.5)
    await face.setup()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    try:
        _, port = await listen(runner, settings.host, settings.port)
        await listen_at(face, settings.gateway_socket)
        log.info("serving", host=settings.host, port=port, socket=str(settings.socket))
        for machine in (*machines, *bells):
            machine.start()
        await stop.wait()
        log.info("stopping")
    finally:
        for waiting in bells:
            waiting.stop(0.0)  # in the middle of a long poll, which nobody needs to the end
        for machine in reversed(machines):
            await asyncio.to_thread(machine.stop)
        await asyncio.to_thread(node.heart.beat, node.reporter.status, leaving=True)
        await face.cleanup()
        await runner.cleanup()
