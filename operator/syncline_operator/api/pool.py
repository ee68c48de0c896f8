"""RolloutPool: engines that follow one view of one run. What a user asks for; what is told is in pool_status.py."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from syncline_operator.api.agent import Agent, AgentMode, Gateway
from syncline_operator.api.distributor import NetworkPolicyMode
from syncline_operator.api.engine import Engine
from syncline_operator.api.objects import API_VERSION, ObjectMeta, name_rules
from syncline_operator.api.pods import PodTemplate
from syncline_operator.api.policy import Disruption, UpdateStrategy, VersionPolicy
from syncline_operator.api.pool_status import RolloutPoolStatus
from syncline_operator.api.schema import Part
from syncline_operator.api.store import StoreAddress, WeightStore
from syncline_operator.api.values import ATOMIC, INT32_MAX, Endpoint, Name, ObjectName, Rule, matching

ApiVersionText = Annotated[
    str,
    Field(max_length=128),
    matching("([a-z0-9.-]+/)?v[a-z0-9]+", "must be a group and version such as leaderworkerset.x-k8s.io/v1"),
]
KindText = Annotated[str, Field(max_length=63), matching("[A-Z][A-Za-z0-9]*", "must be a kind such as LeaderWorkerSet")]


class Trust(StrEnum):
    """What manifests' signatures are held to."""

    OFF = "Off"


class WeightSource(Part):
    """Whose weights the pool serves, and where they lie."""

    run_name: Name = Field(
        description="Name of the run in the store: spec.runName of its TrainingRun, or that object's name, in "
        "whatever cluster it is. It cannot be changed."
    )
    view: Name = Field(
        default="main",
        description="View of the weights that the engines serve; main by convention. It cannot be changed.",
    )
    trust: Trust = Field(
        default=Trust.OFF,
        description="What signatures of manifests are held to. Off is the only choice of this version, in which "
        "manifests are not signed: digests "
        "protect against damage, and the store's own access rights against others.",
    )
    weight_store: WeightStore = Field(
        description="Where versions are published, and heartbeats written. Its uri cannot be changed."
    )
    mirrors: Annotated[tuple[StoreAddress, ...], Field(max_length=3), ATOMIC] = Field(
        default=(),
        description="Nearer copies of the run that syncline-distributor mirror keeps, nearest first, opened with "
        "weightStore's key pair. What a "
        "mirror lacks or holds damaged is read from weightStore. None by default.",
    )
    distributor_url: Endpoint | None = Field(
        default=None,
        alias="distributorURL",
        description="Where the run's distributor answers, if the pool's nodes reach it: new versions are then heard "
        "of at once. Left out, the "
        "store is asked once a second.",
    )
    rules = (
        Rule(
            "self.runName == oldSelf.runName",
            "runName cannot be changed; create another RolloutPool for another run",
            at=".runName",
        ),
        Rule(
            "self.view == oldSelf.view",
            "view cannot be changed; create another RolloutPool for another view",
            at=".view",
        ),
        Rule(
            "self.weightStore.uri == oldSelf.weightStore.uri",
            "uri cannot be changed; create another RolloutPool for another store",
            at=".weightStore.uri",
        ),
        Rule(
            "!has(self.mirrors) || self.mirrors.all(m, m.uri != self.weightStore.uri || "
            "(has(m.endpoint) ? m.endpoint : '') != (has(self.weightStore.endpoint) ? "
            "self.weightStore.endpoint : ''))",
            "a mirror must be another place than weightStore",
            at=".mirrors",
        ),
    )


class WorkloadReference(Part):
    """A workload that somebody else owns."""

    api_version: ApiVersionText = Field(description="Its apiVersion, such as leaderworkerset.x-k8s.io/v1.")
    kind: KindText = Field(
        description="Its kind, such as LeaderWorkerSet. It must have a scale subresource, and the operator the right "
        "to read it."
    )
    name: ObjectName = Field(description="Its name, in the object's own namespace.")


