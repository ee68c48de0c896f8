"""The objects that run a TrainingRun's distributor: pod, volume, account, Service, NetworkPolicy. Pure rendering.

One pod at a time (Recreate): the store fences a second writer, but a second pod would still fight for the volume. The
pod has no token of the cluster's API, a read-only root, and writes to its volume and a scratch folder alone.
"""

from __future__ import annotations

from syncline_operator import children
from syncline_operator.api.distributor import NetworkPolicyMode
from syncline_operator.api.run import TrainingRun
from syncline_operator.children import Child
from syncline_operator.kube.resources import (
    DEPLOYMENTS,
    NETWORK_POLICIES,
    SERVICE_ACCOUNTS,
    SERVICES,
    VOLUME_CLAIMS,
    Document,
    FieldManager,
)
from syncline_operator.runs.command import CHECKPOINTS, COMPILED, PORT, STATE_MOUNT, Work, arguments

MANAGER = FieldManager("syncline-run")
OWNER = "training-run"
ROLE = "distributor"
SUFFIX = "-trun"
"""An object's name has 52 characters at most and a Service's 63."""
AUTHORITY = "/etc/syncline/authority"
SCRATCH = "/tmp"
GRACE_S = 60
"""The service gives each of its four loops ten seconds to end a step."""


def child_name(run: TrainingRun) -> str:
    """Of all that is made for it; each is of another kind."""
    return f"{run.metadata.name}{SUFFIX}"


def service_url(run: TrainingRun) -> str:
    """Where the distributor answers inside the cluster."""
    return f"http://{child_name(run)}.{run.metadata.namespace}.svc:{PORT}"


def pod_labels(run: TrainingRun) -> dict[str, str]:
    """By which its pod is found."""
    return children.selector(OWNER, run.metadata.name, ROLE)


def wanted_children(run: TrainingRun, work: Work, *, image: str) -> list[Child]:
    """All of them, those first that others mention. `image` is the operator's own release, for who names none."""
    made = [Child(VOLUME_CLAIMS, _volume_claim(run), MANAGER), Child(SERVICES, _service(run), MANAGER)]
    if run.spec.distributor.service_account_name is None:
        made.insert(0, Child(SERVICE_ACCOUNTS, _account(run), MANAGER))
    if run.spec.network_policy is NetworkPolicyMode.MANAGED:
        made.append(Child(NETWORK_POLICIES, _network_policy(run), MANAGER))
    return [*made, Child(DEPLOYMENTS, _deployment(run, work, image), MANAGER)]


def _metadata(run: TrainingRun) -> Document:
    marks = children.labels(OWNER, run.metadata.name, ROLE)
    return children.owned_metadata("TrainingRun", run.metadata, child_name(run), marks)


def _account(run: TrainingRun) -> Document:
    return {"metadata": _metadata(run), "automountServiceAccountToken": False}


def _volume_claim(run: TrainingRun) -> Document:
    state = run.spec.distributor.state
    return {
        "metadata": _metadata(run),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": state.storage_class_name,
            "resources": {"requests": {"storage": str(state.size)}},
        },
    }


def _service(run: TrainingRun) -> Document:
    """Also of a pod that is not ready: why it is not stands in its `/status`."""
    ports = [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}]
    spec = {"selector": pod_labels(run), "ports": ports, "publishNotReadyAddresses": True}
    return {"metadata": _metadata(run), "spec": spec}


def _network_policy(run: TrainingRun) -> Document:
    """Lets status, metrics and long polls in. What goes out is not bounded: where a store answers is known by name only."""
    let_in = [{"ports": [{"port": "http", "protocol": "TCP"}]}]
    spec = {"podSelector": {"matchLabels": pod_labels(run)}, "policyTypes": ["Ingress"], "ingress": let_in}
    return {"metadata": _metadata(run), "spec": spec}


