"""Events as people find them at a real API server, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syncline.clock import ManualClock, SystemClock
from syncline.logs import logger
from syncline_operator.kube.access import find_access
from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.recording import EventSettings, EventType, Recorder
from syncline_operator.kube.resources import CONFIG_MAPS, EVENTS, Document, FieldManager, ObjectKey
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.testing.control_plane import Cluster
from syncline_operator.testing.relay import Relay

SETTINGS = EventSettings(refresh_s=60, forget_s=360, an_object=3, an_object_s=60, per_s=1, at_once=10)


class Leading:
    def __init__(self) -> None:
        self.left = 30.0

    def seconds_left(self) -> float:
        return self.left


class Bench:
    """A recorder, its clock, and what of it can be seen."""

    def __init__(self, client: KubeClient, namespace: str, metrics: OperatorMetrics) -> None:
        self.client = client
        self.namespace = namespace
        self.metrics = metrics
        self.clock = ManualClock()
        self.leading = Leading()
        self.recorder = Recorder(
            client,
            self.leading,
            SETTINGS,
            instance="operator-0",
            metrics=metrics,
            clock=self.clock,
            randomness=random.Random(),
            log=logger("test"),
        )

    async def object(self, name: str) -> Document:
        metadata = {"name": name, "namespace": self.namespace}
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        return await self.client.create(CONFIG_MAPS, document, manager=FieldManager("test"))

    async def events(self, document: Document) -> list[dict[str, Any]]:
        found = await self.client.list(EVENTS, namespace=self.namespace)
        mine = [item for item in found.items if item["regarding"]["uid"] == document["metadata"]["uid"]]
        return sorted(mine, key=lambda event: event["reason"])

    def dropped(self, reason: str) -> float:
        return self.metrics.registry.get_sample_value("syncline_operator_events_dropped_total", {"reason": reason}) or 0


@pytest.fixture
def relay(cluster: Cluster, tmp_path: Path) -> Iterator[Relay]:
    with Relay(cluster, tmp_path) as relay:
        yield relay


def run(relay: Relay, namespace: str, scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def go() -> None:
        metrics = OperatorMetrics()
        access = await find_access({"KUBECONFIG": str(relay.kubeconfig)})
        async with KubeClient(access, metrics=metrics, clock=SystemClock()) as client:
            await scenario(Bench(client, namespace, metrics))

    asyncio.run(go())


def test_what_happened_is_read_in_describe(relay: Relay, cluster: Cluster, namespace: str) -> None:
    async def scenario(bench: Bench) -> None:
        told = await bench.object("told")
        bench.recorder.note(
            told, EventType.WARNING, "StoreDenied", "the store refused the key pair; look at the Secret"
        )
        bench.recorder.note(told, EventType.NORMAL, "Following", "x" * 3000, action="Follow")
        await bench.recorder.write()
        first, second = await bench.events(told)
        assert ("Following", "Normal", "Follow", 1024) == (
            first["reason"],
            first["type"],
            first["action"],
            len(first["note"]),
        )
        assert ("syncline.dev/operator", "operator-0") == (second["reportingController"], second["reportingInstance"])
        assert "series" not in second

    run(relay, namespace, scenario)
    described = cluster.told("describe", "configmap", "told", "--namespace", namespace)
    assert "Warning" in described
    assert "StoreDenied" in described
    assert "the store refused the key pair; look at the Secret" in described


def test_what_repeats_is_one_series_that_is_brought_up_to_date_now_and_then(relay: Relay, namespace: str) -> None:
    async def scenario(bench: Bench) -> None:
        told = await bench.object("repeated")

        async def repeat(times: int, every_s: float) -> None:
            for _ in range(times):
                bench.recorder.note(told, EventType.WARNING, "Unreachable", "no answer")
                await bench.recorder.write()
                bench.clock.advance(every_s)

        def writes() -> int:
            return sum(asked.writes and "/events" in asked.target for asked in relay.asked)

        before = writes()
        await repeat(50, 1.0)
        assert before + 1 == writes()
        await repeat(60, 1.0)
        assert before + 2 == writes()
        (event,) = await bench.events(told)
        assert 61 == event["series"]["count"]
        bench.clock.advance(60)
        await bench.recorder.write()
        (event,) = await bench.events(told)
        assert (110, "no answer") == (event["series"]["count"], event["note"])

        await bench.client.delete(EVENTS.key(event), uid=event["metadata"]["uid"])  # the server keeps none for ever
        bench.clock.advance(60)
        bench.recorder.note(told, EventType.WARNING, "Unreachable", "no answer")
        await bench.recorder.write()
        (event,) = await bench.events(told)
        assert (111, "no answer") == (event["series"]["count"], event["note"])

        bench.clock.advance(60)
        bench.recorder.note(told, EventType.WARNING, "Unreachable", "refused")
        await bench.recorder.write()
        notes = [(event["note"], event["series"]["count"]) for event in await bench.events(told)]
        assert [("no answer", 111), ("refused", 112)] == sorted(notes)

        bench.clock.advance(400)
        await bench.recorder.write()
        bench.recorder.note(told, EventType.WARNING, "Unreachable", "anew")
        await bench.recorder.write()
        assert 3 == len(await bench.events(told))

    run(relay, namespace, scenario)


def test_a_flood_is_bounded_an_object_and_in_all(relay: Relay, namespace: str) -> None:
    async def scenario(bench: Bench) -> None:
        told = await bench.object("flooded")
        for number in range(20):
            bench.recorder.note(told, EventType.NORMAL, f"Reason{number:02}", "much")
        await bench.recorder.write()
        assert ["Reason00", "Reason01", "Reason02"] == [event["reason"] for event in await bench.events(told)]
        assert 17 == bench.dropped("rate")
        for number in range(20):
            bench.recorder.note(await bench.object(f"flooded-{number}"), EventType.NORMAL, "Reason", "much")
        assert 17 + 13 == bench.dropped("rate")
        bench.clock.advance(60)
        bench.recorder.note(told, EventType.NORMAL, "Later", "one")
        bench.recorder.note(told, EventType.NORMAL, "TooSoon", "two")
        await bench.recorder.write()
        assert "Later" in [event["reason"] for event in await bench.events(told)]
        assert 17 + 13 + 1 == bench.dropped("rate")

    run(relay, namespace, scenario)


def test_an_event_that_cannot_be_written_hinders_nobody(relay: Relay, namespace: str) -> None:
    async def scenario(bench: Bench) -> None:
        told = await bench.object("hindered")
        relay.answer_next(503)
        bench.recorder.note(told, EventType.NORMAL, "Lost", "lost")
        await bench.recorder.write()
        assert (1, []) == (bench.dropped("failed"), await bench.events(told))
        bench.leading.left = 0
        bench.recorder.note(told, EventType.NORMAL, "Following", "by one that does not lead")
        await bench.recorder.write()
        assert (1, []) == (bench.dropped("not_leading"), await bench.events(told))
        bench.leading.left = 30
        bench.recorder.note(told, EventType.NORMAL, "Leading", "x" * 10)
        await bench.recorder.write()
        assert ["Leading"] == [event["reason"] for event in await bench.events(told)]
        missing = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "gone", "namespace": "none-such", "uid": "1"},
        }
        bench.recorder.note(missing, EventType.WARNING, "Gone", "its namespace went")
        await bench.recorder.write()
        assert 2 == bench.dropped("failed")

    run(relay, namespace, scenario)


def test_objects_without_a_namespace_have_events_too(relay: Relay, namespace: str) -> None:
    async def scenario(bench: Bench) -> None:
        bench.recorder.note(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": namespace, "uid": namespace}},
            EventType.NORMAL,
            "Seen",
            "a node",
        )
        await bench.recorder.write()
        found = await bench.client.list(EVENTS, namespace="default")
        (event,) = [item for item in found.items if item["regarding"]["name"] == namespace]
        await bench.client.delete(ObjectKey(EVENTS, "default", event["metadata"]["name"]), uid=event["metadata"]["uid"])

    run(relay, namespace, scenario)
