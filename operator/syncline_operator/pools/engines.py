"""The Deployment of a pool's engines: the user's template with arm, gateway and node directory in it.

The user's images and commands stay as they are, and whatever else a pod may say that this does not know. Never touches
`spec.replicas` of the pool, and makes nothing for a workload that somebody else owns.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

from syncline_operator.api.agent import AgentMode, Medium
from syncline_operator.api.engine import ApplyPath, EngineType
from syncline_operator.api.pods import PodTemplate
from syncline_operator.api.policy import UpdateType
from syncline_operator.api.pool import RolloutPool
from syncline_operator.api.values import seconds
from syncline_operator.kube.resources import Document
from syncline_operator.pools import beside, names
from syncline_operator.pools.beside import PoolSettings, mount


def deployment(pool: RolloutPool, template: PodTemplate, settings: PoolSettings) -> Document:
    """The whole Deployment."""
    spec = pool.spec
    strategy: Document = {"type": spec.update_strategy.type.value}
    if spec.update_strategy.type is UpdateType.ROLLING_UPDATE:
        rolling = spec.update_strategy.rolling_update
        strategy["rollingUpdate"] = {"maxUnavailable": rolling.max_unavailable, "maxSurge": rolling.max_surge}
    return {
        "metadata": names.metadata(pool, names.engines(pool), names.ENGINE),
        "spec": {
            "replicas": spec.replicas,
            "selector": {"matchLabels": names.labels(pool, names.ENGINE)},
            "strategy": strategy,
            # A server keeps no nought here: it would look like a difference.
            **({"minReadySeconds": spec.min_ready_seconds} if spec.min_ready_seconds else {}),
            "progressDeadlineSeconds": spec.progress_deadline_seconds,
            "revisionHistoryLimit": spec.revision_history_limit,
            "template": pod_template(pool, template, settings),
        },
    }


def pod_template(pool: RolloutPool, template: PodTemplate, settings: PoolSettings) -> Document:
    """What the user wrote, with what Syncline adds."""
    made: Document = copy.deepcopy(template.raw)
    metadata = made.setdefault("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), **names.labels(pool, names.ENGINE), names.SERVES: "true"}
    spec: Document = made["spec"]
    spec["initContainers"] = [*_before(pool, settings), *spec.get("initContainers", ())]
    wanted = pool.spec.engine.container or spec["containers"][0]["name"]
    spec["containers"] = [_engine(pool, item) if item["name"] == wanted else item for item in spec["containers"]]
    spec["volumes"] = [*spec.get("volumes", ()), *_volumes(pool)]
    _share_group(pool, spec)
    # A Service named after the pool would otherwise be spelled out in variables that engines take for their own.
    spec.setdefault("enableServiceLinks", False)
    spec.setdefault("terminationGracePeriodSeconds", math.ceil(seconds(pool.spec.disruption.termination_notice)))
    if "serviceAccountName" not in spec:
        spec.setdefault("automountServiceAccountToken", False)
    if pool.shares_nodes:
        _one_a_node(pool, spec)
    return made


def _before(pool: RolloutPool, settings: PoolSettings) -> list[Document]:
    steps = [] if pool.shares_nodes else [beside.agent(pool, settings)]
    if beside.has_arm(pool):
        steps.append(beside.arm(pool, settings))
    return [*steps, beside.until_materialized(pool, settings), beside.gateway(pool, settings)]


def _engine(pool: RolloutPool, container: Document) -> Document:
    ours, usual = _variables(pool)
    theirs: Sequence[Document] = container.get("env", ())
    if beside.has_arm(pool):
        path = next((item for item in theirs if item["name"] == "PYTHONPATH"), None)
        before = "" if path is None else path.get("value") or ""
        if path is None or "valueFrom" not in path:
            ours.append({"name": "PYTHONPATH", "value": f"{names.ARM_DIR}:{before}" if before else names.ARM_DIR})
    taken = {item["name"] for item in ours}
    kept = [item for item in theirs if item["name"] not in taken]
    said = {item["name"] for item in kept}
    made = dict(container)
    made["env"] = [*ours, *(item for item in usual if item["name"] not in said), *kept]
    made["volumeMounts"] = [
        *container.get("volumeMounts", ()),
        mount(names.NODE_VOLUME, names.NODE_DIR),
        *([mount(names.ARM_VOLUME, names.ARM_DIR, read_only=True)] if beside.has_arm(pool) else []),
    ]
    return made


def _variables(pool: RolloutPool) -> tuple[list[Document], list[Document]]:
    """Those that must be so, and those that a template may set otherwise."""
    engine = pool.spec.engine
    ours: list[Document] = [{"name": "SYNCLINE_CHECKPOINT", "value": names.CHECKPOINT}]
    usual: list[Document] = []
    if engine.apply_path is ApplyPath.IN_PLACE:
        ours += [
            {"name": "SYNCLINE_ARM_SOCKET", "value": names.ARM_SOCKET},
            {"name": "SYNCLINE_POOL", "value": pool.metadata.name},
            beside.field("SYNCLINE_POD", "metadata.name"),
            {"name": "SYNCLINE_SWEEP_INTERVAL", "value": f"{seconds(engine.sweep_interval):g}"},
        ]
        usual.append({"name": "SYNCLINE_LOG_FORMAT", "value": "json"})
        if engine.type is EngineType.SGLANG:
            ours.append({"name": "SYNCLINE_ENGINE_URL", "value": f"http://127.0.0.1:{engine.port}"})
    if engine.type is EngineType.VLLM:
        usual.append({"name": "VLLM_SERVER_DEV_MODE", "value": "1"})  # without it vLLM has no reload route
    return ours, usual


def _volumes(pool: RolloutPool) -> list[Document]:
    cache = pool.spec.agent.cache
    if pool.shares_nodes:
        node: Document = {"hostPath": {"path": node_folder(pool), "type": "DirectoryOrCreate"}}
        shared = beside.shared_volumes(pool)[:1]  # the agent's own secrets stay with it
    else:
        directory: Document = {} if cache.size_limit is None else {"sizeLimit": cache.size_limit}
        node = {"emptyDir": directory | ({"medium": "Memory"} if cache.medium is Medium.MEMORY else {})}
        shared = beside.shared_volumes(pool)
    bringing: list[Document] = [{"name": names.ARM_VOLUME, "emptyDir": {}}] if beside.has_arm(pool) else []
    return [{"name": names.NODE_VOLUME, **node}, *shared, *bringing]


def node_folder(pool: RolloutPool) -> str:
    """Of a node, for one pool."""
    return f"{pool.spec.agent.cache.host_path}/{pool.metadata.namespace}/{pool.metadata.name}"


def _share_group(pool: RolloutPool, spec: Document) -> None:
    """Agent, gateway and engine open the sockets of the node directory as one group, which is the directory's."""
    group = pool.spec.agent.supplemental_group
    context = spec["securityContext"] = dict(spec.get("securityContext", {}))
    context["supplementalGroups"] = sorted({*context.get("supplementalGroups", ()), group})
    if pool.spec.agent.mode is AgentMode.SIDECAR:
        context.setdefault("fsGroup", group)


def _one_a_node(pool: RolloutPool, spec: Document) -> None:
    """An agent keeps one engine; a second one of the pool on its node would be turned away."""
    affinity: dict[str, Any] = spec.setdefault("affinity", {})
    apart = affinity.setdefault("podAntiAffinity", {})
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": names.labels(pool, names.ENGINE)},
    }
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    apart[rule] = [*apart.get(rule, ()), term]
