"""Where a trainer's checkpoints appear, and when one is whole."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from syncline_operator.api.schema import Part
from syncline_operator.api.store import StoreAddress
from syncline_operator.api.values import (
    ObjectName,
    RelativePath,
    Rule,
    Span,
    lasting,
    matching,
)


class Completion(StrEnum):
    """What makes a checkpoint complete."""

    STABLE = "Stable"
    RENAME = "Rename"
    MARKER = "Marker"


class Take(StrEnum):
    """Which complete checkpoints become versions."""

    ALL = "All"
    LATEST = "Latest"


class ClaimSource(Part):
    """A folder on a volume that the trainer writes to."""

    claim_name: ObjectName = Field(
        description="PersistentVolumeClaim that holds the checkpoints, in the object's own namespace. It is mounted "
        "read-only."
    )
    path: RelativePath = Field(
        default="", description="Folder on the volume below which checkpoints appear. The default is the volume's root."
    )


class CompletionSettings(Part):
    """When a checkpoint is whole. Headers, index and shards are checked in every mode."""

    type: Completion = Field(
        default=Completion.STABLE,
        description="Stable: sizes and times of its files have not moved for stablePolls polls; the default, since "
        "it asks nothing of the "
        "trainer. Rename: the trainer writes elsewhere and renames. Marker: the file named by marker is there.",
    )
    marker: (
        Annotated[str, Field(min_length=1, max_length=128), matching("[^/]+", "must be a file's name, without '/'")]
        | None
    ) = Field(default=None, description="Name of the file that completes a checkpoint, with type Marker.")
    stable_polls: Annotated[int, Field(ge=1, le=100)] = Field(
        default=2,
        description="How many polls in a row must see the same sizes and times, with type Stable. Two catch a file "
        "that is still written.",
    )
    rules = (
        Rule(
            "self.type != 'Marker' || has(self.marker)",
            "type Marker needs marker, the file's name",
            at=".marker",
            reason="FieldValueRequired",
        ),
        Rule(
            "self.type == 'Marker' || !has(self.marker)",
            "marker goes with type Marker",
            at=".marker",
            reason="FieldValueForbidden",
        ),
    )


class CheckpointSource(Part):
    """Where a trainer's checkpoints appear."""

    persistent_volume_claim: ClaimSource | None = Field(
        default=None, description="A volume that the trainer writes checkpoints to."
    )
    object_storage: StoreAddress | None = Field(
        default=None,
        description="A bucket's prefix that the trainer writes checkpoints to, read with the key pair of weightStore.",
    )
    subfolder: RelativePath = Field(
        default="",
        description="Where inside a checkpoint the weights are, such as actor/huggingface. The default is the "
        "checkpoint itself.",
    )
    completion: CompletionSettings = Field(
        default_factory=CompletionSettings, description="What makes a checkpoint complete."
    )
    take: Take = Field(
        default=Take.ALL,
        description="All publishes every complete checkpoint, in the order of their steps; Latest only the newest, "
        "for trainers that write "
        "faster than replicas need. The default leaves no step out.",
    )
    poll_interval: Annotated[Span, lasting("100ms", "1h")] = Field(
        default="1s",
        description="How often the source is listed. A second is short beside a training step and cheap for a folder.",
    )
    rules = (
        Rule(
            "has(self.persistentVolumeClaim) != has(self.objectStorage)",
            "name exactly one of persistentVolumeClaim and objectStorage",
        ),
    )
