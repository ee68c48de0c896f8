"""What is found of the pods of a pool: Available, Progressing, and AgentReady, in the vocabulary of pool_conditions.py.

Pure. The first thing that is wrong is told, in the order in which a person would look for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from syncline_operator.api.conditions import Finding
from syncline_operator.api.engine import ApplyPath
from syncline_operator.api.pods import OURS
from syncline_operator.kube.resources import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    SERVICE_ACCOUNTS,
    Document,
    Resource,
)
from syncline_operator.pools import names, words
from syncline_operator.pools.facts import Facts
from syncline_operator.pools.observed import Refusal, RefusalKind, WorkloadFault
from syncline_operator.pools.replicas import Replica, condition, instant, waiting

EMPTY = Finding("NoReplicas", "the pool has no replicas")
POD_SECURITY = "violates PodSecurity"
"""How the API server words it."""
_WAITING = {
    "CreateContainerConfigError": "ConfigMissing",
    "ImagePullBackOff": "ImageUnavailable",
    "ErrImagePull": "ImageUnavailable",
    "InvalidImageName": "ImageUnavailable",
    "ErrImageNeverPull": "ImageUnavailable",
}


def available(facts: Facts) -> Finding:
    """Whether enough engines serve."""
    workload = facts.observed.workload
    where = facts.pool.spec.workload_ref
    if isinstance(workload, WorkloadFault) and where is not None:
        if workload is WorkloadFault.MISSING:
            return Finding("WorkloadMissing", f"there is no {where.kind} {where.name}")
        return Finding("WorkloadUnreadable", f"the operator may not read the scale of {where.kind} {where.name}")
    if refused := _refused(facts, ((DEPLOYMENTS, names.engines(facts.pool)),), malformed="TemplateInvalid"):
        return refused
    if facts.empty:
        return EMPTY
    least = facts.desired - facts.away_allowed
    if facts.available >= least and (facts.available or not facts.desired):
        return Finding("EnoughReplicas", f"{facts.available} of {facts.desired} replicas are available")
    if (failed := _replica_failure(facts)) is not None:
        return Finding("ChildRefused", failed)
    return _worst(replica for replica in facts.all if not replica.ready) or Finding(
        "EngineStarting", f"{facts.available} of {facts.desired} replicas are available, {least} must be"
    )


def agents_ready(facts: Facts) -> Finding:
    """Whether each engine has an agent that answers, and each agent its engine's arm."""
    pool = facts.pool
    children = ((CONFIG_MAPS, names.policy(pool)), (SERVICE_ACCOUNTS, names.agents(pool)))
    if refused := _refused(facts, (*children, (DAEMON_SETS, names.agents(pool))), malformed="ChildRefused"):
        return refused
    failed = _replica_failure(facts)
    if pool.shares_nodes and failed is not None and POD_SECURITY in failed:
        return Finding("PodSecurityRefused", failed)  # engines mount the folder of their node, too
    if facts.empty:
        return EMPTY
    pods = facts.observed.pods_of(names.AGENT) if pool.shares_nodes else [r.document for r in facts.all]
    if stuck := _stuck(pods, ours=True, crashing="AgentCrashing"):
        return stuck
    if full := next((said.error for said in facts.agents if words.is_full(said.error)), None):
        return Finding("NodeDirectoryFull", full)
    if without := _without_agent(facts):
        return Finding("NodeWithoutAgent", f"no agent runs on {_some(without)}, where engines are")
    if bare := [replica.name for replica in facts.all if _lacks_arm(facts, replica)]:
        return Finding("ArmMissing", f"{_some(bare)} run without the arm")
    for replica in facts.all:
        if replica.agent and replica.agent.engine and "turned away" in (replica.agent.engine.error or ""):
            return Finding("ArmRefused", f"{replica.name}: {replica.agent.engine.error}")
    silent = [replica.name for replica in facts.all if replica.agent is None]
    unarmed = [replica.name for replica in facts.all if replica.agent is not None and not replica.armed]
    if silent:
        return Finding("AgentsStarting", f"no agent answers for {_some(silent)}")
    if unarmed:
        return Finding("AgentsStarting", f"agents wait for the engines of {_some(unarmed)}")
    if not facts.all:
        return Finding("AgentsStarting", "no engine is there yet")
    return Finding("AgentsRunning", f"{len(facts.agents)} agents answer")


