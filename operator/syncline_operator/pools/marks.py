"""The two marks that the operator puts on engine pods: who goes first when pods must go, and whom Services lead to.

Both are fields of the operator's own manager on pods that its own workload made; nothing else of a pod is touched.
"""

from __future__ import annotations

from syncline_operator.api.policy import StaleAction
from syncline_operator.kube.ownership import owned_fields
from syncline_operator.kube.resources import Document
from syncline_operator.pools import names
from syncline_operator.pools.facts import Facts
from syncline_operator.pools.replicas import Replica

DOOMED, AWAY, STALE = "-30", "-20", "-10"
LATE_VERSIONS = 2
"""So far behind a pod counts as stale where the policy has no bound: between two versions of a trainer every pod is one behind
for a moment, and marks that come and go with each would cost two writes a pod and version."""


def pod_marks(facts: Facts) -> list[Document]:
    """What each pod should bear; pods that need no mark and bear none are left out."""
    if facts.pool.spec.workload_ref is not None:
        return []
    out = _out_of_services(facts)
    made: list[Document] = []
    for replica in facts.all:
        labels = replica.document["metadata"].get("labels", {})
        serves = "false" if replica.name in out else "true"
        cost = _cost(facts, replica)
        owned = owned_fields(replica.document, names.PODS) is not None
        if not owned and cost is None and labels.get(names.SERVES) == serves:
            continue
        metadata: Document = {"name": replica.name, "namespace": facts.pool.metadata.namespace}
        metadata["labels"] = {names.SERVES: serves}
        if cost is not None:
            metadata["annotations"] = {names.DELETION_COST: cost}
        made.append({"metadata": metadata})
    return made


def _cost(facts: Facts, replica: Replica) -> str | None:
    policy = facts.pool.spec.version_policy
    bound = LATE_VERSIONS if policy.max_version_lag is None else policy.max_version_lag
    if replica.doomed:
        return DOOMED
    if not replica.ready:
        return AWAY
    return STALE if replica.stale(bound, policy.max_lag_seconds) else None


def _out_of_services(facts: Facts) -> set[str]:
    """Those beyond the bounds, the farthest behind first, and with those that are away no more than may be."""
    policy = facts.pool.spec.version_policy
    if policy.stale_action is not StaleAction.MARK_NOT_READY or facts.pool.spec.suspend:
        return set()
    late = [r for r in facts.ready if r.stale(policy.max_version_lag, policy.max_lag_seconds)]
    late.sort(key=lambda replica: (-_lag(replica), replica.name))
    room = max(0, facts.away_allowed - (facts.desired - len(facts.ready)))
    return {replica.name for replica in late[:room]}


def _lag(replica: Replica) -> int:
    return replica.agent.lag_versions if replica.agent else 0
