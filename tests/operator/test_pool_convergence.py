"""Whatever happened before and in whatever order it was seen: a pool comes to the same end, and then nothing is written."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.clock import SystemClock
from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.access import find_access
from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.resources import CONFIG_MAPS, Document, Resource
from syncline_operator.kube.writing import Writer
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.pools.beside import PoolSettings
from syncline_operator.pools.deciding import decide
from syncline_operator.pools.observed import Observed
from syncline_operator.testing.control_plane import Cluster
from syncline_operator.testing.objects import rollout_pool
from syncline_operator.testing.pools import agent_pod, carried_out, engine_pod, said

SETTINGS = PoolSettings(image="registry.example.com/syncline/agent:1", cluster="eu-1")
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 6),
        "suspend": st.booleans(),
        "agent__mode": st.sampled_from(["Node", "Sidecar"]),
        "agent__serviceAccountName": st.just("own"),
        "networkPolicy": st.sampled_from(["Managed", "None"]),
        "engine": st.sampled_from([{"type": kind} for kind in ("vLLM", "SGLang", "Reference")]),
        "versionPolicy": st.sampled_from(
            [
                {"type": "Pinned", "version": 7},
                {"maxVersionLag": 1, "staleAction": "MarkNotReady"},
                {"maxLagSeconds": 9, "requestPolicy": "Abort"},
            ]
        ),
        "updateStrategy": st.sampled_from([{"type": "Recreate"}, {"rollingUpdate": {"maxUnavailable": 2}}]),
    },
)
REPLICAS = st.tuples(st.booleans(), st.booleans(), st.integers(6, 9), st.integers(0, 4), st.integers(0, 2))
"""Ready, doomed, the version that is served, versions behind, and whether its agent is there, silent or unarmed."""


def pool_of(spec: dict[str, Any], *, generation: int, namespace: str = "rl") -> RolloutPool:
    found = rollout_pool("pool", **spec)
    found["metadata"] |= {"namespace": namespace, "uid": "7a1f", "generation": generation}
    return RolloutPool.read(found)


def seen_of(pool: RolloutPool, fleet: list[tuple[bool, bool, int, int, int]]) -> Observed:
    pods: list[Document] = []
    agents: dict[str, Any] = {}
    for at, (ready, doomed, version, behind, agent) in enumerate(fleet):
        pod = engine_pod(pool, at, ready=ready)
        if doomed:
            pod["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True"})
        pods += [pod, agent_pod(pool, at)] if pool.shares_nodes else [pod]
        if agent:
            name = f"agent-{at}" if pool.shares_nodes else f"engine-{at}"
            kept = f"engine-{at}" if agent == 1 else "another"
            agents[name] = said(version, pod=kept, lag_versions=behind, target=version + behind)
    return Observed(pool, SETTINGS, now=1_800_000_000.0, pods=tuple(pods), said=agents)


def forgotten(children: Any) -> dict[tuple[str, str], Document]:
    """Without what tells of earlier policies, which a ConfigMap keeps."""
    return {
        (resource.kind, name): {**document, "data": None} if resource is CONFIG_MAPS else document
        for (resource, name), document in children.items()
    }


@settings(max_examples=40, deadline=None)
@given(SPECS, st.lists(SPECS, max_size=3), st.lists(REPLICAS, max_size=5), st.randoms(use_true_random=False))
def test_after_one_round_nothing_is_written_and_no_history_or_order_makes_a_difference(
    spec: dict[str, Any], before: list[dict[str, Any]], fleet: list[tuple[bool, bool, int, int, int]], shuffled: Any
) -> None:
    last = pool_of(spec, generation=9)
    fresh = seen_of(last, fleet)
    at_once = carried_out(fresh, decide(fresh))
    second = decide(at_once)
    assert ((), ()) == (second.apply, second.delete)
    at_rest = carried_out(at_once, second)  # the first look knew of no Deployment
    third = decide(at_rest)
    assert ((), (), (), False) == (third.apply, third.delete, third.events, third.urgent)
    assert at_rest.pool.status == third.status

    children: Any = {}
    for generation, earlier in enumerate(before, start=1):
        seen = dataclasses.replace(seen_of(pool_of(earlier, generation=generation), fleet), children=children)
        children = carried_out(seen, decide(seen)).children
    by_detours = dataclasses.replace(fresh, children=children)
    by_detours = carried_out(by_detours, decide(by_detours))
    assert forgotten(at_once.children) == forgotten(by_detours.children)

    pods, parts = list(at_rest.pods), list(at_rest.children.items())
    shuffled.shuffle(pods)
    shuffled.shuffle(parts)
    other = dataclasses.replace(at_rest, pods=tuple(pods), children=dict(parts))
    assert third == decide(other)


class Leading:
    def seconds_left(self) -> float:
        return 60.0


@pytest.mark.parametrize("mode", ["Node", "Sidecar"])
def test_what_an_api_server_made_of_a_pools_objects_is_not_written_again(cluster: Cluster, mode: str) -> None:
    namespace = f"syncline-pool-{uuid.uuid4().hex[:6]}"
    cluster.told("create", "namespace", namespace)
    cache: dict[str, Any] = {"sizeLimit": "20Gi"} if mode == "Sidecar" else {"hostPath": "/mnt/nvme"}
    spec = {"agent__mode": mode, "agent__cache": cache, "agent__resources": {"requests": {"cpu": "500m"}}}
    pool = pool_of(spec, generation=1, namespace=namespace)

    async def go(kubeconfig: Path) -> None:
        access = await find_access({"KUBECONFIG": str(kubeconfig)})
        async with KubeClient(access, metrics=OperatorMetrics(), clock=SystemClock()) as client:
            writer = Writer(client, Leading())
            children: dict[tuple[Resource, str], Document] = {}
            for one in decide(Observed(pool, SETTINGS, now=0.0)).apply:
                await writer.apply(one.resource, one.document, None, manager=one.manager)
                there = await client.get(one.resource.key(one.document))
                children[one.resource, one.document["metadata"]["name"]] = there
            again = decide(Observed(pool, SETTINGS, now=0.0, children=children))
            assert ((), ()) == (again.apply, again.delete)

    asyncio.run(go(cluster.kubeconfig))
    cluster.told("delete", "namespace", namespace, "--wait=false")
