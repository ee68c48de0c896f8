"""Writes at a real API server: nothing where nothing changed, never over what was not seen, never without leading."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syncline.clock import SystemClock
from syncline_operator.kube.access import find_access
from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.errors import Absent, FieldsTaken, Malformed, NotLeading, Occupied, Outdated
from syncline_operator.kube.resources import CONFIG_MAPS, DEPLOYMENTS, Document, FieldManager, ObjectKey, Resource
from syncline_operator.kube.writing import Writer
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.testing.control_plane import Cluster
from syncline_operator.testing.objects import rollout_pool
from syncline_operator.testing.relay import Relay

POOLS = Resource("syncline.dev", "v1alpha1", "rolloutpools", "RolloutPool")
MINE = FieldManager("syncline-pool")
STATUS = FieldManager("syncline-status")
THEIRS = FieldManager("theirs")


class Leading:
    """Leads for as long as it is told to."""

    def __init__(self) -> None:
        self.left = 30.0

    def seconds_left(self) -> float:
        return self.left


@pytest.fixture
def relay(cluster: Cluster, tmp_path: Path) -> Iterator[Relay]:
    with Relay(cluster, tmp_path) as relay:
        yield relay


def run(relay: Relay, scenario: Callable[[KubeClient, Writer, Leading], Awaitable[None]]) -> None:
    async def go() -> None:
        access = await find_access({"KUBECONFIG": str(relay.kubeconfig)})
        async with KubeClient(access, metrics=OperatorMetrics(), clock=SystemClock()) as client:
            leading = Leading()
            await scenario(client, Writer(client, leading), leading)

    asyncio.run(go())


def written(relay: Relay) -> int:
    return sum(asked.writes for asked in relay.asked)


def config_map(namespace: str, name: str, **data: str | None) -> Document:
    return {"metadata": {"name": name, "namespace": namespace, "labels": {"of": "a-test"}}, "data": data}


def deployment(namespace: str, name: str) -> Document:
    """With a quantity, a port and a mount, all of which the server writes otherwise than they are said here."""
    container = {
        "name": "main",
        "image": "example.com/a:1",
        "ports": [{"containerPort": 80}],
        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}},
        "env": [{"name": "A", "value": ""}],
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], "nodeSelector": None}}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    }


@pytest.mark.parametrize("make", [config_map, deployment])
def test_what_is_there_already_is_not_sent_again(
    relay: Relay, namespace: str, make: Callable[[str, str], Document]
) -> None:
    resource = DEPLOYMENTS if make is deployment else CONFIG_MAPS
    wanted = make(namespace, "idle")

    async def scenario(client: KubeClient, writer: Writer, _: Leading) -> None:
        made = await writer.apply(resource, wanted, None, manager=MINE)
        assert 1 == written(relay)
        key = ObjectKey(resource, namespace, "idle")
        for observed in (made, await client.get(key)):
            assert observed == await writer.apply(resource, wanted, observed, manager=MINE)
        assert 1 == written(relay)
        await client.merge(key, {"metadata": {"annotations": {"theirs": "1"}}}, manager=THEIRS)
        observed = await client.get(key)
        assert observed == await writer.apply(resource, wanted, observed, manager=MINE)
        assert 2 == written(relay)

    run(relay, scenario)


def test_what_changed_is_sent_and_what_is_no_longer_wanted_goes_and_what_others_own_stays(
    relay: Relay, namespace: str
) -> None:
    async def scenario(client: KubeClient, writer: Writer, _: Leading) -> None:
        key = ObjectKey(CONFIG_MAPS, namespace, "changing")
        await writer.apply(CONFIG_MAPS, config_map(namespace, "changing", a="1", b="1"), None, manager=MINE)
        await client.merge(key, {"data": {"theirs": "1", "a": "9"}}, manager=THEIRS)
        observed = await client.get(key)
        result = await writer.apply(
            CONFIG_MAPS, config_map(namespace, "changing", a="2", b=None), observed, manager=MINE
        )
        assert {"a": "2", "theirs": "1"} == result["data"]
        with pytest.raises(FieldsTaken, match=r"\.data\.theirs"):
            yielding = config_map(namespace, "changing", a="2", theirs="2")
            await writer.apply(CONFIG_MAPS, yielding, result, manager=MINE, force=False)

    run(relay, scenario)


def test_a_write_that_was_thought_out_before_somebody_else_s_is_refused(relay: Relay, namespace: str) -> None:
    async def scenario(client: KubeClient, writer: Writer, _: Leading) -> None:
        key = ObjectKey(CONFIG_MAPS, namespace, "fenced")
        first = await writer.apply(CONFIG_MAPS, config_map(namespace, "fenced", by="new"), None, manager=MINE)
        second = await writer.apply(CONFIG_MAPS, config_map(namespace, "fenced", by="newer"), first, manager=MINE)
        with pytest.raises(Outdated):
            await writer.apply(CONFIG_MAPS, config_map(namespace, "fenced", by="old"), first, manager=MINE)
        with pytest.raises(Outdated):
            await writer.delete(CONFIG_MAPS, first)
        assert "newer" == (await client.get(key))["data"]["by"]
        await writer.delete(CONFIG_MAPS, second)
        await writer.delete(CONFIG_MAPS, second)
        with pytest.raises(Outdated):  # what is gone does not come back
            await writer.apply(CONFIG_MAPS, config_map(namespace, "fenced", by="old"), second, manager=MINE)
        with pytest.raises(Absent):
            await client.get(key)

    run(relay, scenario)


def test_an_object_that_was_not_seen_is_taken_if_it_is_this_manager_s_and_left_alone_if_not(
    relay: Relay, namespace: str
) -> None:
    async def scenario(client: KubeClient, writer: Writer, leading: Leading) -> None:
        wanted = config_map(namespace, "unseen", a="1")
        await writer.apply(CONFIG_MAPS, wanted, None, manager=MINE)
        key = ObjectKey(CONFIG_MAPS, namespace, "unseen")
        await client.merge(key, {"metadata": {"labels": None}}, manager=THEIRS)
        result = await writer.apply(CONFIG_MAPS, wanted, None, manager=MINE)
        assert wanted["metadata"]["labels"] == result["metadata"]["labels"]

        theirs = await client.create(CONFIG_MAPS, config_map(namespace, "theirs", a="9"), manager=THEIRS)
        with pytest.raises(Occupied, match="was not made by this operator; delete it or give it another name"):
            await writer.apply(CONFIG_MAPS, config_map(namespace, "theirs", a="1"), None, manager=MINE)
        assert theirs == await client.get(ObjectKey(CONFIG_MAPS, namespace, "theirs"))

    run(relay, scenario)


def test_a_request_that_left_late_out_of_a_process_that_no_longer_leads_is_refused(
    relay: Relay, namespace: str
) -> None:
    async def scenario(client: KubeClient, writer: Writer, leading: Leading) -> None:
        class UntilAsked(Leading):
            """Leads when it is asked first, as a process does that is frozen right after it asked, and then no more."""

            def seconds_left(self) -> float:
                left, self.left = self.left, 0.0
                return left

        late = Writer(client, UntilAsked())
        await writer.apply(CONFIG_MAPS, config_map(namespace, "late", by="new"), None, manager=MINE)
        with pytest.raises(NotLeading):
            await late.apply(CONFIG_MAPS, config_map(namespace, "late", by="old"), None, manager=MINE)
        there = await client.get(ObjectKey(CONFIG_MAPS, namespace, "late"))
        assert "new" == there["data"]["by"]

    run(relay, scenario)


def test_who_does_not_lead_writes_nothing(relay: Relay, namespace: str) -> None:
    async def scenario(client: KubeClient, writer: Writer, leading: Leading) -> None:
        made = await writer.apply(CONFIG_MAPS, config_map(namespace, "led", a="1"), None, manager=MINE)
        leading.left = 0.0
        before = written(relay)
        for write in (
            writer.apply(CONFIG_MAPS, config_map(namespace, "led", a="2"), made, manager=MINE),
            writer.apply(CONFIG_MAPS, config_map(namespace, "led-2", a="2"), None, manager=MINE),
            writer.delete(CONFIG_MAPS, made),
            writer.write_status(POOLS, made, {"replicas": 1}, manager=STATUS),
        ):
            with pytest.raises(NotLeading, match="does not hold the Lease"):
                await write
        assert before == written(relay)
        assert made == await writer.apply(CONFIG_MAPS, config_map(namespace, "led", a="1"), made, manager=MINE)

    run(relay, scenario)


def test_a_status_goes_out_whole_once_and_only_on_the_object_that_it_is_about(relay: Relay, namespace: str) -> None:
    async def scenario(client: KubeClient, writer: Writer, _: Leading) -> None:
        pool = rollout_pool("told")
        pool["metadata"]["namespace"] = namespace
        observed = await client.create(POOLS, pool, manager=THEIRS)
        condition: dict[str, Any] = {
            "type": "Ready",
            "status": "True",
            "reason": "Serving",
            "message": "all of it",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        status = {"replicas": 2, "readyReplicas": 1, "conditions": [condition], "updateRevision": None}
        before = written(relay)
        told = await writer.write_status(POOLS, observed, status, manager=STATUS)
        assert status | {"observedGeneration": 1} == told["status"] | {"updateRevision": None}
        assert told == await writer.write_status(POOLS, told, status, manager=STATUS)
        assert before + 1 == written(relay)

        key = POOLS.key(observed)
        edited = await client.merge(key, {"spec": {"replicas": 5}}, manager=THEIRS)
        with pytest.raises(Outdated):  # computed before the edit: it would speak of a spec that is no more
            await writer.write_status(POOLS, told, status | {"replicas": 3}, manager=STATUS)
        newer = await writer.write_status(POOLS, edited, {"replicas": 3, "conditions": [condition]}, manager=STATUS)
        assert {"observedGeneration": 2, "replicas": 3, "conditions": [condition]} == newer["status"]
        assert 5 == newer["spec"]["replicas"]

    run(relay, scenario)


def test_a_child_is_judged_without_being_kept(relay: Relay, namespace: str) -> None:
    async def scenario(client: KubeClient, writer: Writer, _: Leading) -> None:
        good, bad = deployment(namespace, "tried"), deployment(namespace, "tried")
        await writer.try_out(DEPLOYMENTS, good, manager=MINE)
        bad["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 70_000}]
        with pytest.raises(Malformed, match="containerPort: Invalid value: 70000: must be between 1 and 65535"):
            await writer.try_out(DEPLOYMENTS, bad, manager=MINE)
        bad["spec"]["template"]["spec"]["containers"][0]["ports"] = None
        bad["spec"]["template"]["spec"]["contianers"] = []
        with pytest.raises(Malformed, match="contianers"):
            await writer.try_out(DEPLOYMENTS, bad, manager=MINE)
        with pytest.raises(Absent):
            await client.get(ObjectKey(DEPLOYMENTS, namespace, "tried"))

    run(relay, scenario)


def test_a_finalizer_is_a_field_that_one_manager_owns(relay: Relay, namespace: str) -> None:
    async def scenario(client: KubeClient, writer: Writer, _: Leading) -> None:
        own = FieldManager("syncline-finalizer")
        bare: Document = {"metadata": {"name": "ending", "namespace": namespace}}
        held: Document = {"metadata": bare["metadata"] | {"finalizers": ["syncline.dev/cleanup"]}}
        pool = rollout_pool("ending")
        pool["metadata"] |= {"namespace": namespace, "finalizers": ["theirs.example.com/hold"]}
        observed = await client.create(POOLS, pool, manager=THEIRS)
        observed = await writer.apply(POOLS, held, observed, manager=own)
        assert {"theirs.example.com/hold", "syncline.dev/cleanup"} == set(observed["metadata"]["finalizers"])
        await client.delete(POOLS.key(observed), uid=observed["metadata"]["uid"])
        observed = await client.get(POOLS.key(observed))
        observed = await writer.apply(POOLS, bare, observed, manager=own)
        assert ["theirs.example.com/hold"] == observed["metadata"]["finalizers"]
        await client.merge(POOLS.key(observed), {"metadata": {"finalizers": None}}, manager=THEIRS)
        with pytest.raises(Absent):
            await client.get(POOLS.key(observed))

    run(relay, scenario)
