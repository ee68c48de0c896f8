"""What objects that the operator makes have in common: labels, an owner, and what Pod Security `restricted` asks of pods;
and what a decision hands to whoever acts on it. Pure: nothing here asks a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from syncline_operator.api.objects import API_VERSION, ObjectMeta
from syncline_operator.api.pods import OUR_DOMAIN, PodSettings, Resources
from syncline_operator.kube.recording import EventType
from syncline_operator.kube.resources import Document, FieldManager, ObjectKey, Resource

MANAGED_BY = "app.kubernetes.io/managed-by"
OPERATOR = "syncline-operator"
SELECTOR = f"{MANAGED_BY}={OPERATOR}"
"""What the operator's own objects are found by."""
ROLE = f"{OUR_DOMAIN}role"
USER_ID = 65532
"""Of the images' unprivileged user, who also owns what the volumes hold."""
POD_SECURITY: Document = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Document = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@dataclass(frozen=True, slots=True)
class Child:
    """An object as it must be, and in which role it is applied."""

    resource: Resource
    document: Document
    manager: FieldManager

    @property
    def key(self) -> ObjectKey:
        return self.resource.key(self.document)


@dataclass(frozen=True, slots=True)
class Note:
    """What people are to read in an Event."""

    type: EventType
    reason: str
    words: str


def labels(owner: str, owner_name: str, role: str) -> dict[str, str]:
    """Of an object: `owner` is the kind as a label's name has it (`training-run`), `role` what the object is for."""
    return {
        "app.kubernetes.io/name": f"syncline-{role}",
        "app.kubernetes.io/instance": owner_name,
        MANAGED_BY: OPERATOR,
        **selector(owner, owner_name, role),
    }


def selector(owner: str, owner_name: str, role: str) -> dict[str, str]:
    """By which an owner's pods are selected; never changes, since workloads do not let it."""
    return {f"{OUR_DOMAIN}{owner}": owner_name, ROLE: role}


def owned_metadata(kind: str, owner: ObjectMeta, name: str, marks: dict[str, str]) -> Document:
    """Metadata of a child that goes when its owner goes."""
    reference = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }
    return {"name": name, "namespace": owner.namespace, "labels": marks, "ownerReferences": [reference]}


def is_owned(document: Document, uid: str) -> bool:
    """Whether the object with this uid controls it."""
    references = document["metadata"].get("ownerReferences", ())
    return any(each.get("controller") and each.get("uid") == uid for each in references)


def pod_metadata(settings: PodSettings, marks: dict[str, str]) -> Document:
    """The operator's labels win over a user's."""
    return {"labels": {**settings.labels, **marks}, "annotations": dict(settings.annotations) or None}


def placing(settings: PodSettings) -> Document:
    """The part of a pod's spec that says where it may run."""
    return {
        "nodeSelector": dict(settings.node_selector) or None,
        "tolerations": [each.to_json() for each in settings.tolerations] or None,
        "affinity": settings.affinity.to_json() if settings.affinity is not None else None,
        "priorityClassName": settings.priority_class_name,
        "imagePullSecrets": [each.to_json() for each in settings.image_pull_secrets] or None,
    }


def resources(asked: Resources) -> dict[str, Any] | None:
    """None where nothing is asked for: quotas of a namespace then fill in what they want."""
    return {name: dict(held) for name, held in (("requests", asked.requests), ("limits", asked.limits)) if held} or None
