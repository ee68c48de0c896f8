"""What there is at an API server: kinds by group and plural, the paths of their objects, keys, and an object as it is
read.

An object is the JSON that the server sends (`Document`); who knows the kind makes a typed value of it. Nothing here
asks a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NewType
from urllib.parse import quote

Document = dict[str, Any]
FieldManager = NewType("FieldManager", str)
"""Who owns fields in server-side apply: one name a role, so that each may drop what it no longer wants."""


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """One kind of objects as the API serves it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Below the server's address. Without a namespace: of all namespaces."""
        parts = ["", "apis", self.group, self.version] if self.group else ["", "api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(quote(part, safe="") for part in parts)

    def key(self, document: Mapping[str, Any]) -> ObjectKey:
        metadata = document["metadata"]
        return ObjectKey(self, metadata.get("namespace", ""), metadata["name"])


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Which object; says nothing about whether it exists."""

    resource: Resource
    namespace: str
    name: str

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.resource.kind} {where}{self.name}"

    @property
    def path(self) -> str:
        return self.resource.path(self.namespace, self.name)


CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")


def uid(document: Mapping[str, Any]) -> str:
    return str(document["metadata"].get("uid", ""))


def resource_version(document: Mapping[str, Any]) -> str:
    return str(document["metadata"].get("resourceVersion", ""))


def age_of(version: str) -> int:
    """Resource versions of one kind compare as whole numbers, which Kubernetes promises for every kind that it stores (KEP-5504)."""
    return int(version) if version.isdigit() else 0
