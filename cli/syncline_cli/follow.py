"""`syncline follow`: keep a folder on the newest version, for engines that load from disk and for people who want a copy.

It does what an agent does with its node's folder: a version that is marked bad is skipped, or left if it is held. It outlives a store
that is down and a way that has a hole; only a run name that was used again ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import structlog
import typer

from syncline.chain import marked_bad
from syncline.checkpoint import materialize
from syncline.clock import Clock, SystemClock
from syncline.errors import ChainBroken, Corrupt, LineageChanged, NotFound, Retryable
from syncline.wire.records import VetoRecord
from syncline_agent.doorbell import Doorbell
from syncline_agent.driving import Driven
from syncline_cli.context import (
    JsonOption,
    Opened,
    RunOption,
    StoreOption,
    ViewOption,
    checked_url,
    newest_good,
    opened,
    views_of,
    whats_there,
)
from syncline_cli.history import summary
from syncline_cli.output import Output, size

VETOES_EVERY_S = 10.0
"""Head is asked for each poll, vetoes only so often: an idle follower costs a store one request a poll."""
LONGEST_PAUSE_S = 60.0
"""Between tries that fail; they begin a poll apart and double."""


def follow(
    folder: Annotated[Path, typer.Argument(help="Folder to keep on the newest version.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    poll: Annotated[float, typer.Option("--poll", min=0.05, help="Seconds between looks at head.")] = 1.0,
    distributor: Annotated[
        str | None,
        typer.Option(
            "--distributor",
            envvar="SYNCLINE_DISTRIBUTOR",
            help="Where the distributor answers, http://host:port: tells of a version at once.",
        ),
    ] = None,
    until: Annotated[int | None, typer.Option("--until", min=1, help="Stop once this version is held.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a servable safetensors folder on the newest version; one line, or one JSON document, a version."""
    at = opened(store, run, view, as_json)
    clock = SystemClock()
    with ThreadPoolExecutor() as pool, ExitStack() as parts:
        follower = _Follower(at, folder, clock, pool)
        wait = clock.sleep
        if distributor is not None:
            wait = parts.enter_context(_listening(checked_url(distributor, "--distributor"), follower, at.output))
        said, failures = "", 0
        while True:
            try:
                follower.look()
                remark, failures = follower.remark, 0
            except LineageChanged:
                raise
            except (Retryable, ChainBroken, Corrupt) as error:
                remark, failures = f"{error}; trying again", failures + 1
            if remark and remark != said:
                at.output.note(remark)
            said = remark
            if until is not None and follower.held >= until:
                return
            wait(poll if failures == 0 else max(poll, min(LONGEST_PAUSE_S, poll * 2.0 ** min(failures, 16))))


@contextmanager
def _listening(url: str, follower: _Follower, output: Output) -> Iterator[Callable[[float], None]]:
    """A wait that ends early when the distributor tells of a version that was not known here."""
    rung = threading.Event()
    doorbell = Doorbell(url, lambda: follower.head, rung.set)
    silent = False

    def tick() -> float:
        nonlocal silent
        pause = doorbell.tick()
        if pause > 0 and not silent:
            output.note(f"no distributor answers at {url}; looking at the store by itself meanwhile")
        silent = pause > 0
        return pause

    def wait(seconds: float) -> None:
        rung.wait(seconds)
        rung.clear()

    machine = Driven("doorbell", tick, structlog.get_logger())
    machine.start()
    try:
        yield wait
    finally:
        machine.stop(0.0)  # in the middle of a long poll, which nobody needs to the end


class _Follower:
    """One folder and what it holds."""

    def __init__(self, at: Opened, folder: Path, clock: Clock, pool: ThreadPoolExecutor) -> None:
        self.held = 0
        self.head = 0
        """The newest version seen, held or not."""
        self.remark = ""
        """Why it does not hold head; empty when it does."""
        self._at = at
        self._folder = folder
        self._clock = clock
        self._pool = pool
        self._vetoes: Mapping[int, VetoRecord] = {}
        self._vetoes_at: float | None = None
        self._instead = ""
        """What the store holds, while it does not hold the run or the view."""
        self._views: list[str] | None = None

    def look(self) -> None:
        """One look at the store, and the folder brought to where it should be."""
        reader = self._at.reader
        try:
            head = reader.head()
        except NotFound:
            # Listed once: what else is in the store tells a wrong name from a run that is yet to begin.
            self._instead = self._instead or f"; {whats_there(self._at)}"
            head = None
        else:
            self._instead = self._other_views() if head is None else ""
        if head is None:
            self.remark = f"waiting for the first version of {reader.keys.run}/{reader.keys.view}{self._instead}"
            return
        self.remark = ""
        now = self._clock.monotonic()
        if self._vetoes_at is None or head.version != self.head or now - self._vetoes_at >= VETOES_EVERY_S:
            self._vetoes, self._vetoes_at, self.head = reader.vetoes(), now, head.version
        target = head.version
        if target in self._vetoes:
            target = newest_good(reader, target, self._vetoes)
            self.remark = f"{marked_bad(head.version, self._vetoes)}; holding version {target} until a better one comes"
        if target != self.held:
            self._bring_to(target)

    def _other_views(self) -> str:
        if self._views is None:
            self._views = views_of(self._at.reader)
        return f"; the run has {', '.join(self._views)}: check --view" if self._views else ""

    def _bring_to(self, target: int) -> None:
        output, began = self._at.output, self._clock.monotonic()
        with output.transfer(f"version {target}") as progress:
            materialize(
                self._at.reader, target, self._folder, executor=self._pool, vetoed=self._vetoes, progress=progress
            )
        self.held = target
        seconds = round(self._clock.monotonic() - began, 3)
        facts = summary(self._at.reader.manifest(target), self._at.reader) | {
            "seconds": seconds,
            "folder": str(self._folder),
        }
        output.result(facts)
        step = "-" if facts["step"] is None else facts["step"]
        output.line(f"{self._folder}  version {target}  step {step}  {size(facts['payload_bytes'])}  {seconds} s")