def _deployment(run: TrainingRun, work: Work, image: str) -> Document:
    marks = children.labels(OWNER, run.metadata.name, ROLE)
    settings = run.spec.distributor.pod
    template = {"metadata": children.pod_metadata(settings, marks), "spec": _pod(run, work, image)}
    return {
        "metadata": _metadata(run),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 2,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": pod_labels(run)},
            "template": template,
        },
    }


def _pod(run: TrainingRun, work: Work, image: str) -> Document:
    distributor = run.spec.distributor
    return {
        "serviceAccountName": distributor.service_account_name or child_name(run),
        "automountServiceAccountToken": False,
        # A Service called `syncline` would otherwise set SYNCLINE_PORT, which is a flag.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": children.POD_SECURITY,
        "containers": [_container(run, work, image)],
        "volumes": _volumes(run, work),
        **children.placing(distributor.pod),
    }


def _container(run: TrainingRun, work: Work, image: str) -> Document:
    distributor = run.spec.distributor
    mounts: list[Document] = [{"name": "state", "mountPath": STATE_MOUNT}, {"name": "scratch", "mountPath": SCRATCH}]
    if _claimed(run, work) is not None:
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINTS, "readOnly": True})
    if run.spec.weight_store.ca_bundle_ref is not None:
        mounts.append({"name": "authority", "mountPath": AUTHORITY, "readOnly": True})
    return {
        "name": "distributor",
        "image": distributor.image or image,
        "command": ["syncline-distributor"],
        "args": arguments(run, work),
        "env": _environment(run),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": children.resources(distributor.resources),
        "securityContext": children.CONTAINER_SECURITY,
        "volumeMounts": mounts,
        # The store is asked before anything listens, and may take its time.
        "startupProbe": _probe("/livez", every_s=5, failures=60),
        "livenessProbe": _probe("/livez", every_s=10, failures=6),
        "readinessProbe": _probe("/readyz", every_s=5, failures=2),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _probe(path: str, *, every_s: int, failures: int) -> Document:
    got = {"path": path, "port": "http"}
    return {"httpGet": got, "periodSeconds": every_s, "timeoutSeconds": 5, "failureThreshold": failures}


def _environment(run: TrainingRun) -> list[Document]:
    store = run.spec.weight_store
    env: list[Document] = [
        {"name": "HOME", "value": SCRATCH},
        {"name": "NUMBA_CACHE_DIR", "value": COMPILED},
        {"name": "TMPDIR", "value": SCRATCH},
    ]
    if (secret := store.credentials_secret_ref) is not None:
        for name, entry in (
            ("AWS_ACCESS_KEY_ID", secret.access_key_entry),
            ("AWS_SECRET_ACCESS_KEY", secret.secret_key_entry),
        ):
            env.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": entry}}})
    if store.ca_bundle_ref is not None:
        env.append({"name": "SSL_CERT_FILE", "value": f"{AUTHORITY}/ca.crt"})
    return env


def _volumes(run: TrainingRun, work: Work) -> list[Document]:
    volumes: list[Document] = [
        {"name": "state", "persistentVolumeClaim": {"claimName": child_name(run)}},
        {"name": "scratch", "emptyDir": {}},
    ]
    if (claimed := _claimed(run, work)) is not None:
        # Read-only as a whole: else fsGroup would have the trainer's files change hands.
        claim = {"claimName": claimed, "readOnly": True}
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": claim})
    if (bundle := run.spec.weight_store.ca_bundle_ref) is not None:
        items = [{"key": bundle.key, "path": "ca.crt"}]
        volumes.append({"name": "authority", "configMap": {"name": bundle.name, "items": items}})
    return volumes


def _claimed(run: TrainingRun, work: Work) -> str | None:
    """The claim that is mounted: none where nothing is read of it, for it may be gone by then."""
    source = run.spec.checkpoint_source
    if work is not Work.WATCH or source is None or source.persistent_volume_claim is None:
        return None
    return source.persistent_volume_claim.claim_name
