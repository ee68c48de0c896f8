"""The service process: one view of one run, its parts wired together and driven by a thread each.

watch (publishes) · keep (anchors, skip deltas) · sweep (retention) · observe (head, consumers) — and the HTTP server in
the main thread. They share the store and nothing else but what `/status` reads, so none waits for another. SIGTERM ends
it between two steps or in the middle of one: both are safe.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import structlog
from aiohttp import web

from syncline.chain import PUT_BACK, ChainReader
from syncline.clock import Clock
from syncline.errors import Corrupt, NotFound, Rejected
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.store.keys import ViewKeys
from syncline.store.open import open_store
from syncline.store.probe import probe
from syncline.wire.records import VersionManifest
from syncline_distributor.anchoring import rescue
from syncline_distributor.bases import DiskBase
from syncline_distributor.erasing import Eraser, make_erasing_app
from syncline_distributor.heap import give_back
from syncline_distributor.keeper import Keeper
from syncline_distributor.loops import Loop, Tick
from syncline_distributor.publisher import Publisher
from syncline_distributor.server import HeadBell, make_app
from syncline_distributor.settings import ServiceSettings
from syncline_distributor.sources import CheckpointSource, FolderSource, StoreSource
from syncline_distributor.status import Observer, Reporter
from syncline_distributor.steps import run_steps
from syncline_distributor.sweeper import Sweeper
from syncline_distributor.watch import Watch

log = structlog.get_logger()
KEEP_EVERY_S = 2.0
GOODBYE_S = 10.0
"""How long a step that is running may take to end after SIGTERM; cut off, it leaves what a kill would."""


class Service:
    """All parts of one process."""

    def __init__(
        self, settings: ServiceSettings, store: WeightStore, *, clock: Clock, random: random.Random, metrics: Metrics
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self._stop = threading.Event()
        self._not_again: VersionManifest | None = None
        """The version of which the base could give no anchor."""
        executor = ThreadPoolExecutor(settings.workers, "syncline-work")
        self.conditional_writes = _probed(store, settings, random, metrics)

        def reader() -> ChainReader:
            return ChainReader(store, settings.run, settings.view)

        self.observer = Observer(
            reader(), clock, metrics, max_ttl_s=settings.retention.max_ttl_s, creates=settings.source is not None
        )
        self.publisher: Publisher | None = None
        self._base: DiskBase | None = None
        self.watch: Watch | None = None
        if settings.source is not None:
            self._base = DiskBase(settings.state_dir, executor=executor)
            self.publisher = Publisher(
                store,
                settings.run,
                view=settings.view,
                settings=settings.publish,
                base=self._base,
                clock=clock,
                random=random,
                metrics=metrics,
                executor=executor,
            )
            self.watch = Watch(
                self.publisher,
                open_source(settings, settings.source, clock=clock, random=random),
                settings.watch,
                state_dir=settings.state_dir,
                clock=clock,
                metrics=metrics,
                column_split=settings.publish.column_split,
                observed=lambda: self.observer.head,
            )
        if self.publisher is not None:
            self.publisher.on_head = self.observer.seen
        keeper = self._keeper = Keeper(
            store, reader(), settings.anchors, settings.state_dir, clock, random, metrics, executor
        )
        sweeper = Sweeper(store, reader(), settings.retention, metrics)
        self.reporter = Reporter(self.observer, keeper, self.publisher, self.watch, [], self.conditional_writes)
        ticks: dict[str, Tick] = {"observe": self.observer.tick, "keep": lambda: _keep(keeper)}
        if self.watch is not None:
            ticks["watch"] = self._watch_tick
        if settings.retention.enabled:
            ticks["sweep"] = lambda: self._sweep_tick(sweeper)
        self.reporter.loops += [Loop(name, tick, self._stop) for name, tick in ticks.items()]

    def start(self) -> None:
        for loop in self.reporter.loops:
            loop.start()

    def stop(self) -> None:
        """Ask every loop to end after its step, and wait a little."""
        self._stop.set()
        for loop in self.reporter.loops:
            if not loop.join(GOODBYE_S):
                log.warning("a step was cut off", loop=loop.name, phase="stop")

    def _watch_tick(self) -> float | None:
        assert self.watch is not None and self.publisher is not None
        last = self.watch.last
        try:
            wait = self.watch.tick()
            self._rescue()
            return wait
        finally:
            if self.watch.last is not last:
                give_back()
            if self.publisher.head is not None:
                self.observer.seen(self.publisher.head)

    def _rescue(self) -> None:
        """Between two publishes, and in their thread: the base is nobody else's to read."""
        stuck = self._keeper.stuck
        if stuck is None or self._base is None or self.publisher is None or self._base.manifest == self._not_again:
            return
        held = self._base.manifest
        try:
            if rescue(self._keeper.anchors, self.publisher.reader, self._base, stuck=stuck) is not None:
                give_back()
        except Corrupt as error:
            self._not_again = held  # the base itself has rotted; each attempt would upload most of it again
            log.error("no anchor from the base of this writer", error=f"{error}; {PUT_BACK}", phase="anchor")

    def _sweep_tick(self, sweeper: Sweeper) -> float:
        try:
            swept = sweeper.sweep()
        except NotFound:
            return self.settings.retention.sweep_every_s  # no run yet
        self.reporter.swept = swept
        self.reporter.deleted += swept.deleted
        return self.settings.retention.sweep_every_s


