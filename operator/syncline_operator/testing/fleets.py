"""A pool of four engines that is as specified, and the ways in which it may not be, each a change of what is observed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.resources import DEPLOYMENTS, Document
from syncline_operator.pools.beside import PoolSettings
from syncline_operator.pools.deciding import Decision
from syncline_operator.pools.observed import AgentSaid, Observed, Refusal, RefusalKind
from syncline_operator.testing.objects import rollout_pool
from syncline_operator.testing.pools import agent_pod, engine_pod, said, settled

NOW = 1_800_000_000.0
SETTINGS = PoolSettings(image="registry.example.com/syncline/agent:1", cluster="eu-1")
Change = Callable[[Observed], Observed]


def pool_of(*, generation: int = 1, **changes: Any) -> RolloutPool:
    """As an API server would hand it out."""
    found = rollout_pool("pool", **changes)
    found["metadata"] |= {"namespace": "rl", "uid": "7a1f", "generation": generation}
    return RolloutPool.read(found)


def fleet(size: int = 4, version: int = 7, **changes: Any) -> Observed:
    """A pool that is as specified: engines, each with an agent on its node, all on one version."""
    pool = pool_of(replicas=size, **changes)
    pods = [engine_pod(pool, at) for at in range(size)] + [agent_pod(pool, at) for at in range(size)]
    agents = {f"agent-{at}": said(version, pod=f"engine-{at}") for at in range(size)}
    seen = settled(Observed(pool, SETTINGS, NOW, pods=tuple(pods), said=agents))
    return with_status(seen, replicas=size, updatedReplicas=size)


def with_status(observed: Observed, *, conditions: tuple[Mapping[str, Any], ...] = (), **told: int) -> Observed:
    """With what the Deployment's controller says."""
    children = dict(observed.children)
    for place, document in children.items():
        if place[0] is DEPLOYMENTS:
            status = {"observedGeneration": 1, "conditions": list(conditions), **told}
            children[place] = {**document, "status": status}
    return dataclasses.replace(observed, children=children)


def heard(observed: Observed, number: int, **more: Any) -> Observed:
    """With what one agent says changed."""
    name = f"agent-{number}"
    changed = AgentSaid.model_validate(observed.said[name].model_dump() | more)
    return dataclasses.replace(observed, said={**observed.said, name: changed})


def looked(observed: Observed, number: int, *, ready: bool = False, **status: Any) -> Observed:
    """With one engine pod as told."""
    pods = [pod for pod in observed.pods if pod["metadata"]["name"] != f"engine-{number}"]
    return dataclasses.replace(observed, pods=(*pods, engine_pod(observed.pool, number, ready=ready, **status)))


def silent(observed: Observed) -> Observed:
    """With no agent that answers."""
    return dataclasses.replace(observed, said={})


def refused(kind: RefusalKind, resource: Any = DEPLOYMENTS, name: str = "pool") -> Change:
    """With a child that the API server did not take."""
    return lambda observed: dataclasses.replace(observed, refused={(resource, name): Refusal(kind, "its words")})


def asked(**changes: Any) -> Change:
    """With another spec, that is looked at for the first time."""

    def change(observed: Observed) -> Observed:
        pool = pool_of(generation=2, replicas=4, **changes)
        return dataclasses.replace(observed, pool=pool.model_copy(update={"status": observed.pool.status}))

    return change


def waits(reason: str, container: str = "engine", words: str = "its words") -> Document:
    """The status of a container that does not run."""
    return {"name": container, "state": {"waiting": {"reason": reason, "message": words}}}


def all_heard(**more: Any) -> Change:
    """With what all four agents say changed."""

    def change(observed: Observed) -> Observed:
        for at in range(4):
            observed = heard(observed, at, **more)
        return observed

    return change


def told(decision: Decision) -> dict[str, tuple[str, str]]:
    """Each condition's status and reason."""
    conditions = decision.status.conditions if decision.status else ()
    return {item.type: (item.status.value, item.reason) for item in conditions}
