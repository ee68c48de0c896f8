"""What is found of the weights of a pool: StoreReachable, HeartbeatsWritten, Proven, WeightsCurrent, InPlace, Suspended.

Pure. Nothing is told of a replica whose agent is silent: what is not known is not claimed.
"""

from __future__ import annotations

from syncline_operator.api.conditions import Finding
from syncline_operator.api.engine import ApplyPath
from syncline_operator.api.policy import Unprovable, VersionPolicyType
from syncline_operator.pools import words
from syncline_operator.pools.facts import Facts
from syncline_operator.pools.replicas import Replica
from syncline_operator.pools.serving import EMPTY

HEAD_OLD_S = 30.0
"""An agent reads head each second or two; one that has not for so long cannot."""
SILENT = Finding("AgentsSilent", "no agent answers")
NONE_READY = Finding("NoneReady", "no replica is ready")


def store_reachable(facts: Facts) -> Finding:
    if nothing := _nothing(facts):
        return nothing
    for said in facts.agents:
        known = words.store_fault(said.error)
        old = said.head_age_seconds is None or said.head_age_seconds > HEAD_OLD_S
        if known is not None:
            return Finding(known, said.error or "")
        if old and said.error is not None and words.following_fault(said.error) is None:
            return Finding("StoreUnreachable", said.error)
    return Finding("StoreAnswers", f"it answers {len(facts.agents)} agents")


def heartbeats_written(facts: Facts) -> Finding:
    if nothing := _nothing(facts):
        return nothing
    for mark, reason in (("off", "HeartbeatsDenied"), ("shared", "HeartbeatsShared"), ("late", "HeartbeatsLate")):
        for said in facts.agents:
            if said.heartbeats.startswith(mark):
                return Finding(reason, said.heartbeats)
    return Finding("HeartbeatsOn", "every agent that answers writes them")


def proven(facts: Facts) -> Finding:
    if nothing := _nothing(facts):
        return nothing
    for replica in facts.all:
        if replica.agent and replica.agent.phase == "Heal" and "digest" in (replica.agent.error or ""):
            return Finding("DigestMismatch", f"{replica.name}: {replica.agent.error}")
    if not facts.ready:
        return NONE_READY
    for replica in facts.ready:
        engine = replica.agent.engine if replica.agent else None
        if engine is not None and engine.unprovable:
            serves = facts.pool.spec.version_policy.unprovable is Unprovable.SERVE
            return Finding("ServedUnproven" if serves else "Unprovable", f"{replica.name}: {engine.unprovable}")
    if unknown := [replica.name for replica in facts.ready if not replica.proven]:
        return Finding("AgentsSilent", f"of {len(unknown)} ready replicas no agent says that they are proven")
    if len(facts.ready) < len([replica for replica in facts.all if replica.armed]):
        return Finding("SweepPending", f"{len(facts.ready)} ready replicas are proven, others are not ready")
    return Finding("AllProven", f"{len(facts.ready)} ready replicas are proven")


def weights_current(facts: Facts) -> Finding:
    if nothing := _nothing(facts):
        return nothing
    policy = facts.pool.spec.version_policy
    errors = [said.error or said.target_error for said in facts.agents if said.error or said.target_error]
    for error in errors:
        if named := words.following_fault(error):
            pinned = policy.type is VersionPolicyType.PINNED
            if pinned or named not in ("VersionVetoed", "VersionMissing"):
                return Finding(named, error or "")
    if not facts.ready:
        return NONE_READY
    if facts.pool.spec.suspend:
        return Finding("Suspended", "spec.suspend keeps what is served where it is")
    if unknown := [replica.name for replica in facts.ready if replica.version is None]:
        return Finding("AgentsSilent", f"of {len(unknown)} ready replicas nobody says what they serve")
    behind = [replica for replica in facts.ready if _behind(facts, replica)]
    if stuck := next((replica for replica in behind if replica.agent and replica.agent.error), None):
        return Finding("NotFollowing", f"{stuck.name}: {stuck.agent.error if stuck.agent else ''}")
    late = [replica for replica in facts.ready if replica.stale(policy.max_version_lag, policy.max_lag_seconds)]
    if late:
        return Finding("CatchingUp", f"{len(late)} of {len(facts.ready)} ready replicas are behind the bounds")
    if policy.type is VersionPolicyType.PINNED:
        if behind:
            return Finding("CatchingUp", f"{len(behind)} ready replicas are on their way to version {policy.version}")
        return Finding("AtPinned", f"all ready replicas serve version {policy.version}")
    if behind:
        return Finding("Current", f"{len(behind)} of {len(facts.ready)} ready replicas are on their way to the target")
    return Finding("Current", f"all ready replicas serve version {facts.target}")


def in_place(facts: Facts) -> Finding:
    if nothing := _nothing(facts):
        return nothing
    if facts.pool.spec.engine.apply_path is ApplyPath.RELOAD:
        return Finding("ReloadRequested", "engine.applyPath is Reload")
    if not facts.ready:
        return NONE_READY
    paths = {replica.name: replica.agent.apply_path for replica in facts.ready if replica.agent and replica.armed}
    if reloaded := [name for name, path in paths.items() if path == "reload"]:
        return Finding("LayoutRefused", f"{reloaded[0]} takes versions by its reload route")
    if not any(paths.values()):
        return Finding("NoCommitYet", "no version came since the engines started")
    return Finding("ChangedInPlace", "versions are changed in memory")


def suspended(facts: Facts) -> Finding:
    if not facts.pool.spec.suspend:
        return Finding("NotRequested", "spec.suspend is false")
    still = sum(said.suspended for said in facts.agents)
    if facts.echoed >= facts.agents_desired and still >= facts.agents_desired:
        return Finding("SuspendRequested", f"{still} agents stand still")
    return Finding("Suspending", f"{still} of {facts.agents_desired} agents stand still")


def _nothing(facts: Facts) -> Finding | None:
    if facts.empty:
        return EMPTY
    return None if facts.agents else SILENT


def _behind(facts: Facts, replica: Replica) -> bool:
    return replica.version is not None and facts.target is not None and replica.version != facts.target
