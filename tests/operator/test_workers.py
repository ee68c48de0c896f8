"""What becomes of a look that ends well, badly, late or not at all; and when a probe gives a process up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from aiohttp.test_utils import TestClient, TestServer

from syncline.clock import ManualClock, SystemClock
from syncline.errors import SynclineError
from syncline.logs import logger
from syncline_operator.kube.client import Listing
from syncline_operator.kube.errors import Malformed, NotLeading, Outdated, Throttled, Unreachable
from syncline_operator.kube.resources import CONFIG_MAPS, PODS, ObjectKey
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.work.health import Health, HealthSettings, make_app
from syncline_operator.work.queue import QueueSettings, WorkQueue
from syncline_operator.work.seen import Seen
from syncline_operator.work.workers import Workers

A, B = (ObjectKey(CONFIG_MAPS, "any", name) for name in "ab")


class Bench:
    """Workers over a reconcile that does what the test says."""

    def __init__(self, look: Callable[[ObjectKey], Awaitable[float | None]], *, deadline_s: float = 30.0) -> None:
        self.metrics = OperatorMetrics()
        self.works = True
        settings = QueueSettings(settle_s=0, backoff_s=0.001, backoff_max_s=0.001)
        self.queue = WorkQueue(settings, clock=SystemClock(), randomness=random.Random(1))
        self.workers = Workers(
            self.queue,
            {CONFIG_MAPS: look},
            may_work=lambda: self.works,
            at_once=4,
            deadline_s=deadline_s,
            metrics=self.metrics,
            clock=SystemClock(),
            log=logger("test"),
        )

    def looks(self, outcome: str) -> float:
        labels = {"kind": "ConfigMap", "outcome": outcome}
        return self.metrics.registry.get_sample_value("syncline_operator_reconcile_seconds_count", labels) or 0

    async def run(self, until: asyncio.Event) -> None:
        working = asyncio.create_task(self.workers.run())
        try:
            await asyncio.wait_for(until.wait(), timeout=60)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Outdated("changed"), "outdated"),
        (Unreachable("down"), "retry"),
        (Throttled("busy", retry_after=0.05), "retry"),
        (Malformed("no"), "refused"),
        (SynclineError("unforeseen"), "failed"),
        (KeyError("a fault of ours"), "failed"),
        (TimeoutError(), "late"),
        (NotLeading("lost"), "not leading"),
    ],
)
def test_whatever_a_look_ends_with_the_object_s_turn_comes_again(error: Exception, outcome: str) -> None:
    async def go() -> None:
        well, turns = asyncio.Event(), 0

        async def look(_: ObjectKey) -> float | None:
            nonlocal turns
            turns += 1
            if turns < 3:
                raise error
            well.set()
            return None

        bench = Bench(look)
        bench.queue.add(A)
        await bench.run(well)
        assert (3, 2) == (turns, bench.looks(outcome))

    asyncio.run(go())


def test_a_look_that_never_ends_is_broken_off_and_keeps_nobody_waiting() -> None:
    async def go() -> None:
        broken_off, other = asyncio.Event(), asyncio.Event()

        async def look(key: ObjectKey) -> float | None:
            if key == B:
                other.set()
                return None
            if not broken_off.is_set():
                try:
                    await asyncio.Event().wait()
                finally:
                    broken_off.set()
            await other.wait()
            both.set()
            return None

        both = asyncio.Event()
        bench = Bench(look, deadline_s=0.05)
        bench.queue.add(A)
        bench.queue.add(B)
        await bench.run(both)
        assert 1 <= bench.looks("late")

    asyncio.run(go())


def test_an_object_is_looked_at_by_one_at_a_time_and_others_beside_it() -> None:
    async def go() -> None:
        running: list[ObjectKey] = []
        most: list[int] = []
        done, turns = asyncio.Event(), 0

        async def look(key: ObjectKey) -> float | None:
            nonlocal turns
            assert key not in running
            running.append(key)
            most.append(len(running))
            bench.queue.add(key)
            await asyncio.sleep(0.002)
            running.remove(key)
            turns += 1
            if turns > 1000:
                done.set()
            return None

        bench = Bench(look)
        for number in range(6):
            bench.queue.add(ObjectKey(CONFIG_MAPS, "any", str(number)))
        await bench.run(done)
        assert 4 == max(most)

    asyncio.run(go())


def test_who_does_not_lead_looks_at_nothing() -> None:
    async def go() -> None:
        looked = asyncio.Event()

        async def look(_: ObjectKey) -> float | None:
            assert bench.works
            looked.set()
            return None

        bench = Bench(look)
        bench.works = False
        bench.queue.add(A)
        working = asyncio.create_task(bench.run(looked))
        await asyncio.sleep(0.05)
        assert not looked.is_set()
        bench.works = True
        bench.queue.restart()
        await working

    asyncio.run(go())


def test_an_object_may_ask_to_be_looked_at_again() -> None:
    async def go() -> None:
        again, turns = asyncio.Event(), 0

        async def look(_: ObjectKey) -> float | None:
            nonlocal turns
            turns += 1
            if turns == 2:
                again.set()
            return 0.01

        bench = Bench(look)
        bench.queue.add(A)
        await bench.run(again)

    asyncio.run(go())


def test_probes_say_why() -> None:
    clock = ManualClock()
    queue = WorkQueue(QueueSettings(), clock=clock, randomness=random.Random(1))
    missed, works = {CONFIG_MAPS: 0, PODS: 0}, [True]
    seen, failed = [Seen(CONFIG_MAPS), Seen(PODS)], {PODS: "listing pods: forbidden"}
    health = Health(HealthSettings(), queue=queue, works=lambda: works[0], missed=missed, seen=seen, failed=failed)

    async def go() -> None:
        async with TestClient(TestServer(make_app(health, OperatorMetrics().registry))) as client:

            async def ask(path: str) -> tuple[int, str]:
                async with client.get(path) as answer:
                    return answer.status, (await answer.text()).strip()

            assert (503, "not listed yet: configmaps, pods (listing pods: forbidden)") == await ask("/readyz")
            failed.clear()
            assert (503, "not listed yet: configmaps, pods") == await ask("/readyz")
            for known in seen:
                known.compare([Listing([], "1")])
            assert (200, "ready") == await ask("/readyz")

            assert (200, "alive") == await ask("/livez")
            queue.add(A)
            clock.advance(301)
            assert (500, "an object has been due for 301 s, more than 300") == await ask("/livez")
            works[0] = False  # another leads, and looks at it
            assert (200, "alive") == await ask("/livez")
            works[0] = True
            queue.take()
            clock.advance(301)
            assert (500, "an object has been due for 301 s, more than 300") == await ask("/livez")
            queue.done(A)
            assert (200, "alive") == await ask("/livez")
            missed[PODS] = 2
            told = "the watch of pods is stuck: 2 lists in a row found what it had not told"
            assert (500, told) == await ask("/livez")
            status, text = await ask("/metrics")
            assert 200 == status
            assert "syncline_operator_queue_depth 0.0" in text

    asyncio.run(go())
