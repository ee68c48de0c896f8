"""A pool's surroundings in memory: pods, what their agents say, and what an API server keeps of applied objects.

No API server: it keeps what is applied under its manager, which is all that a decision reads of one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.resources import PODS, Document, FieldManager
from syncline_operator.pools import names
from syncline_operator.pools.deciding import Decision, decide
from syncline_operator.pools.observed import AgentSaid, Observed

READY_AT = "2026-01-01T00:00:00Z"
LINEAGE = "0f" * 16


def applied(document: Document, there: Document | None, manager: FieldManager) -> Document:
    """The object after a server-side apply by one manager of fields that nobody else decides about."""
    kept = copy.deepcopy(there) if there else {}
    wanted = copy.deepcopy(document)
    entries = [item for item in kept.get("metadata", {}).get("managedFields", ()) if item["manager"] != manager]
    owned = _fields({**wanted, "metadata": {k: v for k, v in wanted["metadata"].items() if k not in _IDENTITY}})
    entries.append({"manager": manager, "operation": "Apply", "fieldsV1": owned})
    made = _merged(kept, wanted)
    made["metadata"]["managedFields"] = entries
    return made


def carried_out(observed: Observed, decision: Decision) -> Observed:
    """What is seen once all of it was done."""
    children, pods = dict(observed.children), {pod["metadata"]["name"]: pod for pod in observed.pods}
    for resource, document in decision.delete:
        del children[resource, document["metadata"]["name"]]
    for one in decision.apply:
        name = one.document["metadata"]["name"]
        if one.resource is PODS:
            pods[name] = applied(one.document, pods[name], one.manager)
        else:
            children[one.resource, name] = applied(one.document, None, one.manager)
    pool = observed.pool.model_copy(update={"status": decision.status})
    return dataclasses.replace(observed, pool=pool, children=children, pods=tuple(pods.values()))


def settled(observed: Observed) -> Observed:
    """What is seen once the first decision was carried out."""
    return carried_out(observed, decide(observed))


def engine_pod(pool: RolloutPool, number: int, *, ready: bool = True, node: str | None = None, **more: Any) -> Document:
    """A pod that the pool's Deployment made; `more` is of its status."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": READY_AT}]
    return _pod(pool, names.ENGINE, number, node, {"phase": "Running", "conditions": conditions, **more})


def agent_pod(pool: RolloutPool, number: int, *, node: str | None = None, **more: Any) -> Document:
    """A pod that the pool's DaemonSet made."""
    return _pod(pool, names.AGENT, number, node, {"phase": "Running", **more})


def said(version: int | None, *, pod: str, generation: int = 1, **more: Any) -> AgentSaid:
    """What an agent says whose engine serves `version`, proven."""
    body: dict[str, Any] = {
        "generation": generation,
        "head": version,
        "target": version,
        "applied": version and {"version": version, "lineage": LINEAGE, "proven": True},
        "in_service": version is not None,
        "head_age_seconds": 1.0,
        "engine": {"pod": pod},
        "apply_path": "delta",
    }
    return AgentSaid.model_validate(body | more)


def _pod(pool: RolloutPool, role: str, number: int, node: str | None, status: Mapping[str, Any]) -> Document:
    labels = names.labels(pool, role) | ({names.SERVES: "true"} if role == names.ENGINE else {})
    return {
        "metadata": {"name": f"{role}-{number}", "namespace": pool.metadata.namespace, "labels": labels},
        "spec": {"nodeName": node or f"node-{number}", "containers": [{"name": "engine"}]},
        "status": dict(status),
    }


_IDENTITY = ("name", "namespace")


def _fields(value: Any) -> Document:
    return {f"f:{name}": _fields(inner) for name, inner in value.items()} if isinstance(value, Mapping) else {}


def _merged(held: Any, wanted: Any) -> Any:
    if not isinstance(held, dict) or not isinstance(wanted, Mapping):
        return wanted
    return {**held, **{name: _merged(held.get(name), inner) for name, inner in wanted.items()}}
