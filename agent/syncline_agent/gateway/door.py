"""Where requests wait for a version: lets each in, keeps commits out for those that may see one version only, or refuses.

`admission.py` decides; here is the waiting, bounded by the caller's patience, and the agent is asked to look at once
meanwhile. Who is let in gives back what it holds by `leave`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from syncline.clock import Clock
from syncline_agent.gateway.admission import Admitted, Reason, Refused, Seen, Verdict, judge
from syncline_agent.gateway.agent import Agent, AgentSilent
from syncline_agent.gateway.bounds import lag_of
from syncline_agent.gateway.measuring import GatewayMetrics
from syncline_agent.gateway.mirror import Mirror, Place
from syncline_agent.gateway.pool import PoolPolicy
from syncline_agent.gateway.settings import GatewaySettings
from syncline_agent.gateway.wanted import Wanted

WAKE_S = 1.0
LOOK_AGAIN_S = 0.5
_COMMITTING = Refused(
    Reason.NOT_YET, "a commit is under way or waits for requests to end", retry=True, after_s=1.0, waiting_helps=True
)


class NotAdmitted(Exception):
    """The request was not let in."""

    def __init__(self, refusal: Refused, seen: Seen) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.seen = seen


@dataclass(frozen=True, slots=True)
class Pass:
    """That a request was let in."""

    place: Place
    pin: int | None


class Door:
    """The one way to the engine for requests whose answers come from weights."""

    def __init__(
        self,
        mirror: Mirror,
        agent: Agent,
        pool: PoolPolicy,
        settings: GatewaySettings,
        *,
        clock: Clock,
        metrics: GatewayMetrics,
    ) -> None:
        self._mirror = mirror
        self._agent = agent
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._woken = -WAKE_S
        self._returning: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> bool:
        """Whether what is served is proven, as far as anybody can tell now; however far it is behind."""
        return self._mirror.silence is None and isinstance(judge(Wanted(), self.seen()), Admitted)

    def seen(self) -> Seen:
        """The moment."""
        mirror, applied = self._mirror, self._mirror.now.applied
        lag = lag_of(mirror.state, applied, self._clock.monotonic() - mirror.state_at)
        return Seen(mirror.state, applied, mirror.silence, mirror.was_proven, mirror.pace, lag)

    @property
    def epoch(self) -> int | None:
        """The writer's, of what is applied."""
        return self._mirror.epoch_of(self._mirror.now.applied)

    def _judge(self, wanted: Wanted) -> Verdict:
        return judge(wanted, self.seen(), self._pool.bounds)

    async def enter(self, wanted: Wanted) -> Pass:
        """Return when the request may go. NotAdmitted when it may not within its patience."""
        if wanted.anything:
            verdict = self._judge(wanted)
            if isinstance(verdict, Admitted):
                return self._count(Pass(self._mirror.now, None))
            if not verdict.waiting_helps:
                raise NotAdmitted(verdict, self.seen())
        began = self._clock.monotonic()
        try:
            return self._count(await self._enter(wanted, began))
        finally:
            self._metrics.waited_seconds.observe(self._clock.monotonic() - began)

    def leave(self, passed: Pass) -> None:
        """The request is over."""
        begun = self._metrics.begun
        version = _version(passed.place)
        begun[version] -= 1
        if not begun[version]:
            del begun[version]
        if passed.pin is not None:
            self._give_back(passed.pin)

    async def close(self) -> None:
        """Wait until all pins were given back."""
        await asyncio.gather(*self._returning)

    def _count(self, passed: Pass) -> Pass:
        self._metrics.begun[_version(passed.place)] += 1
        return passed

    async def _enter(self, wanted: Wanted, began: float) -> Pass:
        settings = self._settings
        asked = settings.wait_seconds if wanted.wait_seconds is None else wanted.wait_seconds
        patience = min(asked, settings.most_wait_seconds)
        while True:
            verdict = self._judge(wanted)
            if isinstance(verdict, Admitted):
                if wanted.exact is None:
                    return Pass(self._mirror.now, None)
                verdict = await self._pinned(wanted)
                if isinstance(verdict, Pass):
                    return verdict
            left = patience - (self._clock.monotonic() - began)
            if not verdict.waiting_helps or left <= 0:
                raise NotAdmitted(verdict, self.seen())
            await self._wait(min(left, LOOK_AGAIN_S))

    async def _pinned(self, wanted: Wanted) -> Pass | Refused:
        """Keep commits out, and look again at what is applied then."""
        asking = asyncio.create_task(self._agent.pin(self._settings.pin_seconds))
        try:
            pin = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(self._not_needed)
            raise
        except AgentSilent as error:
            return Refused(Reason.AGENT_AWAY, str(error), retry=True, after_s=1.0)
        if pin is None:
            return _COMMITTING
        held = False
        try:
            if await self._mirror.fresh():
                verdict = self._judge(wanted)
                if isinstance(verdict, Refused):
                    return verdict
                held = True
                return Pass(self._mirror.now, pin)
            return _COMMITTING
        finally:
            if not held:
                self._give_back(pin)

    async def _wait(self, seconds: float) -> None:
        if self._metrics.waiting >= self._settings.most_waiting:
            message = f"{self._metrics.waiting} requests wait for a version already"
            raise NotAdmitted(Refused(Reason.BUSY, message, retry=True, after_s=1.0), self.seen())
        self._metrics.waiting += 1
        try:
            if self._clock.monotonic() - self._woken < WAKE_S:
                await self._mirror.news(seconds)
                return
            self._woken = self._clock.monotonic()
            try:
                await self._agent.wake()  # and look again before waiting: what came meanwhile was no news to anybody
            except AgentSilent:
                pass  # the mirror says so, and the next judgement by it
        finally:
            self._metrics.waiting -= 1

    def _not_needed(self, asked: asyncio.Task[int | None]) -> None:
        """The client hung up while the agent was asked."""
        if not asked.cancelled() and asked.exception() is None and (pin := asked.result()) is not None:
            self._give_back(pin)

    def _give_back(self, pin: int) -> None:
        """In a task of its own: a client that hung up cancels the request's."""
        task = asyncio.create_task(self._return(pin))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, pin: int) -> None:
        try:
            await self._agent.give_back(pin)
        except AgentSilent:
            pass  # it ends by itself


def _version(place: Place) -> int | None:
    return None if place.applied is None else place.applied.version
