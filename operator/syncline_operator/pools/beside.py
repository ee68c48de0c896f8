"""Containers that stand beside engines: the agent, the gateway, and the steps that run before; with what they mount.

Everything is within Pod Security restricted, but for the one step that makes a node's folder, which has to be root's.
Nothing here looks at a cluster; secrets are named, never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from syncline_operator.api.agent import AgentMode
from syncline_operator.api.engine import ApplyPath, EngineType
from syncline_operator.api.pods import OURS
from syncline_operator.api.policy import Unprovable
from syncline_operator.api.pool import RolloutPool
from syncline_operator.api.store import StoreAddress
from syncline_operator.api.values import seconds
from syncline_operator.kube.resources import Document
from syncline_operator.pools import names

USER = 65_532
"""Whom Syncline's processes run as, whatever an image says."""
LEAST_WAIT = 0.001
"""The gateway's flags know no nought."""
CONTEXT: Document = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What the operator knows of its release and its cluster."""

    image: str
    """Of agent and gateway, where a pool names none."""
    cluster: str


def mount(volume: str, path: str, *, read_only: bool = False) -> Document:
    return {"name": volume, "mountPath": path} | ({"readOnly": True} if read_only else {})


def image(pool: RolloutPool, settings: PoolSettings) -> str:
    return pool.spec.agent.image or settings.image


def agent(pool: RolloutPool, settings: PoolSettings) -> Document:
    """The agent, of a node or beside one engine."""
    spec = pool.spec
    sidecar = spec.agent.mode is AgentMode.SIDECAR
    flags = [
        *(
            f"--store={store_url(address)}"
            for address in (*spec.weight_source.mirrors, spec.weight_source.weight_store)
        ),
        f"--target={names.TARGET}",
        f"--node-dir={names.NODE_DIR}",
        f"--cluster={settings.cluster}",
        f"--namespace={pool.metadata.namespace}",
        f"--pool={pool.metadata.name}",
        "--node=$(SYNCLINE_NODE)",
        "--host=$(POD_IP)",
        f"--port={spec.agent.port}",
        f"--fetch-workers={spec.agent.fetch_workers}",
        *_engine_flags(pool),
        f"--serve-unproven={'yes' if spec.version_policy.unprovable is Unprovable.SERVE else 'no'}",
        *_log_flags(pool),
    ]
    if spec.weight_source.distributor_url:
        flags.append(f"--distributor={spec.weight_source.distributor_url}")
    container = {
        "name": f"{OURS}agent",
        "image": image(pool, settings),
        "command": ["syncline-agent"],
        "args": flags,
        "env": [
            field("POD_IP", "status.podIP"),
            field("SYNCLINE_NODE", "metadata.name" if sidecar else "spec.nodeName"),
            *_store_environment(pool),
        ],
        "ports": [{"name": "syncline-agent", "containerPort": spec.agent.port, "protocol": "TCP"}],
        "livenessProbe": _probe("/livez", spec.agent.port, period=10, failures=6),
        "volumeMounts": [
            mount(names.NODE_VOLUME, names.NODE_DIR),
            mount(names.POLICY_VOLUME, names.POLICY_DIR, read_only=True),
            *([mount(names.CA_VOLUME, names.CA_DIR, read_only=True)] if _has_ca(pool) else []),
            *([mount(names.KEY_VOLUME, names.KEY_DIR, read_only=True)] if _has_key(pool) else []),
        ],
        "securityContext": CONTEXT,
        **_resources(spec.agent.resources.to_json()),
    }
    return container | (
        {"restartPolicy": "Always"} if sidecar else {"readinessProbe": _probe("/livez", spec.agent.port)}
    )


def gateway(pool: RolloutPool, settings: PoolSettings) -> Document:
    """The gateway of one engine. A pod is ready while this says that what is served is proven."""
    spec = pool.spec
    port = spec.gateway.port
    return {
        "name": f"{OURS}gateway",
        "image": image(pool, settings),
        "command": ["syncline-gateway"],
        "args": [
            f"--engine-url=http://127.0.0.1:{spec.engine.port}",
            f"--engine-kind={spec.engine.type.value.lower()}",
            f"--node-dir={names.NODE_DIR}",
            f"--target={names.TARGET}",
            "--host=$(POD_IP)",
            f"--port={port}",
            f"--wait-seconds={max(LEAST_WAIT, seconds(spec.gateway.wait)):g}",
            f"--pin-seconds={seconds(spec.gateway.pin):g}",
            *_log_flags(pool),
        ],
        "env": [field("POD_IP", "status.podIP")],
        "ports": [{"name": "syncline", "containerPort": port, "protocol": "TCP"}],
        "readinessProbe": _probe("/readyz", port, period=2, failures=2),
        "livenessProbe": _probe("/livez", port, period=10, failures=6),
        "restartPolicy": "Always",
        "volumeMounts": [
            mount(names.NODE_VOLUME, names.NODE_DIR),
            mount(names.POLICY_VOLUME, names.POLICY_DIR, read_only=True),
        ],
        "securityContext": CONTEXT,
        **_resources(spec.gateway.resources.to_json()),
    }


def until_materialized(pool: RolloutPool, settings: PoolSettings) -> Document:
    """Holds an engine back until its agent has brought the version to start from."""
    return _step(
        pool,
        settings,
        "start",
        f"until [ -e {names.MARKER} ]; do sleep 0.5; done",
        mount(names.NODE_VOLUME, names.NODE_DIR, read_only=True),
    )


def arm(pool: RolloutPool, settings: PoolSettings) -> Document:
    """Brings what the engine imports to have an arm; its image stays as it is."""
    return _step(
        pool,
        settings,
        "arm",
        f"cp -R {names.IMAGE_ARM_DIR}/. {names.ARM_DIR}/",
        mount(names.ARM_VOLUME, names.ARM_DIR),
    )


def node_folder(pool: RolloutPool, settings: PoolSettings) -> Document:
    """Gives a node's folder, which the kubelet makes as root's, to the group that agents and engines share."""
    group = pool.spec.agent.supplemental_group
    made = _step(
        pool,
        settings,
        "folder",
        f"chgrp {group} {names.NODE_DIR} && chmod 2770 {names.NODE_DIR}",
        mount(names.NODE_VOLUME, names.NODE_DIR),
    )
    # Root without any capability: it owns the folder, is of the group, and may do nothing else.
    made["securityContext"] = CONTEXT | {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": group}
    return made


def shared_volumes(pool: RolloutPool) -> list[Document]:
    """What an agent mounts beside the node directory."""
    source, key = pool.spec.weight_source.weight_store, pool.spec.engine.api_key_secret_ref
    volumes: list[Document] = [{"name": names.POLICY_VOLUME, "configMap": {"name": names.policy(pool)}}]
    if source.ca_bundle_ref:
        items = [{"key": source.ca_bundle_ref.key, "path": "ca.crt"}]
        volumes.append({"name": names.CA_VOLUME, "configMap": {"name": source.ca_bundle_ref.name, "items": items}})
    if key:
        items = [{"key": key.key, "path": "token"}]
        volumes.append({"name": names.KEY_VOLUME, "secret": {"secretName": key.name, "items": items}})
    return volumes


def store_url(address: StoreAddress) -> str:
    """As a store is opened."""
    options = {"endpoint": address.endpoint, "region": address.region}
    given = urlencode({name: value for name, value in options.items() if value}, safe=":/[]")
    return f"{address.uri}?{given}" if given else address.uri


def has_arm(pool: RolloutPool) -> bool:
    """Whether an arm is brought into the engine; the reference engine has its own."""
    engine = pool.spec.engine
    return engine.apply_path is ApplyPath.IN_PLACE and engine.type is not EngineType.REFERENCE


def _engine_flags(pool: RolloutPool) -> list[str]:
    engine = pool.spec.engine
    if engine.type is EngineType.REFERENCE:
        return ["--engine=arm"]
    here = pool.spec.agent.mode is AgentMode.SIDECAR
    host = "127.0.0.1" if here else f"{names.local(pool)}.{pool.metadata.namespace}.svc"
    return [
        f"--engine={'reload' if engine.apply_path is ApplyPath.RELOAD else 'arm'}",
        f"--engine-url=http://{host}:{engine.port}",
        f"--engine-kind={engine.type.value.lower()}",
        *([f"--engine-key-file={names.KEY_DIR}/token"] if _has_key(pool) else []),
    ]


def _store_environment(pool: RolloutPool) -> list[Document]:
    store = pool.spec.weight_source.weight_store
    made: list[Document] = []
    if secret := store.credentials_secret_ref:
        for variable, entry in (
            ("SYNCLINE_S3_ACCESS_KEY", secret.access_key_entry),
            ("SYNCLINE_S3_SECRET_KEY", secret.secret_key_entry),
        ):
            made.append({"name": variable, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": entry}}})
    if _has_ca(pool):
        made.append({"name": "SSL_CERT_FILE", "value": f"{names.CA_DIR}/ca.crt"})
    return made


def _has_ca(pool: RolloutPool) -> bool:
    return pool.spec.weight_source.weight_store.ca_bundle_ref is not None


def _has_key(pool: RolloutPool) -> bool:
    return pool.spec.engine.api_key_secret_ref is not None


def _log_flags(pool: RolloutPool) -> list[str]:
    return ["--log-format=json", f"--log-level={pool.spec.agent.log_level.value.lower()}"]


def field(name: str, path: str) -> Document:
    """A variable with a field of the pod, spelled as a server keeps it, so that it compares as equal."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _probe(path: str, port: int, *, period: int = 5, failures: int = 3) -> Document:
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": period, "failureThreshold": failures}


def _resources(asked: dict[str, Any]) -> Document:
    kept = {name: value for name, value in asked.items() if value}
    return {"resources": kept} if kept else {}


def _step(pool: RolloutPool, settings: PoolSettings, name: str, script: str, *mounts: Document) -> Document:
    return {
        "name": f"{OURS}{name}",
        "image": image(pool, settings),
        "command": ["sh", "-c", script],
        "volumeMounts": list(mounts),
        "securityContext": CONTEXT,
    }
