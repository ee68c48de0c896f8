"""The DaemonSet of a pool's agents, one a node, and the ServiceAccount without rights that they run as."""

from __future__ import annotations

from typing import Any

from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.resources import Document
from syncline_operator.pools import beside, names
from syncline_operator.pools.beside import PoolSettings
from syncline_operator.pools.engines import node_folder

FOLLOWED = ("nodeSelector", "tolerations", "priorityClassName", "imagePullSecrets")
"""Of the engines' template, where agents are told nothing of their own."""


def service_account(pool: RolloutPool) -> Document:
    """Bears no token: agents never talk to Kubernetes."""
    return {
        "metadata": names.metadata(pool, names.agents(pool), names.AGENT),
        "automountServiceAccountToken": False,
    }


def daemon_set(pool: RolloutPool, settings: PoolSettings) -> Document:
    """The whole DaemonSet."""
    own = pool.spec.agent.pod
    labels = names.labels(pool, names.AGENT)
    metadata: Document = {"labels": {**(own.labels if own else {}), **labels}}
    if own and own.annotations:
        metadata["annotations"] = dict(own.annotations)
    return {
        "metadata": names.metadata(pool, names.agents(pool), names.AGENT),
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}},
            "template": {"metadata": metadata, "spec": _pod(pool, settings)},
        },
    }


def _pod(pool: RolloutPool, settings: PoolSettings) -> Document:
    node = {"path": node_folder(pool), "type": "DirectoryOrCreate"}
    return {
        **_placing(pool),
        "serviceAccountName": pool.spec.agent.service_account_name or names.agents(pool),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"supplementalGroups": [pool.spec.agent.supplemental_group]},
        "initContainers": [beside.node_folder(pool, settings)],
        "containers": [beside.agent(pool, settings)],
        "volumes": [{"name": names.NODE_VOLUME, "hostPath": node}, *beside.shared_volumes(pool)],
    }


def _placing(pool: RolloutPool) -> Document:
    """Where agents run: on the nodes that are named, and where none are, beside the pool's engines."""
    if pool.spec.agent.pod is not None:
        said: dict[str, Any] = pool.spec.agent.pod.to_json()
        made = {name: said[name] for name in (*FOLLOWED, "affinity") if said.get(name)}
    else:
        theirs = pool.spec.template.raw["spec"] if pool.spec.template else {}
        made = {name: theirs[name] for name in FOLLOWED if theirs.get(name)}
        # Affinity of engines to pods is about engines; agents go wherever those may.
        if wanted := theirs.get("affinity", {}).get("nodeAffinity"):
            made["affinity"] = {"nodeAffinity": wanted}
    if "nodeSelector" not in made and "affinity" not in made:
        term = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": names.labels(pool, names.ENGINE)},
        }
        made["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return made
