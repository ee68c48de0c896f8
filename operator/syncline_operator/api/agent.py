"""What stands beside the engines: agents, and the gateway of each engine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from syncline_operator.api.pods import Image, LogLevel, PodSettings, Resources
from syncline_operator.api.schema import Part
from syncline_operator.api.values import AbsolutePath, ObjectName, Port, Quantity, Rule, Span, lasting


class AgentMode(StrEnum):
    """Where agents run."""

    NODE = "Node"
    SIDECAR = "Sidecar"


class Medium(StrEnum):
    """What the node directory lies on."""

    DISK = "Disk"
    MEMORY = "Memory"


class Cache(Part):
    """The node directory: a checkpoint to start from, and verified deltas."""

    size_limit: Quantity | None = Field(
        default=None,
        description="How much it may hold, with mode Sidecar; a pod that exceeds it is evicted. One checkpoint and 4 "
        "GiB of deltas. Left out, the "
        "node's disk is the bound.",
    )
    medium: Medium = Field(
        default=Medium.DISK,
        description="Disk, or Memory (with mode Sidecar), which counts against the pod's memory. The default leaves "
        "memory to the engine.",
    )
    host_path: AbsolutePath = Field(
        default="/var/lib/syncline",
        description="Folder of the node below which the pool has its own, with mode Node. The default is where a "
        "node's state belongs; name a "
        "folder on a local NVMe where that is another disk.",
    )
    rules = (
        Rule(
            "self.medium != 'Memory' || has(self.sizeLimit)",
            "medium Memory needs sizeLimit: it would take the engine's memory without a bound",
            at=".sizeLimit",
            reason="FieldValueRequired",
        ),
    )


class Agent(Part):
    """What fetches versions and brings them into engines."""

    mode: AgentMode = Field(
        default=AgentMode.NODE,
        description="Node, the default: a DaemonSet on the pool's nodes and a folder of the node, so that a node "
        "downloads a version once. It mounts "
        "a hostPath, which Pod Security baseline refuses. Sidecar: one beside each engine, within Pod "
        "Security restricted; each downloads for itself.",
    )
    image: Image | None = Field(
        default=None, description="Image of agent and gateway. Left out, it is the operator's own release, by digest."
    )
    service_account_name: ObjectName | None = Field(
        default=None,
        description="ServiceAccount of the agents' pods with mode Node, for workload identity. Left out, the "
        "operator makes one without any rights. "
        "With mode Sidecar the template's own serviceAccountName is used.",
    )
    supplemental_group: Annotated[int, Field(ge=1, le=65_535)] = Field(
        default=65_000,
        description="Group that agent, gateway and engine share, so that they and nobody else open the sockets of "
        "the node directory. The "
        "default is one that no distribution hands out.",
    )
    port: Port = Field(default=9401, description="Port on which the agent tells its status and metrics.")
    fetch_workers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=4,
        description="Connections on which an agent fetches at once. Four fill most links; over a long way more help.",
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="What an agent asks for and may use: about 1 GiB and what changes in a step.",
    )
    cache: Cache = Field(default_factory=Cache, description="The node directory.")
    log_level: LogLevel = Field(
        default=LogLevel.INFO, description="From which level on agents and gateways log: Debug, Info, Warning or Error."
    )
    pod: PodSettings | None = Field(
        default=None,
        description="Where and how agents run, with mode Node. Left out, they follow the engines: the template's "
        "nodeSelector, tolerations and "
        "affinity.",
    )
    rules = (
        Rule(
            "self.mode == 'Sidecar' || self.cache.medium == 'Disk'",
            "cache.medium Memory goes with mode Sidecar: nodes share a folder of their disk",
            at=".cache.medium",
        ),
        Rule(
            "self.mode == 'Sidecar' || !has(self.cache.sizeLimit) || self.cache.medium == 'Memory'",
            "cache.sizeLimit goes with mode Sidecar: nothing bounds a folder of a node",
            at=".cache.sizeLimit",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.mode == 'Node' || !has(self.pod)",
            "pod goes with mode Node: a sidecar runs where its engine does",
            at=".pod",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.mode == 'Node' || !has(self.serviceAccountName)",
            "serviceAccountName goes with mode Node: a sidecar has the one of its template",
            at=".serviceAccountName",
            reason="FieldValueForbidden",
        ),
    )


class Gateway(Part):
    """What stands in front of an engine."""

    port: Port = Field(default=8100, description="Port that clients reach; the pool's Service leads to it.")
    wait: Annotated[Span, lasting("0s", "10m")] = Field(
        default="10s",
        description="How long a request waits for its version where it does not say. Longer than a usual commit, "
        "shorter than clients' patience.",
    )
    pin: Annotated[Span, lasting("1s", "60s")] = Field(
        default="30s", description="How long a request for one exact version keeps commits out at most."
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="What a gateway asks for and may use. It is one process, and uses one core.",
    )
