"""Who leads, by a Lease of coordination.k8s.io: at most one process at a time, and none longer than it can be sure.

No clock is compared with another machine's: a candidate counts from when it last saw the Lease change, a leader from
before it asked to renew it. A leader stops being sure `sure_s` after that, well before a candidate takes the Lease over
at `lasts_s`; in between its last requests run out. A process that was stopped finds on its first look at the clock that
it no longer leads.
"""

from __future__ import annotations

import asyncio
import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import SynclineError
from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.errors import Absent, Outdated
from syncline_operator.kube.resources import LEASES, Document, FieldManager, ObjectKey

MANAGER = FieldManager("syncline-leader")


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Where the Lease is, and its times."""

    namespace: str
    name: str = "syncline-operator"
    lasts_s: float = 15.0
    sure_s: float = 10.0
    renew_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.renew_s < self.sure_s < self.lasts_s:
            raise ValueError(
                f"a Lease needs renew_s < sure_s < lasts_s, not {self.renew_s}, {self.sure_s}, {self.lasts_s}"
            )


class Election:
    """This process's candidacy; `Leadership` of its writes."""

    def __init__(
        self,
        client: KubeClient,
        settings: LeaseSettings,
        *,
        identity: str,
        clock: Clock,
        randomness: random.Random,
        log: FilteringBoundLogger,
        changed: Callable[[bool], None] = lambda leads: None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._key = ObjectKey(LEASES, settings.namespace, settings.name)
        self.identity = identity
        self._clock = clock
        self._randomness = randomness
        self._log = log
        self._changed = changed
        self._until = clock.monotonic()
        self._led = False
        self._mine: Document | None = None
        """As this process wrote it last: renewed without being read, unless somebody else wrote since."""
        self._seen: tuple[object, ...] | None = None
        self._seen_at = clock.monotonic()
        self._failed: str | None = None

    def seconds_left(self) -> float:
        return self._until - self._clock.monotonic()

    @property
    def leads(self) -> bool:
        return self.seconds_left() > 0

    async def run(self) -> None:
        """Stand for election until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._settings.renew_s * self._randomness.uniform(0.8, 1.2))

    async def look(self) -> None:
        """One try to get or to keep the Lease."""
        asked = self._clock.monotonic()
        try:
            if await self._holds(asked):
                self._until = asked + self._settings.sure_s
            else:
                self._until = asked
            self._failed = None
        except SynclineError as error:  # what is held stays held until it runs out
            if str(error) != self._failed:  # of a server that is down once, not every other second
                self._log.warning("could not look at the lease", lease=str(self._key), reason=str(error))
            self._failed = str(error)
        self._tell()

    async def give_back(self) -> None:
        """Let the next one lead at once; called when nothing here writes any more."""
        led, self._until, self._mine = self.leads, self._clock.monotonic(), None
        self._tell()
        if not led:
            return
        try:
            lease = await self._client.get(self._key, timeout_s=self._settings.renew_s)
            if lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(self._key, lease, manager=MANAGER, timeout_s=self._settings.renew_s)
        except SynclineError as error:  # then it runs out by itself
            self._log.warning("could not give the lease back", lease=str(self._key), reason=str(error))

    async def _holds(self, asked: float) -> bool:
        patience = self._settings.lasts_s - self._settings.sure_s
        if self._mine is not None:
            claim, self._mine = self._claim(self._mine), None
            try:
                self._mine = await self._client.replace(self._key, claim, manager=MANAGER, timeout_s=patience)
            except (Outdated, Absent):  # somebody else wrote or deleted it: look
                pass
            else:
                return True
        try:
            lease = await self._client.get(self._key, timeout_s=patience)
        except Absent:
            claim = self._claim(None)
            self._mine = await self._client.create(LEASES, claim, manager=MANAGER, timeout_s=patience)
            return True
        spec: dict[str, Any] = lease.get("spec") or {}
        record = tuple(spec.get(name) for name in ("holderIdentity", "acquireTime", "renewTime", "leaseTransitions"))
        if record != self._seen:
            self._seen, self._seen_at = record, asked
        holder = spec.get("holderIdentity")
        lasts_s = max(self._settings.lasts_s, float(spec.get("leaseDurationSeconds") or 0))
        if holder and holder != self.identity and asked - self._seen_at < lasts_s:
            return False
        # The resourceVersion that was read goes along: of two that take it at once, one is refused.
        self._mine = await self._client.replace(self._key, self._claim(lease), manager=MANAGER, timeout_s=patience)
        return True

    def _claim(self, lease: Document | None) -> Document:
        now = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        held: dict[str, Any] = (lease or {}).get("spec") or {}
        mine = held.get("holderIdentity") == self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._settings.lasts_s)),
            "acquireTime": held.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": int(held.get("leaseTransitions") or 0) + (lease is not None and not mine),
        }
        if lease is not None:
            return lease | {"spec": spec}
        metadata = {"name": self._key.name, "namespace": self._key.namespace}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    def _tell(self) -> None:
        if self.leads == self._led:
            return
        self._led = not self._led
        self._log.info("leads" if self._led else "leads no longer", lease=str(self._key), identity=self.identity)
        self._changed(self._led)
