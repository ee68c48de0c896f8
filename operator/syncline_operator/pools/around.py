"""What leads to a pool's engines and what keeps others away: Services, the disruption budget, NetworkPolicies."""

from __future__ import annotations

from syncline_operator.api.agent import AgentMode
from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.resources import Document
from syncline_operator.pools import names

ANYWHERE: Document = {"namespaceSelector": {}}
"""Every pod of the cluster, and nothing outside of it."""


def client_service(pool: RolloutPool) -> Document:
    """Where clients call: gateways of engines that are ready, and not taken out by staleAction."""
    return _service(
        pool,
        names.clients(pool),
        {"selector": names.labels(pool, names.ENGINE) | {names.SERVES: "true"}, "ports": [_gateway_port(pool)]},
    )


def headless_service(pool: RolloutPool) -> Document:
    """By which routers find every gateway that is ready, each by its own address."""
    return _service(
        pool,
        names.each(pool),
        {
            "clusterIP": "None",
            "selector": names.labels(pool, names.ENGINE) | {names.SERVES: "true"},
            "ports": [_gateway_port(pool)],
        },
    )


def local_service(pool: RolloutPool) -> Document:
    """Leads from an agent to the engine of its own node, ready or not: for the engine's reload route."""
    port = pool.spec.engine.port
    return _service(
        pool,
        names.local(pool),
        {
            "internalTrafficPolicy": "Local",
            "publishNotReadyAddresses": True,
            "selector": names.labels(pool, names.ENGINE),
            "ports": [{"name": "engine", "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    )


def disruption_budget(pool: RolloutPool) -> Document:
    """Bounds evictions of pods that serve. Those that do not may always go, so that no broken pod holds up a drain."""
    return {
        "metadata": names.metadata(pool, names.engines(pool), names.ENGINE),
        "spec": {
            "maxUnavailable": pool.spec.disruption.pod_disruption_budget.max_unavailable,
            "selector": {"matchLabels": names.labels(pool, names.ENGINE)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def engine_policy(pool: RolloutPool) -> Document:
    """Lets clients reach gateways; the engine's own port is the agents' alone, since it may change weights."""
    open_ports = [pool.spec.gateway.port]
    rules: list[Document] = []
    if pool.spec.agent.mode is AgentMode.SIDECAR:
        open_ports.append(pool.spec.agent.port)
    else:
        agents = {"podSelector": {"matchLabels": names.labels(pool, names.AGENT)}}
        rules.append({"from": [agents], "ports": [_tcp(pool.spec.engine.port)]})
    rules.insert(0, {"from": [ANYWHERE], "ports": [_tcp(port) for port in open_ports]})
    return _network_policy(pool, names.engines(pool), names.ENGINE, rules)


def agent_policy(pool: RolloutPool) -> Document:
    """Lets whoever asks read an agent's status and metrics."""
    rules = [{"from": [ANYWHERE], "ports": [_tcp(pool.spec.agent.port)]}]
    return _network_policy(pool, names.agents(pool), names.AGENT, rules)


def _service(pool: RolloutPool, name: str, spec: Document) -> Document:
    return {"metadata": names.metadata(pool, name, names.ENGINE), "spec": spec}


def _gateway_port(pool: RolloutPool) -> Document:
    port = pool.spec.gateway.port
    return {"name": "http", "port": port, "targetPort": port, "protocol": "TCP", "appProtocol": "http"}


def _network_policy(pool: RolloutPool, name: str, role: str, rules: list[Document]) -> Document:
    return {
        "metadata": names.metadata(pool, name, role),
        "spec": {
            "podSelector": {"matchLabels": names.labels(pool, role)},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }


def _tcp(port: int) -> Document:
    return {"protocol": "TCP", "port": port}
