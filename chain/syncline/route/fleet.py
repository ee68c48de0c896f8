"""One request, asked of a fleet: on a replica that can take it now, again elsewhere where it was refused or not reached, until the
caller's patience ends.

A request whose answer has begun is never sent twice. One that no engine saw is sent again; one whose gateway went away before a
byte of the answer came too, unless the fleet is told otherwise: what is lost then is an engine's work, and no one has seen it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx
from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import NoReplica
from syncline.route import asking
from syncline.route.asking import Answer, Ask, Fault, Lost, Refusal, Unreached, read_refusal
from syncline.route.picking import Able, Barred, Nobody, Picked, judge, pick
from syncline.route.replica import Replica
from syncline.route.roster import Roster, RosterSettings
from syncline.route.sources import Source
from syncline.route.transport import FleetTransport
from syncline.route.wishes import WAIT, Wish

LOOK_AGAIN_S = 5.0
PATIENT = httpx.Timeout(None, connect=5.0)
"""An answer may take as long as it is; a machine that is there is connected to soon."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How a fleet is asked."""

    wait_seconds: float = 60.0
    """How long a request waits for a replica that takes it, where it does not say."""
    hold_seconds: float = 5.0
    """How much of that it waits at one gateway, which lets it in at once when the version comes, before others are looked at again."""
    resend_lost: bool = True
    """Whether a request goes elsewhere when its gateway went away before any of the answer came. The engine may have worked on it."""
    roster: RosterSettings = field(default_factory=RosterSettings)


class Carried:
    """An answer that has begun, and whose it is. `done` when it has come or is given up."""

    def __init__(self, answer: Answer, replica: Replica) -> None:
        self.answer = answer
        self.replica = replica
        self._open = True

    def done(self) -> None:
        if self._open:
            self._open = False
            self.replica.in_flight -= 1


