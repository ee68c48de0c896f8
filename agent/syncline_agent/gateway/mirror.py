"""The agent's log of commits and state as this gateway knows them: read all the time, and anew when an answer has come.

`now` is where the log stood when a request is sent; `since` gives what came after such a place once `fresh` has asked
again. What was lost on the way is None, never a guess: another agent, a log that went on without this gateway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline_agent.engine import Applied, Crossing
from syncline_agent.gateway.agent import Agent, AgentSilent, Entries, Entry, State
from syncline_agent.lane.epochs import Epochs

POLL_S = 30
TROUBLE_S = 0.2
RATES = 8
"""Commits that the pace of commits is taken from."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the log stood, and what was applied there."""

    log: str
    seq: int
    applied: Applied | None


class Mirror:
    """One agent's log and state, in one event loop."""

    def __init__(self, agent: Agent, *, clock: Clock, state_seconds: float, log: FilteringBoundLogger) -> None:
        self._agent = agent
        self._clock = clock
        self._state_seconds = state_seconds
        self._log = log
        self._name = ""
        self._last = 0
        self._kept: deque[Entry] = deque()
        self._applied: Applied | None = None
        self._epochs = Epochs()
        self._times: deque[float] = deque(maxlen=RATES)
        self.state: State | None = None
        """What the agent said last; None while it never did."""
        self.state_at = clock.monotonic()
        """When it was asked for that."""
        self.silence: str | None = "the agent was not asked yet"
        """Why the agent cannot be asked now."""
        self.was_proven = False
        """Whether anything was ever in service here."""
        self._news: list[asyncio.Future[None]] = []
        self._asking: asyncio.Task[bool] | None = None
        self._queued: asyncio.Task[bool] | None = None

    @property
    def now(self) -> Place:
        return Place(self._name, self._last, self._applied)

    @property
    def pace(self) -> float | None:
        """Seconds between commits, of late; None before two were seen."""
        if len(self._times) < 2:
            return None
        return (self._times[-1] - self._times[0]) / (len(self._times) - 1)

    def epoch_of(self, held: Applied | None) -> int | None:
        """The writer's epoch of a version that was applied here; None where the agent never said it."""
        return self._epochs.of(held)

    def since(self, place: Place) -> Sequence[Crossing] | None:
        """What came after a place; None when nobody can tell."""
        passed_over = place.seq - (self._last - len(self._kept))
        if place.log != self._name or not place.log or passed_over < 0:
            return None
        return [entry.crossing for entry in islice(self._kept, passed_over, None)]

    async def fresh(self) -> bool:
        """Ask the agent for commits, from now on and not before; False when it did not answer, asked twice. Calls share
        questions."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
            asked = self._asking
        else:
            if self._queued is None or self._queued.done() or self._queued is self._asking:
                self._queued = asyncio.create_task(self._ask_after(self._asking))
            asked = self._queued
        return await asyncio.shield(asked)

    async def news(self, seconds: float) -> None:
        """Wait until anything changed, or so long."""
        waiter = asyncio.get_running_loop().create_future()
        self._news.append(waiter)
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            if waiter in self._news:
                self._news.remove(waiter)

    async def follow(self) -> None:
        """Read on for ever."""
        await asyncio.gather(self._follow_commits(), self._follow_state())

    # --- reading ---------------------------------------------------------------------------------------------------

    async def _follow_commits(self) -> None:
        while True:
            if await self._try(lambda: self._read_page(POLL_S)):
                await self._try(self._read_state)
            else:
                await asyncio.sleep(TROUBLE_S)

    async def _follow_state(self) -> None:
        while True:
            await self._try(self._read_state)
            await asyncio.sleep(self._state_seconds if self.silence is None else TROUBLE_S)

    async def _ask(self) -> bool:
        # Twice: one question that is lost, of thousands, must not cost every answer that waits for it its label.
        return await self._try(lambda: self._read_page(0)) or await self._try(lambda: self._read_page(0))

    async def _ask_after(self, before: asyncio.Task[bool]) -> bool:
        await before
        self._asking = asyncio.current_task()
        return await self._ask()

    async def _try(self, read: Callable[[], Awaitable[None]]) -> bool:
        try:
            await read()
        except AgentSilent as error:
            if self.silence is None:
                self._log.warning("the agent does not answer", error=str(error))
            self._tell(str(error))
            return False
        except Exception as error:  # one answer that cannot be read must not end reading for ever
            self._log.exception("the agent's answer cannot be read")
            self._tell(f"the agent's answer cannot be read ({type(error).__name__})")
            return False
        if self.silence is not None:
            self._log.info("the agent answers", log=self._name, applied=self._applied and self._applied.version)
            self._tell(None)
        return True

    async def _read_page(self, wait: int) -> None:
        page = await self._agent.commits(self._last, wait=wait)
        if page.log != self._name and self._last:
            page = await self._agent.commits(0)  # what was read so far is another log's
        self._take(page)

    async def _read_state(self) -> None:
        asked = self._clock.monotonic()
        state = await self._agent.state()
        self.was_proven = self.was_proven or state.in_service
        if asked < self.state_at:
            return  # two were asked for at once, and this is the older
        before, self.state, self.state_at = self.state, state, asked
        self._learn(state.applied, state.epoch)
        if state != before:
            self._tell(self.silence)

    def _take(self, page: Entries) -> None:
        if page.log != self._name:
            if self._name:
                self._log.info("another agent answers", log=page.log)
            self._name, self._last, self._applied = page.log, 0, None
            self._kept.clear()
        missed = page.first - 1 > self._last
        for entry in page.commits:
            if entry.seq <= self._last:
                continue
            if missed:
                self._kept.clear()
                missed = False
            self._last = entry.seq
            self._kept.append(entry)
            self._applied = entry.crossing.after
            self._learn(entry.crossing.after, entry.epoch)
            self._times.append(self._clock.monotonic())
            self._tell(self.silence)
        while self._kept and self._kept[0].seq < page.first:
            self._kept.popleft()  # the agent's bound on what a log may hold is this one's, too

    def _learn(self, applied: Applied | None, epoch: int | None) -> None:
        if applied is not None and epoch is not None:
            self._epochs.learn(applied.lineage, applied.view, applied.version, epoch)

    def _tell(self, silence: str | None) -> None:
        self.silence = silence
        waiting, self._news = self._news, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
