"""The status of a pool as a whole: counts, versions and lag, and every condition of its vocabulary.

Pure. A condition's time moves only when its status does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from syncline_operator.api.conditions import READY, Condition, Finding
from syncline_operator.api.engine import ApplyPath
from syncline_operator.api.policy import VersionPolicyType
from syncline_operator.api.pool_conditions import ROLLOUT_POOL
from syncline_operator.api.pool_status import AgentStatus, LastSync, PathCount, RolloutPoolStatus
from syncline_operator.api.run_status import VersionCount
from syncline_operator.pools import names, serving, weights
from syncline_operator.pools.facts import Facts
from syncline_operator.pools.observed import SyncSaid
from syncline_operator.pools.replicas import Replica, rfc3339

MESSAGE = 2048
VERSIONS = 16


def findings(facts: Facts) -> dict[str, Finding]:
    """Of every condition but Ready."""
    return {
        "AgentReady": serving.agents_ready(facts),
        "StoreReachable": weights.store_reachable(facts),
        "HeartbeatsWritten": weights.heartbeats_written(facts),
        "Proven": weights.proven(facts),
        "WeightsCurrent": weights.weights_current(facts),
        "Available": serving.available(facts),
        "InPlace": weights.in_place(facts),
        "Progressing": serving.progressing(facts),
        "Suspended": weights.suspended(facts),
    }


def status(facts: Facts) -> RolloutPoolStatus:
    """The whole of it."""
    ready = facts.ready
    versions = Counter(replica.version for replica in ready if replica.version is not None)
    said = [replica.agent for replica in ready if replica.agent is not None and replica.armed]
    deployment = facts.deployment or {}
    told = deployment.get("status", {})
    target = facts.target
    return RolloutPoolStatus(
        observed_generation=facts.pool.metadata.generation,
        replicas=len(facts.all),
        ready_replicas=len(ready),
        available_replicas=facts.available,
        updated_replicas=told.get("updatedReplicas", 0) if facts.deployment else len(facts.all),
        current_replicas=versions.get(target, 0) if target is not None else 0,
        proven_replicas=sum(replica.proven for replica in facts.all),
        doomed_replicas=sum(replica.doomed for replica in facts.all),
        selector=",".join(f"{name}={value}" for name, value in names.labels(facts.pool, names.ENGINE).items()),
        head_version=facts.head,
        target_version=target,
        current_version=min(versions, default=None),
        version_lag=max((agent.lag_versions for agent in said), default=None),
        lag_seconds=max((round(agent.lag_seconds) for agent in said), default=None),
        versions=tuple(
            VersionCount(version=version, replicas=number)
            for version, number in sorted(versions.items(), reverse=True)[:VERSIONS]
        ),
        apply_paths=_paths(facts),
        last_sync=_last_sync(facts),
        agents=AgentStatus(desired=facts.agents_desired, ready=len(facts.agents), echoed=facts.echoed),
        policy_generation=facts.generation,
        lineage=_lineage(facts),
        update_revision=deployment.get("metadata", {}).get("annotations", {}).get("deployment.kubernetes.io/revision"),
        conditions=_conditions(facts, findings(facts)),
    )


def _conditions(facts: Facts, found: Mapping[str, Finding]) -> tuple[Condition, ...]:
    held = {item.type: item for item in (facts.pool.status.conditions if facts.pool.status else ())}
    otherwise = Finding("AsSpecified", f"{len(facts.ready)} replicas are ready, proven and current")
    if facts.pool.spec.suspend:
        otherwise = Finding("Suspended", "all is well, and spec.suspend keeps the weights where they are")
    elif facts.pool.spec.version_policy.type is VersionPolicyType.PINNED:
        otherwise = Finding("AtPinned", f"all is well at version {facts.pool.spec.version_policy.version}, as pinned")
    whole = {**found, READY: ROLLOUT_POOL.ready(found, otherwise=otherwise)}
    made: list[Condition] = []
    for kind in ROLLOUT_POOL.types:
        finding = whole[kind.name]
        truth = ROLLOUT_POOL.status(kind.name, finding.reason)
        before = held.get(kind.name)
        since = before.last_transition_time if before and before.status is truth else rfc3339(facts.observed.now)
        made.append(
            Condition(
                type=kind.name,
                status=truth,
                observed_generation=facts.pool.metadata.generation,
                last_transition_time=since,
                reason=finding.reason,
                message=finding.message[:MESSAGE],
            )
        )
    return tuple(made)


def _paths(facts: Facts) -> tuple[PathCount, ...]:
    counted = Counter(
        ApplyPath.RELOAD if replica.agent.apply_path == "reload" else ApplyPath.IN_PLACE
        for replica in facts.ready
        if replica.agent is not None and replica.agent.apply_path is not None
    )
    return tuple(PathCount(path=path, replicas=counted[path]) for path in ApplyPath if counted[path])


def _last_sync(facts: Facts) -> LastSync | None:
    """Of the version that every ready replica serves; what was told last, while they serve several."""
    held = facts.pool.status.last_sync if facts.pool.status else None
    versions = {replica.version for replica in facts.ready}
    (version,) = versions if len(versions) == 1 else (None,)
    if version is None:
        return held
    syncs = [sync for replica in facts.ready if (sync := _sync_to(replica, version))]
    if not syncs:
        return held if held is not None and held.version == version else LastSync(version=version)
    behind = [sync.behind_seconds for sync in syncs if sync.behind_seconds is not None]
    return LastSync(
        version=version,
        duration=f"{max(behind):.3f}s" if behind else None,
        pause=f"{max(sync.pause_seconds for sync in syncs):.4f}s",
        bytes=sum(sync.bytes for sync in syncs),
    )


def _sync_to(replica: Replica, version: int) -> SyncSaid | None:
    found = replica.agent.last_sync if replica.agent else None
    return found if found is not None and found.version == version else None


def _lineage(facts: Facts) -> str | None:
    for replica in facts.ready:
        applied = replica.agent.applied if replica.agent else None
        if applied is not None and applied.lineage:
            return applied.lineage[:32]
    return facts.pool.status.lineage if facts.pool.status else None