class Fleet:
    """The replicas of a run, in one event loop; between `async with` and its end."""

    base_url = "http://fleet/v1"
    """For a client whose requests go through `http`; it is the name of no machine."""

    def __init__(
        self,
        source: Source,
        settings: FleetSettings | None = None,
        *,
        run: str | None = None,
        clock: Clock,
        randomness: random.Random,
        log: FilteringBoundLogger,
        inner: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`run` None asks gateways of any. `inner` sends what is routed."""
        self._settings = settings or FleetSettings()
        self._run = run
        self._clock = clock
        self._random = randomness
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=5.0)
        self._plain = inner or httpx.AsyncHTTPTransport(limits=limits)
        self._looks = httpx.AsyncClient(transport=self._plain, trust_env=False)
        self._roster = Roster(source, self._looks, self._settings.roster, clock=clock, randomness=randomness, log=log)
        self.http = httpx.AsyncClient(
            transport=FleetTransport(self, self._plain), base_url="http://fleet", timeout=PATIENT, trust_env=False
        )
        """An HTTP client whose every request goes to a replica. Hand it to `openai.AsyncOpenAI(http_client=…)`."""

    async def __aenter__(self) -> Self:
        """Errors of the source, where nobody can say who is there."""
        try:
            await self._roster.start(self._settings.roster.look_timeout_seconds)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._roster.close()
        await self._looks.aclose()
        await self._plain.aclose()

    async def ask(self, path: str, body: Mapping[str, Any], wish: Wish | None = None) -> dict[str, Any]:
        """A whole answer: `await fleet.ask("/v1/completions", {"model": …, "prompt": …}, Wish(min=7))`.

        NoReplica when the wish's `wait_seconds` are over; httpx.HTTPStatusError for what an engine refused.
        """
        answer = await self.http.post(path, json=dict(body), headers=(wish or Wish()).headers())
        if answer.status_code in asking.REFUSES and NoReplica.CODE in answer.text:
            error = answer.json()["error"]
            raise NoReplica(error["message"], error["replicas"], retry=error["retry"])
        answer.raise_for_status()
        return answer.json()

    async def send(self, wish: Wish, ask: Ask) -> Carried:
        """An answer that has begun. NoReplica; Lost where a lost request must not be sent again."""
        began = self._clock.monotonic()
        patience = self._settings.wait_seconds if wish.wait_seconds is None else wish.wait_seconds
        barred: dict[str, Barred] = {}
        tried: set[str] = set()
        while True:
            now = self._clock.monotonic()
            left = began + patience - now
            found = pick(self._roster.replicas, wish, now, randomness=self._random, barred=barred, run=self._run)
            if isinstance(found, Picked) and (left > 0 or _once_more(found, tried)):
                tried.add(found.replica.url)
                carried = await self._try(found.replica, wish, ask, barred, hold_s=max(0.0, left))
                if carried is not None:
                    return carried
                continue
            hopeless = isinstance(found, Nobody) and found.hopeless
            if left <= 0 or hopeless:
                raise self._nobody(wish, barred, hopeless=hopeless)
            until = found.until if isinstance(found, Nobody) and found.until is not None else now + LOOK_AGAIN_S
            await self._roster.news(min(max(until - now, 0.01), left, LOOK_AGAIN_S))

    def table(self, wish: Wish | None = None) -> list[dict[str, Any]]:
        """What is known of each replica, and whether it would take such a request; for people and for errors."""
        return self._table(wish or Wish(), {})

    def picked(self, wish: Wish) -> str | None:
        """The address where such a request would go now."""
        now = self._clock.monotonic()
        found = pick(self._roster.replicas, wish, now, randomness=self._random, run=self._run)
        return found.replica.url if isinstance(found, Picked) else None

    @property
    def trouble(self) -> str | None:
        """Why nobody can say now which replicas there are; those that were there are asked on."""
        return self._roster.trouble

    # --- one try -----------------------------------------------------------------------------------------------------

    async def _try(
        self, replica: Replica, wish: Wish, ask: Ask, barred: dict[str, Barred], *, hold_s: float
    ) -> Carried | None:
        """None where the request goes elsewhere."""
        replica.in_flight += 1
        answer: Answer | None = None
        kept = False
        try:
            answer = await self._ask(replica, ask, {WAIT: f"{min(hold_s, self._settings.hold_seconds):.3f}"})
            kept = not await self._elsewhere(replica, answer, barred)
            return Carried(answer, replica) if kept else None
        except Unreached as error:
            self._hold(replica, str(error), 1.0)
        except Lost as error:
            self._hold(replica, str(error), 1.0)
            if not self._settings.resend_lost:
                raise
        finally:
            if not kept:
                replica.in_flight -= 1
                if answer is not None:
                    await answer.close()
        return None

    async def _elsewhere(self, replica: Replica, answer: Answer, barred: dict[str, Barred]) -> bool:
        """Whether this is a refusal, and the request goes to another. Lost for what is no answer at all."""
        if answer.status in asking.LOST_ON_THE_WAY:
            raise Lost(f"a proxy before {replica.url} answered {answer.status}")
        if answer.status not in asking.REFUSES:
            return False
        refusal = read_refusal(answer.status, answer.header, await answer.read())
        if refusal is None or (refusal.fault is Fault.DRAWN and not self._settings.resend_lost):
            return False
        self._refused(replica, refusal, barred)
        return True

    async def _ask(self, replica: Replica, ask: Ask, headers: Mapping[str, str]) -> Answer:
        """The answer, unless the replica is given up meanwhile."""
        asked = asyncio.ensure_future(ask(replica.url, headers))
        lost = asyncio.ensure_future(replica.lost.wait())
        try:
            await asyncio.wait((asked, lost), return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            raise Lost(f"the gateway at {replica.url} fell silent")
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled() and asked.exception() is None:
                await asked.result().close()  # it came as its caller left
            raise
        finally:
            lost.cancel()
            asked.cancel()

    def _refused(self, replica: Replica, refusal: Refusal, barred: dict[str, Barred]) -> None:
        now = self._clock.monotonic()
        seen = replica.seen
        if refusal.applied is not None and seen is not None:
            told = type(seen)(now, seen.ready, refusal.applied, refusal.target, seen.load, seen.run)
            if replica.saw(told):
                self._roster.tell()
        if refusal.fault is Fault.REPLICA:
            self._hold(replica, f"{refusal.code}: {refusal.message}", refusal.after_s)
            return
        applied = None if replica.seen is None else replica.seen.applied
        barred[replica.url] = Barred(
            now + refusal.after_s, f"{refusal.code}: {refusal.message}", applied, final=not refusal.again
        )

    def _hold(self, replica: Replica, why: str, seconds: float) -> None:
        replica.hold(self._clock.monotonic() + seconds, why)

    # --- saying why --------------------------------------------------------------------------------------------------

    def _nobody(self, wish: Wish, barred: Mapping[str, Barred], *, hopeless: bool) -> NoReplica:
        table = self._table(wish, barred)
        many = f"none of {len(table)} replicas" if table else "no replica, for none is there,"
        each = "; ".join(f"{row['replica']}: {row['why']}" for row in table[:8])
        more = f"; and {len(table) - 8} more" if len(table) > 8 else ""
        trouble = f"; replicas cannot be listed now: {self.trouble}" if self.trouble else ""
        return NoReplica(
            f"{many} took the request: {each or 'check the run and --advertise'}{more}{trouble}",
            table,
            retry=not hopeless,
        )

    def _table(self, wish: Wish, barred: Mapping[str, Barred]) -> list[dict[str, Any]]:
        now = self._clock.monotonic()
        return [self._row(replica, wish, barred, now) for replica in self._roster.replicas]

    def _row(self, replica: Replica, wish: Wish, barred: Mapping[str, Barred], now: float) -> dict[str, Any]:
        verdict = judge(replica, wish, now, barred=barred, run=self._run)
        seen = replica.seen
        return {
            "replica": replica.name,
            "url": replica.url,
            "applied": seen and seen.applied,
            "target": seen and seen.target,
            "proven": bool(seen and seen.ready),
            "seen_seconds": None if seen is None else round(now - seen.at, 1),
            "in_flight": replica.in_flight,
            "load": replica.load,
            "able": verdict.able.value,
            "held": now < replica.held_until,
            "why": barred[replica.url].why if verdict.able is Able.SOON and replica.url in barred else verdict.why,
        }


def _once_more(found: Picked, tried: Collection[str]) -> bool:
    """When patience is over: a first try, or one where the request can be taken now and was not refused before."""
    return not tried or (found.able is Able.NOW and found.replica.url not in tried)
