"""What was seen of a pool at one moment: the object, its children, its pods, and what agents say of themselves.

Frozen values that whoever looks makes and `decide` reads. Nothing here asks anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from syncline_operator.api.pool import RolloutPool
from syncline_operator.kube.resources import Document, Resource
from syncline_operator.pools import names
from syncline_operator.pools.beside import PoolSettings


class _Told(BaseModel):
    # What a newer agent says beside this is passed over.
    model_config = ConfigDict(frozen=True, extra="ignore")


class AppliedVersion(_Told):
    """What live memory holds."""

    version: int
    lineage: str | None = None
    proven: bool = False


class EngineSaid(_Told):
    """What an agent says of the engine that it keeps."""

    pod: str
    error: str | None = None
    unprovable: str | None = None


class SyncSaid(_Told):
    """The last commit of an agent's engine."""

    version: int
    behind_seconds: float | None = None
    pause_seconds: float = 0.0
    bytes: int = 0


class AgentSaid(_Told):
    """The part of an agent's `/status` that matters here; syncline_agent/status.py says what each field is."""

    generation: int = 0
    target_error: str | None = None
    suspended: bool = False
    phase: str = "Idle"
    head: int | None = None
    target: int | None = None
    applied: AppliedVersion | None = None
    in_service: bool = False
    lag_versions: int = 0
    lag_seconds: float = 0.0
    head_age_seconds: float | None = None
    engine: EngineSaid | None = None
    apply_path: str | None = None
    last_sync: SyncSaid | None = None
    heartbeats: str = "on"
    error: str | None = None


def read_agent(body: bytes) -> AgentSaid | None:
    """The body of an agent's `/status`; None where it is none, which counts as silence."""
    try:
        return AgentSaid.model_validate_json(body)
    except ValidationError:
        return None


class RefusalKind(StrEnum):
    """What an API server found wrong with a child."""

    MALFORMED = "Malformed"
    POD_SECURITY = "PodSecurity"
    FORBIDDEN = "Forbidden"
    FIELDS_TAKEN = "FieldsTaken"
    TERMINATING = "Terminating"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A child that could not be written, in the API server's words."""

    kind: RefusalKind
    words: str


class WorkloadFault(StrEnum):
    """Why a workloadRef cannot be followed."""

    MISSING = "Missing"
    UNREADABLE = "Unreadable"


@dataclass(frozen=True, slots=True)
class Observed:
    """A moment of one pool."""

    pool: RolloutPool
    settings: PoolSettings
    now: float
    """Seconds since 1970 by the operator's clock."""
    children: Mapping[tuple[Resource, str], Document] = field(default_factory=dict[tuple[Resource, str], Document])
    """By kind and name, those that bear the pool's label."""
    pods: tuple[Document, ...] = ()
    """Of engines and agents."""
    said: Mapping[str, AgentSaid] = field(default_factory=dict[str, AgentSaid])
    """By name of the pod in which the agent runs; those that did not answer are absent."""
    refused: Mapping[tuple[Resource, str], Refusal] = field(default_factory=dict[tuple[Resource, str], Refusal])
    """What was refused at the last try."""
    workload: Document | WorkloadFault | None = None
    """With workloadRef: its `/scale`, or why there is none."""

    def child(self, resource: Resource, name: str) -> Document | None:
        return self.children.get((resource, name))

    def pods_of(self, role: str) -> list[Document]:
        """Pods of a role that are not over."""
        return [
            pod
            for pod in self.pods
            if self._role(pod) == role and pod.get("status", {}).get("phase") not in ("Failed", "Succeeded")
        ]

    def _role(self, pod: Document) -> str | None:
        role = pod["metadata"].get("labels", {}).get(names.ROLE)
        # A pod of an adopted workload counts even where its template was never injected: that is what must be told.
        return names.ENGINE if role is None and self.pool.spec.workload_ref is not None else role
