"""The numbers of a pool, counted once, from which its conditions and its status are told."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.resources import CONFIG_MAPS, DAEMON_SETS, DEPLOYMENTS, Document
from syncline_operator.pools import names
from syncline_operator.pools.observed import AgentSaid, Observed
from syncline_operator.pools.replicas import Replica, replicas
from syncline_operator.pools.target import policy_generation, policy_map


@dataclass(frozen=True, slots=True)
class Facts:
    """One pool, counted."""

    observed: Observed
    desired: int
    all: tuple[Replica, ...]
    ready: tuple[Replica, ...]
    available: int
    away_allowed: int
    """How many replicas may be unavailable."""
    agents: tuple[AgentSaid, ...]
    """Of those that answer, what each says."""
    agents_desired: int
    target: int | None
    """What ready replicas should serve."""
    generation: int
    """Of the policy that agents are to follow."""
    deployment: Document | None
    daemon_set: Document | None

    @property
    def pool(self) -> RolloutPool:
        return self.observed.pool

    @property
    def empty(self) -> bool:
        """Nothing is wanted, and nothing is there."""
        return self.desired == 0 and not self.all

    @property
    def echoed(self) -> int:
        return sum(said.generation == self.generation and said.target_error is None for said in self.agents)

    @property
    def head(self) -> int | None:
        return max((said.head for said in self.agents if said.head is not None), default=None)


def count(observed: Observed) -> Facts:
    """All of it."""
    pool, now = observed.pool, observed.now
    found = tuple(replicas(observed))
    desired = _desired(observed)
    ready = tuple(replica for replica in found if replica.ready)
    least = pool.spec.min_ready_seconds
    available = sum(replica.ready_since is not None and now - replica.ready_since >= least for replica in ready)
    agents = _agents(observed, found)
    return Facts(
        observed=observed,
        desired=desired,
        all=found,
        ready=ready,
        available=available,
        away_allowed=share(pool.spec.update_strategy.rolling_update.max_unavailable, desired),
        agents=agents,
        agents_desired=_agents_desired(observed, found),
        target=_target(pool, agents),
        generation=policy_generation(policy_map(pool, observed.child(CONFIG_MAPS, names.policy(pool)))),
        deployment=observed.child(DEPLOYMENTS, names.engines(pool)),
        daemon_set=observed.child(DAEMON_SETS, names.agents(pool)),
    )


def share(bound: int | str, total: int) -> int:
    """A number, or a percentage rounded down."""
    if isinstance(bound, int):
        return min(bound, total)
    return int(Fraction(int(bound.rstrip("%")), 100) * total) if bound.endswith("%") else min(int(bound), total)


def _desired(observed: Observed) -> int:
    if isinstance(observed.workload, dict):
        return int(observed.workload.get("spec", {}).get("replicas", 0))
    return observed.pool.spec.replicas


def _target(pool: RolloutPool, agents: tuple[AgentSaid, ...]) -> int | None:
    """An agent that has just heard of a version knows best."""
    if pool.spec.version_policy.version is not None:
        return pool.spec.version_policy.version
    return max((said.target for said in agents if said.target is not None), default=None)


def _agents(observed: Observed, found: tuple[Replica, ...]) -> tuple[AgentSaid, ...]:
    if not observed.pool.shares_nodes:
        return tuple(replica.agent for replica in found if replica.agent is not None)
    names_of = (pod["metadata"]["name"] for pod in observed.pods_of(names.AGENT))
    return tuple(observed.said[name] for name in names_of if name in observed.said)


def _agents_desired(observed: Observed, found: tuple[Replica, ...]) -> int:
    """Those that can run: an agent without a node waits for an engine to stand beside."""
    if not observed.pool.shares_nodes:
        return len(found)
    held = {pod["spec"].get("nodeName") for pod in observed.pods_of(names.AGENT)}
    wanted = {replica.document["spec"].get("nodeName") for replica in found}
    return len((held | wanted) - {None})