class RolloutPoolSpec(Part):
    """What a user asks for."""

    replicas: Annotated[int, Field(ge=0, le=INT32_MAX)] = Field(
        default=1,
        description="How many engines serve; an engine of several GPUs is one. Owned by whoever scales: a person, an "
        "autoscaler through the scale "
        "subresource; the operator never writes it. With workloadRef the workload itself is scaled, and "
        "this stays at its default, 1.",
    )
    suspend: bool = Field(
        default=False,
        description="True freezes the weights: pods go on serving the version that they have. False goes on to the "
        "newest.",
    )
    weight_source: WeightSource = Field(description="Whose weights the pool serves, and where they lie.")
    version_policy: VersionPolicy = Field(
        default_factory=VersionPolicy, description="Which version is served, and how late it may be."
    )
    engine: Engine = Field(description="What serves.")
    template: PodTemplate | None = Field(
        default=None,
        description="Pods of the engines, made by the operator, a pod a replica. Exactly one of template and "
        "workloadRef.",
    )
    workload_ref: WorkloadReference | None = Field(
        default=None,
        description="A workload that somebody else owns, and whose pod template went through syncline inject -f. The "
        "operator reads its scale and "
        "its pods and never writes it. Exactly one of template and workloadRef.",
    )
    update_strategy: UpdateStrategy = Field(
        default_factory=UpdateStrategy,
        description="How pods are replaced when the template changes. New versions of weights replace no pods.",
    )
    agent: Agent = Field(
        default_factory=Agent, description="What fetches versions on each node and brings them into the engines."
    )
    gateway: Gateway = Field(
        default_factory=Gateway, description="What stands in front of each engine and knows its version."
    )
    disruption: Disruption = Field(default_factory=Disruption, description="What happens when pods have to go.")
    network_policy: NetworkPolicyMode = Field(
        default=NetworkPolicyMode.MANAGED,
        description="Managed makes NetworkPolicies that let clients reach gateways and nothing else: whoever reaches "
        "an engine's own port may change "
        "its weights. None makes none, where the cluster has its own.",
    )
    min_ready_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        default=0,
        description="Seconds that a pod must be ready before it counts as available. None by default: ready already "
        "means proven.",
    )
    progress_deadline_seconds: Annotated[int, Field(ge=30, le=86_400)] = Field(
        default=900,
        description="Seconds without progress after which Progressing tells ProgressDeadlineExceeded. The default "
        "leaves time to pull an image and "
        "to load large weights.",
    )
    revision_history_limit: Annotated[int, Field(ge=0, le=100)] = Field(
        default=5,
        description="Old revisions of the pods (ReplicaSets) that are kept to be looked at; to go back, apply the "
        "older template.",
    )
    rules = (
        Rule("has(self.template) != has(self.workloadRef)", "name exactly one of template and workloadRef"),
        Rule(
            "has(self.template) == has(oldSelf.template)",
            "template and workloadRef cannot be exchanged; create another RolloutPool",
        ),
        Rule(
            "!has(self.workloadRef) || !has(oldSelf.workloadRef) || self.workloadRef == oldSelf.workloadRef",
            "workloadRef cannot be changed; create another RolloutPool for another workload",
            at=".workloadRef",
        ),
        Rule(
            "!has(self.workloadRef) || self.replicas == 1",
            "with workloadRef the workload itself is scaled; leave replicas out",
            at=".replicas",
        ),
        Rule(
            "!has(self.template) || !has(self.engine.container)"
            " || self.template.spec.containers.exists(c, c.name == self.engine.container)",
            "engine.container must name a container of template",
            at=".engine.container",
        ),
        Rule(
            "self.gateway.port != self.engine.port",
            "gateway.port and engine.port must differ: both listen in the same pod",
            at=".gateway.port",
        ),
        Rule(
            "self.agent.mode != 'Sidecar' || self.agent.port != self.engine.port",
            "agent.port and engine.port must differ: both listen in the same pod",
            at=".agent.port",
        ),
        Rule(
            "self.agent.mode != 'Sidecar' || self.agent.port != self.gateway.port",
            "agent.port and gateway.port must differ: both listen in the same pod",
            at=".agent.port",
        ),
        Rule(
            "self.progressDeadlineSeconds > self.minReadySeconds",
            "progressDeadlineSeconds must be above minReadySeconds",
            at=".progressDeadlineSeconds",
        ),
    )


class RolloutPool(Part):
    """Engines that serve one view of one run and follow it, version by version."""

    api_version: Literal["syncline.dev/v1alpha1"] = API_VERSION
    kind: Literal["RolloutPool"] = "RolloutPool"
    metadata: ObjectMeta
    spec: RolloutPoolSpec = Field(description="What is asked for.")
    status: RolloutPoolStatus | None = Field(default=None, description="What is so, as the operator last saw it.")
    rules = name_rules("RolloutPool")

    @property
    def shares_nodes(self) -> bool:
        """Whether one agent a node serves all of the pool's engines there."""
        return self.spec.agent.mode is AgentMode.NODE

    @classmethod
    def read(cls, found: dict[str, Any]) -> RolloutPool:
        """From the API server's JSON."""
        return cls.model_validate(found)
