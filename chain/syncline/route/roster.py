"""Keeps what is known of all replicas up to date: asks the source who is there, and each gateway how it stands, in the background.

Sends no request of anybody's, and picks nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import SynclineError
from syncline.route.asking import Unreached
from syncline.route.looking import look
from syncline.route.replica import Member, Replica
from syncline.route.sources import Source

MOST_LOOKS_A_SECOND = 50.0
"""Of a large fleet each gateway is looked at less often: heartbeats say meanwhile what it serves."""
TROUBLE_S = (1.0, 2.0, 4.0, 8.0)
"""Between looks at a gateway that does not answer."""


@dataclass(frozen=True, slots=True)
class RosterSettings:
    """How often things are looked at."""

    members_seconds: float = 5.0
    look_seconds: float = 2.0
    look_timeout_seconds: float = 10.0
    silence_seconds: float = 30.0
    """A gateway that answered no look for so long is given up: what waits for its answers goes elsewhere."""


class Roster:
    """The replicas of one fleet, in one event loop."""

    def __init__(
        self,
        source: Source,
        http: httpx.AsyncClient,
        settings: RosterSettings,
        *,
        clock: Clock,
        randomness: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        self._source = source
        self._http = http
        self._settings = settings
        self._clock = clock
        self._random = randomness
        self._log = log
        self._replicas: dict[str, Replica] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.trouble: str | None = None
        """Why the source could not be asked."""

    @property
    def replicas(self) -> Sequence[Replica]:
        return list(self._replicas.values())

    async def start(self, patience_s: float) -> None:
        """Who is there, and a first look at each, for at most so long. The source's errors are raised: nothing is known without."""
        self._take(await self._source.members())
        self._following = asyncio.create_task(self._follow())
        end = self._clock.monotonic() + patience_s
        while any(r.seen is None and r.silent_since is None for r in self.replicas) and self._clock.monotonic() < end:
            await self.news(end - self._clock.monotonic())

    async def close(self) -> None:
        tasks = [*self._looking.values(), *([self._following] if self._following is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def news(self, seconds: float) -> None:
        """Wait until something changed that a pick may hang on, or so long."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait([waiter], timeout=max(0.0, seconds))
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def tell(self) -> None:
        """Something changed."""
        waiting, self._waiters = self._waiters, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._settings.members_seconds * self._random.uniform(0.9, 1.1))
            try:
                self._take(await self._source.members())
                self.trouble = None
            except SynclineError as error:  # who was there goes on being asked
                if self.trouble is None:
                    self._log.warning("replicas cannot be listed", error=str(error))
                self.trouble = str(error)

    def _take(self, members: Sequence[Member]) -> None:
        named = {member.url: member for member in members}
        for url, member in named.items():
            replica = self._replicas.get(url)
            if replica is None:
                self._log.info("replica", url=url, name=member.name)
                replica = self._replicas[url] = Replica(url, member.name)
                self._looking[url] = asyncio.create_task(self._keep_looking(replica))
            replica.name = member.name
            if member.seen is not None and replica.saw(member.seen):
                self.tell()
        for url, replica in list(self._replicas.items()):
            serves = replica.silent_since is None and replica.seen is not None and replica.seen.ready
            if url not in named and not serves and not replica.in_flight:
                # One that is not named any more and still answers as it should goes on: its agent may have lost the store. One that ends
                # answers what it has, or is given up once it was silent for long.
                self._log.info("replica is gone", url=url)
                del self._replicas[url]
                self._looking.pop(url).cancel()

    async def _keep_looking(self, replica: Replica) -> None:
        failures = 0
        while True:
            try:
                seen = await look(
                    self._http, replica.url, clock=self._clock, seconds=self._settings.look_timeout_seconds
                )
            except Unreached as error:
                failures += 1
                self._silent(replica, str(error), TROUBLE_S[min(failures, len(TROUBLE_S)) - 1])
                await asyncio.sleep(TROUBLE_S[min(failures, len(TROUBLE_S)) - 1])
                continue
            failures = 0
            back = replica.silent_since is not None
            if back:
                replica.silent_since = None
                replica.release()
            if replica.saw(seen) or back:
                self.tell()
            pause = max(self._settings.look_seconds, len(self._replicas) / MOST_LOOKS_A_SECOND)
            await asyncio.sleep(pause * self._random.uniform(0.8, 1.2))

    def _silent(self, replica: Replica, why: str, seconds: float) -> None:
        now = self._clock.monotonic()
        first = replica.silent_since is None
        replica.silent_since = now if replica.silent_since is None else replica.silent_since
        replica.hold(now + seconds + self._settings.look_timeout_seconds, why)
        if now - replica.silent_since >= self._settings.silence_seconds:
            replica.lost.set()
            replica.lost.clear()
        if first:
            self.tell()
