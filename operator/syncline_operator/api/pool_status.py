"""What the operator tells of a RolloutPool: read from pods and from agents' and gateways' `/status`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from syncline_operator.api.conditions import Conditions
from syncline_operator.api.engine import ApplyPath
from syncline_operator.api.run_status import VersionCount
from syncline_operator.api.schema import Told
from syncline_operator.api.values import Count, Instant, Large, Span, VersionNumber, map_list

Revision = Annotated[str, Field(max_length=63)]


class LastSync(Told):
    """The last version that all ready replicas came to serve."""

    version: VersionNumber = Field(description="The version.")
    start_time: Instant | None = Field(
        default=None, description="When it was committed in the store, by the store's clock."
    )
    completion_time: Instant | None = Field(
        default=None, description="When the last ready replica served it, by the store's clock."
    )
    duration: Span | None = Field(default=None, description="From the one to the other.")
    pause: Span | None = Field(default=None, description="The longest time that any engine stood still for it.")
    bytes: Large | None = Field(default=None, description="Bytes that all agents fetched for it.")


class PathCount(Told):
    """How many replicas took their last version in a way."""

    path: ApplyPath = Field(
        description="InPlace: changed in memory, or loaded at start. Reload: by the engine's reload route."
    )
    replicas: Count = Field(description="How many took it so.")


class AgentStatus(Told):
    """The agents of the pool."""

    desired: Count = Field(
        default=0, description="Agents that should run: nodes of the pool, or with mode Sidecar its replicas."
    )
    ready: Count = Field(default=0, description="Agents that answer.")
    echoed: Count = Field(
        default=0, description="Agents that follow the policy as it stands; a change of spec is through when all do."
    )


class CanaryStatus(Told):
    """A version that a few serve first."""

    version: VersionNumber = Field(description="The version.")
    replicas: Count = Field(default=0, description="Replicas that serve it, proven.")
    start_time: Instant | None = Field(
        default=None, description="When canary.replicas of them did, by the operator's clock; bakeTime runs from here."
    )
    held_version: VersionNumber | None = Field(
        default=None, description="The version that the others stay on meanwhile."
    )


class RolloutPoolStatus(Told):
    """What is so."""

    observed_generation: Large | None = Field(
        default=None,
        description="The metadata.generation that this status was made for. Lower than the object's: a change of "
        "spec is not looked at yet.",
    )
    replicas: Count = Field(default=0, description="Engine pods that exist.")
    ready_replicas: Count = Field(
        default=0, description="Of them, ready: the engine answers, and its weights are proven."
    )
    available_replicas: Count = Field(default=0, description="Of them, ready for minReadySeconds.")
    updated_replicas: Count = Field(
        default=0, description="Of the pods that exist, made from the template as it stands."
    )
    current_replicas: Count = Field(default=0, description="Ready replicas that serve targetVersion.")
    proven_replicas: Count = Field(default=0, description="Replicas whose live weights have the manifest's digest.")
    doomed_replicas: Count = Field(
        default=0,
        description="Replicas that have notice to go, by a spot reclaim or a drain; they count against no deadline.",
    )
    selector: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="Label selector of the engine pods, as text, for autoscalers."
    )
    head_version: VersionNumber | None = Field(
        default=None, description="The newest version in the store that any agent knows of."
    )
    target_version: VersionNumber | None = Field(
        default=None, description="The version that ready replicas should serve."
    )
    current_version: VersionNumber | None = Field(
        default=None, description="The lowest version that a ready replica serves."
    )
    version_lag: Count | None = Field(
        default=None, description="How many versions the ready replica that is farthest behind is behind its target."
    )
    lag_seconds: Count | None = Field(
        default=None,
        description="For how many seconds, by the store's clock, the oldest version that some ready replica does not "
        "serve has been committed.",
    )
    versions: Annotated[tuple[VersionCount, ...], Field(max_length=16), map_list("version")] = Field(
        default=(), description="How many ready replicas serve which version, the newest 16 versions."
    )
    apply_paths: Annotated[tuple[PathCount, ...], Field(max_length=2), map_list("path")] = Field(
        default=(), description="In which way ready replicas took their last version."
    )
    last_sync: LastSync | None = Field(
        default=None, description="The last version that all ready replicas came to serve."
    )
    canary: CanaryStatus | None = Field(
        default=None, description="The version that a few serve first, while there is one."
    )
    agents: AgentStatus | None = Field(default=None, description="The agents of the pool.")
    policy_generation: Large | None = Field(
        default=None,
        description="Generation of the policy that agents were told last; agents.echoed counts who has it.",
    )
    lineage: Annotated[str, Field(max_length=32)] | None = Field(
        default=None,
        description="The run's identity in the store. Another one than before means that the run's name was used "
        "again for another training.",
    )
    update_revision: Revision | None = Field(default=None, description="Revision of the pods that are made now.")
    current_revision: Revision | None = Field(
        default=None, description="Revision of the pods before them, while they are replaced."
    )
    conditions: Conditions = Field(
        default=(), description="What is so and what is not; docs/kubernetes.md lists every type and reason."
    )