def _keep(keeper: Keeper) -> float:
    if run_steps(keeper.steps()) is None:
        return KEEP_EVERY_S
    give_back()
    return 0.0


def _probed(store: WeightStore, settings: ServiceSettings, rng: random.Random, metrics: Metrics) -> bool:
    result = probe(store, ViewKeys(settings.run, settings.view).probe, rng)
    metrics.store_probed(several_writers=result.several_writers)
    if not result.several_writers:
        log.warning("single-writer mode: this store cannot fence a second writer", detail=result.detail, phase="start")
    return result.several_writers


def open_source(settings: ServiceSettings, url: str, *, clock: Clock, random: random.Random) -> CheckpointSource:
    """The source that a folder's path or a store's url names."""
    if url.startswith("s3:"):
        store = open_store(url, clock=clock, rng=random)
        return StoreSource(store, settings.state_dir / "incoming", subfolder=settings.watch.subfolder)
    return FolderSource(Path(url.removeprefix("file://")), subfolder=settings.watch.subfolder)


@contextmanager
def only_one(state_dir: Path) -> Generator[None]:
    """Hold the state directory for this process. Rejected when another one works in it."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Rejected(
            f"--state-dir {state_dir} cannot be used: {error.strerror or error}; give a folder that this process may "
            "write, or one that can be made"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Rejected(f"{state_dir} is in use by another distributor; give each its own --state-dir") from None
        yield
    finally:
        os.close(descriptor)


async def serve(service: Service) -> int:
    """Run until SIGTERM or SIGINT. 1 when the publisher was fenced, else 0."""
    bell = HeadBell(asyncio.get_running_loop())
    service.observer.on_head = bell.ring
    app = make_app(service.reporter, service.metrics, bell)
    await _until_ended(app, service.settings, start=service.start, end=service.stop)
    fenced = service.publisher is not None and service.publisher.fenced is not None
    return 1 if fenced else 0


async def erase(settings: ServiceSettings, store: WeightStore, *, metrics: Metrics) -> int:
    """Delete all of a view, and answer for it until SIGTERM or SIGINT."""
    assert settings.erases is not None
    stop = threading.Event()
    eraser = Eraser(store, ViewKeys(settings.run, settings.view), settings.erases)
    loop = Loop("erase", eraser.tick, stop)

    def end() -> None:
        stop.set()
        loop.join(GOODBYE_S)

    await _until_ended(make_erasing_app(eraser, loop, metrics), settings, start=loop.start, end=end)
    return 0


async def _until_ended(
    app: web.Application, settings: ServiceSettings, *, start: Callable[[], None], end: Callable[[], None]
) -> None:
    """Listen, start, and end at SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, settings.host, settings.port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        code = error.errno or 0
        why = os.strerror(code) if code > 0 else error.strerror  # a name that is not known is below 0
        raise Rejected(
            f"cannot listen at {settings.host}:{settings.port}: {why}; give another --port, or another --host"
        ) from None
    host, port = runner.addresses[0][:2]
    log.info(
        "listening",
        address=f"http://{host}:{port}",
        run=settings.run,
        view=settings.view,
        phase="start",
    )
    start()
    await stop.wait()
    log.info("stopping", run=settings.run, view=settings.view, phase="stop")
    await asyncio.to_thread(end)
    await runner.cleanup()
