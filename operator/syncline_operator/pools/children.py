"""Every object that a pool has, in the order in which it is made. Says which there are; what each is, other modules say."""

from __future__ import annotations

from syncline_operator.api.distributor import NetworkPolicyMode
from syncline_operator.api.engine import EngineType
from syncline_operator.kube.resources import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    SERVICE_ACCOUNTS,
    SERVICES,
    Document,
    Resource,
)
from syncline_operator.pools import around, names
from syncline_operator.pools.engines import deployment
from syncline_operator.pools.nodes import daemon_set, service_account
from syncline_operator.pools.observed import Observed
from syncline_operator.pools.target import policy_map


def children(observed: Observed) -> list[tuple[Resource, Document]]:
    """Every object that a pool has, what others need first."""
    pool, settings = observed.pool, observed.settings
    made: list[tuple[Resource, Document]] = [
        (CONFIG_MAPS, policy_map(pool, observed.child(CONFIG_MAPS, names.policy(pool)))),
        (SERVICES, around.client_service(pool)),
        (SERVICES, around.headless_service(pool)),
        (DISRUPTION_BUDGETS, around.disruption_budget(pool)),
    ]
    if pool.spec.network_policy is NetworkPolicyMode.MANAGED:
        made.append((NETWORK_POLICIES, around.engine_policy(pool)))
        if pool.shares_nodes:
            made.append((NETWORK_POLICIES, around.agent_policy(pool)))
    if pool.shares_nodes:
        if pool.spec.engine.type is not EngineType.REFERENCE:
            made.append((SERVICES, around.local_service(pool)))
        if pool.spec.agent.service_account_name is None:
            made.append((SERVICE_ACCOUNTS, service_account(pool)))
        made.append((DAEMON_SETS, daemon_set(pool, settings)))
    if pool.spec.template is not None:
        made.append((DEPLOYMENTS, deployment(pool, pool.spec.template, settings)))
    return made
