"""Whom to ask for a pool's truth: the addresses of its agents' `/status`. Pure; whoever asks does so elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.resources import Document
from syncline_operator.pools import names


def agents_to_ask(pool: RolloutPool, pods: Iterable[Document]) -> dict[str, str]:
    """By name of the pod in which an agent runs: where it answers. Pods without an address have none yet."""
    role = names.AGENT if pool.shares_nodes else names.ENGINE
    return {
        pod["metadata"]["name"]: f"http://{_bracketed(address)}:{pool.spec.agent.port}/status"
        for pod in pods
        if pod["metadata"].get("labels", {}).get(names.ROLE) == role
        and (address := pod.get("status", {}).get("podIP"))
        and pod["status"].get("phase") == "Running"
    }


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
