"""Which objects are due for a look: each waits once, is worked on once at a time, and is left alone for a while after a
failure.

Pure but for the clock and randomness handed in; `Workers` waits.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from syncline.clock import Clock
from syncline_operator.kube.resources import ObjectKey


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How fast an object's turn comes again."""

    settle_s: float = 0.2
    """From the end of a look to the next one of the same object: what happens meanwhile is seen in one."""
    backoff_s: float = 0.5
    """After a first failure; doubles with each that follows, with a quarter of jitter."""
    backoff_max_s: float = 300.0
    retries_per_s: float = 10.0
    """Of all objects together, so that a server that comes back is not run over."""
    retries_at_once: int = 100


class WorkQueue:
    """Keys of objects with the time from which each is due."""

    def __init__(
        self,
        settings: QueueSettings,
        *,
        clock: Clock,
        randomness: random.Random,
        woken: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._randomness = randomness
        self.woken = woken
        """Called when a key may be due earlier than `next_s` said."""
        self._due: dict[ObjectKey, float] = {}
        self._heap: list[tuple[float, ObjectKey]] = []
        self._running: dict[ObjectKey, float] = {}
        self._failures: dict[ObjectKey, int] = {}
        self._rests: OrderedDict[ObjectKey, float] = OrderedDict()
        self._retried = clock.monotonic() - settings.retries_at_once / settings.retries_per_s

    def add(self, key: ObjectKey, *, after_s: float = 0.0) -> None:
        """Have the object looked at, once, at the earliest of all the times that were asked for."""
        now = self._clock.monotonic()
        if key in self._failures:  # what its own failed look changed must not bring it back at once
            after_s = max(after_s, self._settings.backoff_s)
        while self._rests and next(iter(self._rests.values())) <= now:
            self._rests.popitem(last=False)
        self._put(key, max(now + after_s, self._rests.get(key, now)))

    def take(self) -> ObjectKey | None:
        """The key that is due longest; it stays this caller's until `done` or `retry`."""
        now = self._clock.monotonic()
        held: list[tuple[float, ObjectKey]] = []
        found = None
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue  # was moved to an earlier time
            if key in self._running:
                held.append((due, key))
                continue
            found = key
            del self._due[key]
            self._running[key] = now
            break
        for entry in held:
            heapq.heappush(self._heap, entry)
        return found

    def next_s(self) -> float | None:
        """Seconds until a key that nobody works on is due; None without any."""
        now = self._clock.monotonic()
        times = [due for key, due in self._due.items() if key not in self._running]
        return max(0.0, min(times) - now) if times else None

    def done(self, key: ObjectKey, *, again_s: float | None = None) -> None:
        """The look came to its end; `again_s` later there is to be another one."""
        self._failures.pop(key, None)
        self._end(key)
        if again_s is not None:
            self.add(key, after_s=again_s)

    def retry(self, key: ObjectKey, *, at_least_s: float = 0.0) -> float:
        """The look failed; returns the seconds until the next."""
        settings, now = self._settings, self._clock.monotonic()
        failures = self._failures.get(key, 0) + 1
        told_meanwhile = self._due.pop(key, None) is not None
        self._end(key)
        self._failures[key] = failures
        delay = min(settings.backoff_max_s, settings.backoff_s * 2.0 ** min(failures - 1, 30))
        delay *= self._randomness.uniform(0.75, 1.25)
        idle = now - settings.retries_at_once / settings.retries_per_s
        self._retried = max(self._retried, idle) + 1 / settings.retries_per_s
        delay = max(delay, at_least_s, self._retried - now)
        if told_meanwhile:  # news may be what it failed for; or what the failed look wrote itself
            delay = min(delay, max(at_least_s, settings.backoff_s))
        self._put(key, now + delay)
        return delay

    def restart(self) -> None:
        """Count waiting from now: nobody was there to work before."""
        now = self._clock.monotonic()
        for key, due in list(self._due.items()):
            if due < now:
                self._due[key] = now
                heapq.heappush(self._heap, (now, key))
        self.woken()

    @property
    def depth(self) -> int:
        """Keys that are due and wait."""
        now = self._clock.monotonic()
        return sum(due <= now for due in self._due.values())

    @property
    def age_s(self) -> float:
        """Seconds that the key due longest has waited or been worked on."""
        now = self._clock.monotonic()
        waiting = (now - due for key, due in self._due.items() if due <= now and key not in self._running)
        return max((*waiting, *(now - begun for begun in self._running.values())), default=0.0)

    def _put(self, key: ObjectKey, due: float) -> None:
        held = self._due.get(key)
        if held is not None and held <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self.woken()

    def _end(self, key: ObjectKey) -> None:
        now = self._clock.monotonic()
        del self._running[key]
        rests_until = now + self._settings.settle_s
        self._rests[key] = rests_until
        self._rests.move_to_end(key)
        if key in self._due and self._due[key] < rests_until:
            self._due[key] = rests_until
            heapq.heappush(self._heap, (rests_until, key))
        self.woken()
