"""Engine pods and what is known of each: Kubernetes' word on the pod joined with its agent's word on the weights."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from syncline_operator.kube.resources import Document
from syncline_operator.pools import names
from syncline_operator.pools.observed import AgentSaid, Observed


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine pod that is not over."""

    name: str
    document: Document
    ready: bool
    ready_since: float | None
    doomed: bool
    agent: AgentSaid | None
    """Of the agent that keeps it; None while that does not answer."""
    armed: bool
    """Its agent has this very pod's engine."""

    @property
    def version(self) -> int | None:
        """What it serves; None while nobody knows."""
        applied = self.agent.applied if self.agent and self.armed else None
        return applied.version if applied else None

    @property
    def proven(self) -> bool:
        applied = self.agent.applied if self.agent and self.armed else None
        return bool(applied and applied.proven)

    @property
    def in_service(self) -> bool:
        return bool(self.armed and self.agent and self.agent.in_service)

    def stale(self, most_versions: int | None, most_seconds: int | None) -> bool:
        """Behind by more than these; what nobody knows of is not held against it."""
        if self.agent is None or not self.armed:
            return False
        versions, seconds = self.agent.lag_versions, self.agent.lag_seconds
        beyond = most_versions is not None and versions > most_versions
        return beyond or (most_seconds is not None and seconds > most_seconds)

    def waiting(self) -> list[tuple[str, str]]:
        """Reasons and words for which containers do not run."""
        status = self.document.get("status", {})
        return waiting(status)


def waiting(status: Document) -> list[tuple[str, str]]:
    """Reasons and words for which containers of a pod do not run."""
    found: list[tuple[str, str]] = []
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        state = container.get("state", {}).get("waiting")
        if state and state.get("reason"):
            found.append((state["reason"], f"{container['name']}: {state.get('message') or state['reason']}"))
    return found


def replicas(observed: Observed) -> list[Replica]:
    """All of them, by name."""
    pool = observed.pool
    agent_on = {
        pod["spec"].get("nodeName"): observed.said.get(pod["metadata"]["name"])
        for pod in _living(observed.pods_of(names.AGENT))
    }
    made: list[Replica] = []
    for pod in _living(observed.pods_of(names.ENGINE)):
        name: str = pod["metadata"]["name"]
        agent = agent_on.get(pod["spec"].get("nodeName")) if pool.shares_nodes else observed.said.get(name)
        ready = condition(pod, "Ready")
        made.append(
            Replica(
                name=name,
                document=pod,
                ready=ready.get("status") == "True",
                ready_since=instant(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None,
                doomed=condition(pod, "DisruptionTarget").get("status") == "True",
                agent=agent,
                # An engine without an arm is told by the name of its agent: the node's, or the pod's itself.
                armed=bool(agent and agent.engine and agent.engine.pod in (name, pod["spec"].get("nodeName"))),
            )
        )
    return sorted(made, key=lambda replica: replica.name)


def condition(document: Document, kind: str) -> dict[str, Any]:
    """A condition of any object; empty where it has none."""
    for found in document.get("status", {}).get("conditions", ()):
        if found["type"] == kind:
            return dict(found)
    return {}


def instant(text: str | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 text."""
    return None if not text else datetime.datetime.fromisoformat(text).timestamp()


def rfc3339(at: float) -> str:
    """The other way, to whole seconds as Kubernetes writes them."""
    return datetime.datetime.fromtimestamp(int(at), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _living(pods: Iterable[Document]) -> Iterable[Document]:
    return (pod for pod in pods if not pod["metadata"].get("deletionTimestamp"))
