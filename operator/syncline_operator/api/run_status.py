"""What the operator tells of a TrainingRun: read from the distributor's `/status`, which reads the store."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from syncline_operator.api.conditions import Conditions
from syncline_operator.api.schema import Told
from syncline_operator.api.values import ATOMIC, Count, Fraction, Instant, Large, Text, VersionNumber, map_list

Word = Annotated[str, Field(max_length=253)]
Lineage = Annotated[str, Field(max_length=32)]
Digest = Annotated[str, Field(max_length=32)]


class LatestVersion(Told):
    """The newest committed version."""

    version: VersionNumber = Field(description="Its number: 1, 2, 3, … without gaps in a run.")
    step: Large | None = Field(
        default=None, description="The trainer's own step that it was made of, where that is known."
    )
    parent_version: VersionNumber | None = Field(
        default=None,
        description="The version that the training went on from. Lower than baseVersion after the trainer went back "
        "(a fork).",
    )
    base_version: VersionNumber | None = Field(
        default=None, description="The version that its delta starts from; none where it carries all weights."
    )
    digest: Digest | None = Field(
        default=None, description="Digest of the view, 32 hexadecimal digits: what every replica proves."
    )
    published_time: Instant | None = Field(default=None, description="When it was committed, by the store's clock.")
    size_bytes: Large | None = Field(default=None, description="Bytes of its delta in the store.")
    changed_fraction: Fraction | None = Field(
        default=None,
        description="Share of the view's elements that it changes, from 0 to 1, as digits so that no client rounds it.",
    )


class Veto(Told):
    """A version that was marked bad."""

    version: VersionNumber = Field(description="The version; replicas skip it, or leave it.")
    reason: Text = Field(default="", description="Why, as whoever marked it wrote.")


class VersionCount(Told):
    """How many serve a version."""

    version: VersionNumber = Field(description="The version that is served.")
    replicas: Count = Field(description="How many serve it.")


class Consumer(Told):
    """A pool that reads the run, in any cluster, as its heartbeats in the store say."""

    cluster: Word = Field(description="Cluster of the pool, as its operator was told to call it.")
    namespace: Word = Field(description="Namespace of the pool in that cluster.")
    name: Word = Field(description="Name of the pool.")
    nodes: Count = Field(default=0, description="Nodes (with agent.mode Sidecar: replicas) with a fresh heartbeat.")
    stale_nodes: Count = Field(
        default=0,
        description="Nodes whose heartbeat is older than it promised to become; they keep nothing in the store.",
    )
    proven_nodes: Count = Field(default=0, description="Nodes that serve weights whose digest is proven.")
    current_version: VersionNumber | None = Field(default=None, description="The lowest version that is served.")
    version_lag: Count | None = Field(
        default=None, description="How many versions the node that is farthest behind is behind its target."
    )
    lag_seconds: Count | None = Field(
        default=None,
        description="For how many seconds, by the store's clock, the oldest version that is not served everywhere "
        "has been committed.",
    )
    reloading_nodes: Count = Field(
        default=0, description="Nodes that take versions by their engine's reload route, not in place."
    )
    last_heartbeat_time: Instant | None = Field(
        default=None, description="When the newest heartbeat was written, by the store's clock."
    )
    error: Text | None = Field(default=None, description="What keeps most of the failing nodes from their target.")


class ConsumerSummary(Told):
    """All pools in one line."""

    pools: Count = Field(
        default=0,
        description="Pools with at least one fresh heartbeat; more than consumers lists where there are more than 64.",
    )
    nodes: Count = Field(default=0, description="Nodes with a fresh heartbeat.")
    proven_nodes: Count = Field(default=0, description="Nodes that serve weights whose digest is proven.")
    version_lag: Count | None = Field(default=None, description="The largest lag of any pool, in versions.")
    lag_seconds: Count | None = Field(default=None, description="The largest lag of any pool, in seconds.")


class SourceStatus(Told):
    """What the watched source holds."""

    published: Count = Field(default=0, description="Checkpoints that became versions since the service started.")
    pending: Count = Field(default=0, description="Complete checkpoints that are not published yet.")
    incomplete: Count = Field(default=0, description="Checkpoints that are still being written, as far as can be told.")
    refused: Count = Field(
        default=0, description="Checkpoints that cannot be read; the condition Publishing names one and why."
    )
    waits_for: Text | None = Field(default=None, description="What must be there before anything can be published.")


class Chain(Told):
    """How far a joiner has to go."""

    length: Count = Field(default=0, description="Versions from the newest anchor to the newest version.")
    delta_bytes: Large = Field(default=0, description="Bytes of their deltas.")
    full_bytes: Large = Field(default=0, description="Bytes of all weights: what an anchor takes.")


class TrainingRunStatus(Told):
    """What is so."""

    observed_generation: Large | None = Field(
        default=None,
        description="The metadata.generation that this status was made for. Lower than the object's: a change of "
        "spec is not looked at yet.",
    )
    run_name: Word | None = Field(default=None, description="Name of the run in the store.")
    lineage: Lineage | None = Field(
        default=None,
        description="The run's identity in the store, as it was first seen: what deletionPolicy Delete deletes. It "
        "survives this object. Where the name is used again for another training, Publishing says LineageChanged.",
    )
    epoch: Large | None = Field(
        default=None, description="Fencing number of the writer. It grows with every writer that takes the run over."
    )
    latest_version: LatestVersion | None = Field(default=None, description="The newest committed version (head).")
    latest_anchor_version: VersionNumber | None = Field(
        default=None, description="The newest version whose whole weights are stored, where joiners start from."
    )
    latest_skip_version: VersionNumber | None = Field(
        default=None, description="The newest version with a skip delta from that anchor."
    )
    oldest_retained_version: VersionNumber | None = Field(
        default=None, description="The oldest version that can still be pinned."
    )
    chain: Chain | None = Field(default=None, description="How far a joiner has to go.")
    source: SourceStatus | None = Field(
        default=None, description="What the watched source holds, with publisher Distributor."
    )
    vetoes: Annotated[tuple[Veto, ...], Field(max_length=16), map_list("version")] = Field(
        default=(), description="Versions marked bad by syncline mark-bad, the newest 16."
    )
    consumer_summary: ConsumerSummary | None = Field(
        default=None, description="All pools that read the run, in every cluster, in one line."
    )
    consumers: Annotated[tuple[Consumer, ...], Field(max_length=64), map_list("cluster", "namespace", "name")] = Field(
        default=(),
        description="Pools that read the run, in every cluster; of more than 64 those that are farthest behind.",
    )
    left_objects: Annotated[tuple[Annotated[str, Field(max_length=512)], ...], Field(max_length=16), ATOMIC] = Field(
        default=(), description="Some of what deletionPolicy Delete could not delete yet, as keys in the store."
    )
    conditions: Conditions = Field(
        default=(), description="What is so and what is not; docs/kubernetes.md lists every type and reason."
    )
