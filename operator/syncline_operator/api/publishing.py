"""How versions are written into a store, and what may be deleted from it again."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from syncline_operator.api.schema import Part
from syncline_operator.api.values import (
    Rule,
    Span,
    lasting,
)


class NonFinite(StrEnum):
    """What a NaN or an Inf among changed weights means."""

    PUBLISH = "Publish"
    REFUSE = "Refuse"


class Codec(StrEnum):
    """Which codec changes get."""

    AUTO = "Auto"
    CONTEXT = "Context"
    SPARSE = "Sparse"
    XOR_ZSTD = "XorZstd"
    XOR_LZ4 = "XorLz4"
    RAW = "Raw"


class Collection(StrEnum):
    """Whether what nobody needs is deleted."""

    COLLECT = "Collect"
    KEEP = "Keep"


class PublishPolicy(Part):
    """How versions are written, and what shortens the way for joiners."""

    codec: Codec = Field(
        default=Codec.AUTO,
        description="Auto takes for each tensor the codec that costs least in bytes and time; any other is taken for "
        "all.",
    )
    link_mbit: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=200,
        description="Link that most replicas sit behind, in Mbit/s: where bytes are cheap, Auto takes quicker "
        "codecs. The default is that of "
        "two regions; within one, 10000 is nearer.",
    )
    non_finite: NonFinite = Field(
        default=NonFinite.PUBLISH,
        description="Publish ships NaN and Inf as they are, since bits are what is promised, and counts them; Refuse "
        "leaves such a checkpoint out.",
    )
    anchor_every: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=50,
        description="Versions between anchors (the whole weights, stored for joiners); 0 is never. Where a step changes "
        "one percent, the deltas of fifty are about a fifth of an anchor's bytes.",
    )
    anchor_at_percent: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=100,
        description="An anchor is also due once the deltas since the last one are so many percent of all weights; 0 "
        "is never. At 100 a joiner "
        "would fetch as much in deltas as in an anchor.",
    )
    skip_every: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=8,
        description="Versions between skip deltas, one object from the newest anchor to a version; 0 is never. A "
        "joiner then fetches fewer than so many deltas.",
    )
    verify_every: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=0,
        description="Versions between full digests of what is published, beside the running one; 0, the default, is "
        "never: each costs a read of all weights.",
    )
    rules = (
        Rule(
            "self.anchorEvery > 0 || self.anchorAtPercent > 0",
            "one of anchorEvery and anchorAtPercent must be above 0: without anchors the chain only grows, "
            "and joiners fetch all of it",
        ),
    )


class Retention(Part):
    """What may be deleted from the store. What a fresh heartbeat or lease needs always stays."""

    mode: Collection = Field(
        default=Collection.COLLECT,
        description="Collect deletes what no replica and no joiner needs; Keep deletes nothing, and the store grows "
        "without bound.",
    )
    keep_anchors: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=2,
        description="Newest anchors that stay though nobody needs them. Two, since the newest may turn out bad.",
    )
    keep_versions: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=0,
        description="Newest versions that stay whatever replicas need, to look at them or to pin one later. None by "
        "default: they cost storage.",
    )
    lease_period: Annotated[Span, lasting("1m", "24h")] = Field(
        default="5m",
        description="Time between finding an object unneeded and deleting it; longer than any joiner's listing and "
        "first fetch.",
    )
    sweep_interval: Annotated[Span, lasting("10s", "24h")] = Field(
        default="1m", description="Time between looks at what may be deleted. Each lists the run's objects."
    )