def progressing(facts: Facts) -> Finding:
    """Whether a change is on its way."""
    deployment = facts.deployment
    if deployment is not None:
        told = condition(deployment, "Progressing")
        if told.get("reason") == "ProgressDeadlineExceeded":
            return Finding("ProgressDeadlineExceeded", str(told.get("message", "nothing moved")))
        status: Document = deployment.get("status", {})
        seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
        if not seen or status.get("updatedReplicas", 0) < status.get("replicas", 0):
            done, there = status.get("updatedReplicas", 0), status.get("replicas", 0)
            return Finding("TemplateRollout", f"{done} of {there} pods are of the newest template")
    missing = facts.agents_desired - facts.echoed
    if missing > 0:
        return Finding(
            "PolicySpreading",
            f"{facts.echoed} of {facts.agents_desired} agents follow the policy of generation {facts.generation}",
        )
    if len(facts.all) != facts.desired:
        return Finding("Scaling", f"{len(facts.all)} pods are there, {facts.desired} are wanted")
    return Finding("Complete", "all replicas are as specified")


def _replica_failure(facts: Facts) -> str | None:
    """Why the API server takes no pod of the Deployment; None where it does."""
    failed = condition(facts.deployment, "ReplicaFailure") if facts.deployment else {}
    return str(failed.get("message", "pods are refused")) if failed.get("status") == "True" else None


def _refused(facts: Facts, children: Sequence[tuple[Resource, str]], *, malformed: str) -> Finding | None:
    for child in children:
        found: Refusal | None = facts.observed.refused.get(child)
        if found is not None:
            reasons = {
                RefusalKind.MALFORMED: malformed,
                RefusalKind.POD_SECURITY: "PodSecurityRefused" if child[0] is DAEMON_SETS else "ChildRefused",
                RefusalKind.FORBIDDEN: "ChildRefused",
                RefusalKind.FIELDS_TAKEN: "FieldManagerConflict",
                RefusalKind.TERMINATING: "NamespaceTerminating",
            }
            return Finding(reasons[found.kind], f"{child[0].kind} {child[1]}: {found.words}")
    return None


def _worst(away: Iterable[Replica]) -> Finding | None:
    """Why pods that should serve do not."""
    pods = list(away)
    for replica in pods:
        placed = condition(replica.document, "PodScheduled")
        if placed.get("reason") == "Unschedulable":
            return Finding("PodUnschedulable", f"{replica.name}: {placed.get('message', 'no node takes it')}")
    if stuck := _stuck([replica.document for replica in pods], ours=False, crashing="EngineCrashing"):
        return stuck
    for replica in pods:
        engine = replica.agent.engine if replica.agent and replica.armed else None
        if engine is not None and engine.error:
            return Finding("EngineOutOfService", f"{replica.name}: {engine.error}")
    return None


def _stuck(pods: Iterable[Document], *, ours: bool, crashing: str) -> Finding | None:
    for pod in pods:
        for reason, said in waiting(pod.get("status", {})):
            if said.startswith(OURS) is not ours:
                continue
            found = crashing if reason == "CrashLoopBackOff" else _WAITING.get(reason)
            if found is not None:
                return Finding(found, f"pod {pod['metadata']['name']}: {said}")
    return None


def _without_agent(facts: Facts) -> list[str]:
    """Nodes that no agent will come to: the DaemonSet has all that it wants, and none of them is there."""
    status: Document = (facts.daemon_set or {}).get("status", {})
    if not facts.pool.shares_nodes or not status.get("observedGeneration"):
        return []
    if status.get("currentNumberScheduled", 0) < status.get("desiredNumberScheduled", 0):
        return []
    held = {pod["spec"].get("nodeName") for pod in facts.observed.pods_of(names.AGENT)}
    nodes = {replica.document["spec"].get("nodeName") for replica in facts.all} - {None}
    pending = None in held
    return [] if pending else sorted(nodes - held)


def _lacks_arm(facts: Facts, replica: Replica) -> bool:
    """Nothing in the pod says where an agent is; or the engine has run for long, and its arm never came."""
    spec: Document = replica.document["spec"]
    containers: list[Document] = spec["containers"]
    if facts.pool.spec.workload_ref is not None:
        return not any(item["name"] == "SYNCLINE_ARM_SOCKET" for made in containers for item in made.get("env", ()))
    if facts.pool.spec.engine.apply_path is not ApplyPath.IN_PLACE or replica.agent is None or replica.armed:
        return False
    engine = facts.pool.spec.engine.container or containers[0]["name"]
    for container in replica.document.get("status", {}).get("containerStatuses", ()):
        started = instant(container.get("state", {}).get("running", {}).get("startedAt"))
        if container["name"] == engine and started is not None:
            return facts.observed.now - started > facts.pool.spec.progress_deadline_seconds
    return False


def _some(found: Sequence[str]) -> str:
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
