"""Events that people read in `kubectl describe`: Normal or Warning, of events.k8s.io/v1, one series for what repeats.

What is noted waits in memory and is written by `run`, so that no reconcile waits for it or fails by it. What comes too
fast is counted and dropped: a bucket an object, and one for all.
"""

from __future__ import annotations

import asyncio
import datetime
import random
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import SynclineError
from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.errors import Absent, NotLeading
from syncline_operator.kube.resources import EVENTS, Document, FieldManager, ObjectKey
from syncline_operator.kube.writing import Leadership
from syncline_operator.metrics import OperatorMetrics

CONTROLLER = "syncline.dev/operator"
MANAGER = FieldManager("syncline-events")
NOTE = 1024
"""Characters of a note; the API takes as many."""


class EventType(StrEnum):
    """The two that the API knows."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class EventSettings:
    """How much is written."""

    refresh_s: float = 60.0
    """A series is brought up to date no more often."""
    forget_s: float = 360.0
    """What was quiet for so long is news when it comes again."""
    an_object: int = 25
    an_object_s: float = 60.0
    """An object may have so many different Events at once, and one more each so many seconds."""
    per_s: float = 5.0
    at_once: int = 50
    look_s: float = 0.5


@dataclass(slots=True)
class _Series:
    first_at: float
    last_at: float
    stamp: float
    note: str
    regarding: Document
    count: int = 1
    written: int = 0
    written_at: float = 0.0
    written_note: str = ""
    key: ObjectKey | None = None


_What = tuple[str, EventType, str, str]


class Recorder:
    """The Events of one process."""

    def __init__(
        self,
        client: KubeClient,
        leadership: Leadership,
        settings: EventSettings,
        *,
        instance: str,
        metrics: OperatorMetrics,
        clock: Clock,
        randomness: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._leadership = leadership
        self._settings = settings
        self._instance = instance[:128]
        self._metrics = metrics
        self._clock = clock
        self._randomness = randomness
        self._log = log
        self._series: OrderedDict[_What, _Series] = OrderedDict()
        self._spent: dict[str, float] = {}
        self._spent_by_all = clock.monotonic() - settings.at_once / settings.per_s

    def note(self, document: Document, kind: EventType, reason: str, note: str, *, action: str = "Reconcile") -> None:
        """Something happened to `document`: `reason` is one word in CamelCase, `note` a sentence."""
        metadata, now = document["metadata"], self._clock.monotonic()
        what = (metadata["uid"], kind, reason, action)
        held = self._series.get(what)
        if held is not None and now - held.last_at < self._settings.forget_s:
            held.count += 1
            held.last_at, held.stamp, held.note = now, self._clock.now(), note
            return
        if not self._has_room(metadata["uid"], now):
            self._metrics.events_dropped.labels("rate").inc()
            return
        regarding = {
            name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in metadata
        }
        regarding |= {"apiVersion": document["apiVersion"], "kind": document["kind"]}
        self._series[what] = _Series(now, now, self._clock.now(), note, regarding)

    async def run(self) -> None:
        """Write what was noted until cancelled."""
        while True:
            await self.write()
            await asyncio.sleep(self._settings.look_s)

    async def write(self) -> None:
        """Write what is due now."""
        now = self._clock.monotonic()
        for what, series in list(self._series.items()):
            due = series.key is None or now - series.written_at >= self._settings.refresh_s
            if series.written < series.count and due and not await self._write(what, series):
                return
            if series.written == series.count and now - series.last_at >= self._settings.forget_s:
                self._series.pop(what, None)
        for uid in [uid for uid, spent in self._spent.items() if spent <= now - self._full_s]:
            del self._spent[uid]

    async def _write(self, what: _What, series: _Series) -> bool:
        """False where the server cannot be asked now."""
        count = series.count
        try:
            left = self._leadership.seconds_left()
            if left <= 0:
                raise NotLeading("this process does not hold the Lease; whoever does tells")
            if series.note != series.written_note:  # the API lets no note be changed: the newer one is another Event
                series.key = None
            if series.key is not None:
                try:
                    lasts = {"count": count, "lastObservedTime": _stamp(series.stamp)}
                    await self._client.merge(series.key, {"series": lasts}, manager=MANAGER, timeout_s=left)
                except Absent:  # the server keeps Events for an hour
                    series.key = None
            if series.key is None:
                made = self._event(what, series)
                await self._client.create(EVENTS, made, manager=MANAGER, timeout_s=left)
                series.key, series.written_note = EVENTS.key(made), series.note
        except NotLeading:
            self._series.pop(what, None)
            self._metrics.events_dropped.labels("not_leading").inc()
            return True
        except SynclineError as error:
            self._log.warning("could not write an event", about=series.regarding["name"], reason=str(error))
            self._metrics.events_dropped.labels("failed").inc()
            series.written, series.written_at = count, self._clock.monotonic()
            if series.key is None:
                self._series.pop(what, None)
            return False
        series.written, series.written_at = count, self._clock.monotonic()
        return True

    def _event(self, what: _What, series: _Series) -> Document:
        _, kind, reason, action = what
        namespace = series.regarding.get("namespace") or "default"
        name = f"{series.regarding['name'][:200]}.{self._randomness.getrandbits(64):016x}"
        event: Document = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": _stamp(series.stamp),
            "type": kind.value,
            "reason": reason,
            "action": action,
            "note": series.note[:NOTE],
            "regarding": series.regarding,
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
        }
        if series.count > 1:
            event["series"] = {"count": series.count, "lastObservedTime": _stamp(series.stamp)}
        return event

    @property
    def _full_s(self) -> float:
        return self._settings.an_object * self._settings.an_object_s

    def _has_room(self, uid: str, now: float) -> bool:
        settings = self._settings
        own = max(self._spent.get(uid, 0.0), now - self._full_s) + settings.an_object_s
        by_all = max(self._spent_by_all, now - settings.at_once / settings.per_s) + 1 / settings.per_s
        if own > now or by_all > now:
            return False
        self._spent[uid], self._spent_by_all = own, by_all
        return True


def _stamp(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
