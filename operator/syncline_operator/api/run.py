"""TrainingRun: one view of one run, published into a store. What a user asks for; what is told is in run_status.py."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from syncline_operator.api.checkpoints import CheckpointSource
from syncline_operator.api.distributor import Distributor, NetworkPolicyMode
from syncline_operator.api.objects import API_VERSION, ObjectMeta, name_rules
from syncline_operator.api.publishing import PublishPolicy, Retention
from syncline_operator.api.run_status import TrainingRunStatus
from syncline_operator.api.schema import Part
from syncline_operator.api.store import WeightStore
from syncline_operator.api.values import (
    Name,
    Rule,
    Span,
    lasting,
)


class PublisherKind(StrEnum):
    """Who publishes."""

    DISTRIBUTOR = "Distributor"
    SDK = "SDK"


class DeletionPolicy(StrEnum):
    """What becomes of the run in the store."""

    RETAIN = "Retain"
    DELETE = "Delete"


class TrainingRunSpec(Part):
    """What a user asks for."""

    suspend: bool = Field(
        default=False,
        description="True stops publishing; everything that is stored stays, and replicas go on serving. False goes "
        "on where it was.",
    )
    run_name: Name | None = Field(
        default=None,
        description="Name of the run in the store. Left out, it is the object's own name. It cannot be changed: a "
        "run has one history.",
    )
    view: Name = Field(
        default="main",
        description="View of the weights that is published, the weights as an engine serves them; main by "
        "convention. It cannot be changed.",
    )
    weight_store: WeightStore = Field(description="Where versions are published. Its uri cannot be changed.")
    publisher: PublisherKind = Field(
        default=PublisherKind.DISTRIBUTOR,
        description="Distributor: the service publishes each checkpoint that appears in checkpointSource; the "
        "default, since it asks nothing of the "
        "trainer. SDK: the trainer publishes itself (Publisher.publish), and the service looks after the rest.",
    )
    checkpoint_source: CheckpointSource | None = Field(
        default=None, description="Where the trainer's checkpoints appear, with publisher Distributor."
    )
    publish_policy: PublishPolicy = Field(default_factory=PublishPolicy, description="How versions are written.")
    retention: Retention = Field(default_factory=Retention, description="What may be deleted from the store.")
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="What becomes of the run in the store when this object is deleted. Retain, the default, since "
        "weights cannot be made again: it "
        "stays, and an object of the same name takes it up. Delete: the running service deletes all of it first.",
    )
    deletion_timeout: Annotated[Span, lasting("10s", "24h")] = Field(
        default="10m",
        description="How long deletionPolicy Delete may take. Then the object goes all the same, and an Event names "
        "what is left in the store: a "
        "bucket that denies access must not hold a namespace.",
    )
    network_policy: NetworkPolicyMode = Field(
        default=NetworkPolicyMode.MANAGED,
        description="Managed makes a NetworkPolicy that lets only status, metrics and long polls in; None makes "
        "none, where the cluster has its own.",
    )
    distributor: Distributor = Field(
        default_factory=Distributor, description="The service that runs beside the trainer."
    )
    rules = (
        Rule(
            "self.publisher != 'Distributor' || has(self.checkpointSource)",
            "publisher Distributor needs checkpointSource; where the trainer publishes itself, set publisher SDK",
            at=".checkpointSource",
            reason="FieldValueRequired",
        ),
        Rule(
            "self.publisher != 'SDK' || !has(self.checkpointSource)",
            "publisher SDK takes no checkpointSource: the trainer publishes itself",
            at=".checkpointSource",
            reason="FieldValueForbidden",
        ),
        Rule(
            "!has(self.checkpointSource) || !has(self.checkpointSource.objectStorage)"
            " || !(self.checkpointSource.objectStorage.uri + '/').startsWith(self.weightStore.uri + '/')"
            " || (has(self.checkpointSource.objectStorage.endpoint) ? self.checkpointSource.objectStorage.endpoint : '')"
            " != (has(self.weightStore.endpoint) ? self.weightStore.endpoint : '')",
            "checkpointSource must not lie below weightStore: the run's own anchors would be taken for checkpoints",
            at=".checkpointSource",
        ),
        Rule(
            "has(self.runName) == has(oldSelf.runName) && (!has(self.runName) || self.runName == oldSelf.runName)",
            "runName cannot be changed; create another TrainingRun for another run",
        ),
        Rule(
            "self.view == oldSelf.view",
            "view cannot be changed; create another TrainingRun for another view",
            at=".view",
        ),
        Rule(
            "self.weightStore.uri == oldSelf.weightStore.uri",
            "uri cannot be changed; create another TrainingRun for another store",
            at=".weightStore.uri",
        ),
    )


class TrainingRun(Part):
    """Publishes one view of one training's weights into an object store, version by version."""

    api_version: Literal["syncline.dev/v1alpha1"] = API_VERSION
    kind: Literal["TrainingRun"] = "TrainingRun"
    metadata: ObjectMeta
    spec: TrainingRunSpec = Field(description="What is asked for.")
    status: TrainingRunStatus | None = Field(default=None, description="What is so, as the operator last saw it.")
    rules = name_rules("TrainingRun")

    @property
    def run(self) -> str:
        """Name of the run in the store."""
        return self.spec.run_name or self.metadata.name

    @classmethod
    def read(cls, found: dict[str, Any]) -> TrainingRun:
        """From the API server's JSON."""
        return cls.model_validate(found)
