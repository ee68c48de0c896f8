"""The service beside the trainer, as a user may shape it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from syncline_operator.api.pods import Image, LogLevel, PodSettings, Resources
from syncline_operator.api.schema import Part
from syncline_operator.api.values import (
    ObjectName,
    Quantity,
    Rule,
)


class NetworkPolicyMode(StrEnum):
    """Whether the operator makes NetworkPolicies."""

    MANAGED = "Managed"
    NONE = "None"


class StateVolume(Part):
    """The distributor's disk: the base of the next delta, the last anchor, and a journal."""

    size: Quantity = Field(
        default="100Gi",
        description="Size of the volume. It holds up to two checkpoints and the journal of one step: 2.5 times the "
        "view's bytes are enough. "
        "The default is enough for 20 billion parameters of 16 bits. It may grow where the StorageClass allows it.",
    )
    storage_class_name: ObjectName | None = Field(
        default=None,
        description="StorageClass of the volume. Left out, it is the cluster's default. It cannot be changed later.",
    )
    rules = (
        Rule(
            "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            "size may grow, never shrink",
            at=".size",
        ),
        Rule(
            "has(self.storageClassName) == has(oldSelf.storageClassName)"
            " && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "storageClassName cannot be changed; delete and create the TrainingRun instead, with "
            "deletionPolicy Retain nothing is lost",
        ),
    )


class Distributor(Part):
    """The service beside the trainer: it publishes or not, and always looks after anchors, skip deltas, retention and status."""

    image: Image | None = Field(
        default=None, description="Image of the service. Left out, it is the operator's own release, by digest."
    )
    service_account_name: ObjectName | None = Field(
        default=None,
        description="ServiceAccount of the pod, for workload identity: name one that the cloud binds to a role that "
        "may write the bucket. "
        "Left out, the operator makes one without any rights. No token of the cluster's API is mounted in either.",
    )
    workers: Annotated[int, Field(ge=1, le=256)] = Field(
        default=2, description="Threads that encode and decode. Two keep up with a trainer on most disks."
    )
    resources: Resources = Field(default_factory=Resources, description="What the container asks for and may use.")
    state: StateVolume = Field(
        default_factory=StateVolume, description="The volume that lets the service go on where it was."
    )
    log_level: LogLevel = Field(
        default=LogLevel.INFO, description="From which level on the service logs: Debug, Info, Warning or Error."
    )
    pod: PodSettings = Field(default_factory=PodSettings, description="Where and how the pod runs.")
