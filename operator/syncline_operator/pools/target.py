"""The pool's policy as agents and gateways read it: `target.json` in a ConfigMap.

Its generation is that of the pool when the policy last changed, so that an edit of something else (replicas, by an
autoscaler) is no news to any agent. It is remembered in the ConfigMap itself.
"""

from __future__ import annotations

import json
from typing import Any

from syncline_operator.api.policy import VersionPolicyType
from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.resources import Document
from syncline_operator.pools import names


def policy_map(pool: RolloutPool, observed: Document | None) -> Document:
    """The ConfigMap, told apart from the one that is there."""
    wanted = _target(pool)
    held = _read(observed)
    generation = held.pop("generation", None)
    if held != wanted or not isinstance(generation, int):
        generation = pool.metadata.generation
    text = json.dumps(wanted | {"generation": generation}, indent=2) + "\n"
    return {"metadata": names.metadata(pool, names.policy(pool)), "data": {names.TARGET_ENTRY: text}}


def policy_generation(document: Document) -> int:
    """The generation that a ConfigMap of `policy_map` tells."""
    return int(_read(document)["generation"])


def _target(pool: RolloutPool) -> dict[str, Any]:
    source, policy = pool.spec.weight_source, pool.spec.version_policy
    version: dict[str, Any] = {"mode": policy.type.value}
    if policy.type is VersionPolicyType.PINNED:
        version["version"] = policy.version
    return {
        "run": source.run_name,
        "view": source.view,
        "policy": policy.request_policy.value.lower(),
        "version": version,
        "suspend": pool.spec.suspend,
        "maxVersionLag": policy.max_version_lag,
        "maxLagSeconds": policy.max_lag_seconds,
    }


def _read(document: Document | None) -> dict[str, Any]:
    try:
        found = json.loads(document["data"][names.TARGET_ENTRY]) if document else {}
    except (KeyError, TypeError, ValueError):
        return {}  # somebody emptied it or wrote something else: it is written anew
    return found if isinstance(found, dict) else {}
