"""How the parts of a pool are called, labelled and laid out. Part of what running clusters hold: names never change.

Says no more than names; what stands behind them is made by the modules that use them.
"""

from __future__ import annotations

from syncline_operator.api.objects import API_VERSION
from syncline_operator.api.pods import OUR_DOMAIN, OURS
from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.resources import Document, FieldManager

CHILDREN = FieldManager("syncline-pool")
"""Owns what the operator makes for a pool."""
PODS = FieldManager("syncline-pods")
"""Owns the two marks that the operator puts on a pod which a workload made."""

POOL = f"{OUR_DOMAIN}pool"
ROLE = f"{OUR_DOMAIN}role"
SERVES = f"{OUR_DOMAIN}serves"
"""On an engine's pod: "true" while Services may lead to it."""
ENGINE, AGENT = "engine", "agent"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

NODE_DIR = "/syncline/node"
CHECKPOINT = f"{NODE_DIR}/checkpoint"
MARKER = f"{CHECKPOINT}/.syncline/marker.json"
ARM_SOCKET = f"{NODE_DIR}/arm.sock"
POLICY_DIR = "/syncline/policy"
TARGET_ENTRY = "target.json"
TARGET = f"{POLICY_DIR}/{TARGET_ENTRY}"
CA_DIR = "/syncline/ca"
KEY_DIR = "/syncline/key"
ARM_DIR = "/syncline/arm"
IMAGE_ARM_DIR = "/opt/syncline/arm"
"""Where the agent's image holds what an engine imports to have an arm."""

NODE_VOLUME, POLICY_VOLUME, CA_VOLUME = f"{OURS}node", f"{OURS}policy", f"{OURS}ca"
KEY_VOLUME, ARM_VOLUME = f"{OURS}engine-key", f"{OURS}arm"


def engines(pool: RolloutPool) -> str:
    """The Deployment."""
    return pool.metadata.name


def agents(pool: RolloutPool) -> str:
    """The DaemonSet, and its ServiceAccount."""
    return f"{pool.metadata.name}-agent"


def policy(pool: RolloutPool) -> str:
    """The ConfigMap with the target."""
    return f"{pool.metadata.name}-policy"


def clients(pool: RolloutPool) -> str:
    """The Service that clients call."""
    return pool.metadata.name


def each(pool: RolloutPool) -> str:
    """The headless Service, by which every engine is found."""
    return f"{pool.metadata.name}-each"


def local(pool: RolloutPool) -> str:
    """The Service by which a node's agent calls the engine of its own node."""
    return f"{pool.metadata.name}-local"


def labels(pool: RolloutPool, role: str | None = None) -> dict[str, str]:
    """By which the parts of a pool are found."""
    return {POOL: pool.metadata.name} | ({ROLE: role} if role else {})


def metadata(pool: RolloutPool, name: str, role: str | None = None) -> Document:
    """Of an object that goes when its pool does."""
    return {
        "name": name,
        "namespace": pool.metadata.namespace,
        "labels": labels(pool, role) | {"app.kubernetes.io/managed-by": "syncline-operator"},
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": pool.kind,
                "name": pool.metadata.name,
                "uid": pool.metadata.uid,
                "controller": True,
            }
        ],
    }
