"""Has due objects looked at, several at a time but never one twice, while this process leads; turns what went wrong
into a later look.

Decides nothing about objects. A look ends within its deadline, whatever it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import Rejected, Retryable
from syncline_operator.kube.errors import ApiFailure, NotLeading, Outdated
from syncline_operator.kube.resources import ObjectKey, Resource
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.work.queue import WorkQueue

LOOK_S = 1.0
"""How long nothing is noticed that nobody tells: leadership that ran out or came."""

Reconcile = Callable[[ObjectKey], Awaitable[float | None]]
"""Bring an object nearer to what is wanted; returns the seconds after which to look again whatever happens, or None."""


class Workers:
    """The loop between queue and reconciles."""

    def __init__(
        self,
        queue: WorkQueue,
        reconciles: Mapping[Resource, Reconcile],
        *,
        may_work: Callable[[], bool],
        at_once: int,
        deadline_s: float,
        metrics: OperatorMetrics,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self._queue = queue
        self._reconciles = reconciles
        self._may_work = may_work
        self._at_once = at_once
        self._deadline_s = deadline_s
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._woken = asyncio.Event()
        queue.woken = self._woken.set

    async def run(self) -> None:
        """Work until cancelled; then what is being worked on is broken off."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._woken.clear()
                while len(running) < self._at_once and self._may_work():
                    key = self._queue.take()
                    if key is None:
                        break
                    task = asyncio.create_task(self._look(key), name=f"looking at {key}")
                    running.add(task)
                    task.add_done_callback(lambda ended: (running.discard(ended), self._woken.set()))
                self._metrics.queue_depth.set(self._queue.depth)
                self._metrics.queue_age.set(self._queue.age_s if self._may_work() else 0.0)
                due_s = self._queue.next_s() if len(running) < self._at_once and self._may_work() else None
                try:
                    # Not wait_for, which before Python 3.12 may forget that it was cancelled.
                    async with asyncio.timeout(min(LOOK_S, LOOK_S if due_s is None else due_s)):
                        await self._woken.wait()
                except TimeoutError:
                    pass
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _look(self, key: ObjectKey) -> None:
        begun = self._clock.monotonic()
        outcome = "cancelled"
        try:
            outcome = await self._try(key)
        finally:
            if outcome == "cancelled":
                self._queue.done(key)
            took = self._clock.monotonic() - begun
            self._metrics.reconcile_seconds.labels(key.resource.kind, outcome).observe(took)

    async def _try(self, key: ObjectKey) -> str:
        try:
            async with asyncio.timeout(self._deadline_s):
                again_s = await self._reconciles[key.resource](key)
        except NotLeading:
            self._queue.done(key, again_s=0.0)  # should this process lead again, the object's turn comes
            return "not leading"
        except Outdated as error:
            self._later(key, "outdated", error)
            return "outdated"
        except Retryable as error:
            self._later(key, "could not look", error)
            return "retry"
        except Rejected as error:
            self._later(key, "was refused", error)
            return "refused"
        except TimeoutError as error:
            self._later(key, f"took longer than {self._deadline_s:g} s", error)
            return "late"
        except Exception as error:
            self._later(key, "failed unexpectedly", error, exc_info=True)
            return "failed"
        self._queue.done(key, again_s=again_s)
        return "done"

    def _later(self, key: ObjectKey, what: str, error: BaseException, *, exc_info: bool = False) -> None:
        at_least_s = error.retry_after if isinstance(error, ApiFailure) else 0.0
        delay = self._queue.retry(key, at_least_s=at_least_s)
        tell = self._log.debug if isinstance(error, Outdated) else self._log.warning
        tell(what, object=str(key), reason=str(error), again_s=round(delay, 1), exc_info=exc_info)
