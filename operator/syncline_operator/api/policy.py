"""Which version a pool serves, how late it may be, and how its pods are replaced."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from syncline_operator.api.schema import Part
from syncline_operator.api.values import CountOrPercent, Rule, Span, VersionNumber, lasting

NOTHING = "['0', '0%']"


class VersionPolicyType(StrEnum):
    """Which version is the target."""

    LATEST = "Latest"
    PINNED = "Pinned"


class RequestPolicy(StrEnum):
    """What becomes of requests in flight when an engine commits."""

    KEEP = "Keep"
    DRAIN = "Drain"
    ABORT = "Abort"


class StaleAction(StrEnum):
    """What becomes of a replica that is beyond the bounds on lag."""

    KEEP = "Keep"
    MARK_NOT_READY = "MarkNotReady"


class Unprovable(StrEnum):
    """What becomes of an engine whose weights cannot be proven from outside."""

    REFUSE = "Refuse"
    SERVE = "Serve"


class UpdateType(StrEnum):
    """How pods are replaced."""

    ROLLING_UPDATE = "RollingUpdate"
    RECREATE = "Recreate"


class Canary(Part):
    """A version is served by a few before it is served by all."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1,
        description="How many replicas take a version first. Where the pool has no more than so many, the version "
        "goes to all at once.",
    )
    bake_time: Annotated[Span, lasting("1s", "24h")] = Field(
        default="60s",
        description="How long they must serve it, proven and ready, before the others follow. A canary that fails "
        "holds the others where they "
        "are until the version is marked bad, or another comes.",
    )


class VersionPolicy(Part):
    """Which version is served, and how late it may be."""

    type: VersionPolicyType = Field(
        default=VersionPolicyType.LATEST,
        description="Latest follows the newest version; Pinned stays on, or goes back to, the one named by version.",
    )
    version: VersionNumber | None = Field(
        default=None, description="The version to serve, with type Pinned. It must still be in the store."
    )
    request_policy: RequestPolicy = Field(
        default=RequestPolicy.KEEP,
        description="What becomes of requests in flight when an engine commits. Keep: they go on, and the answer "
        "says which tokens came from "
        "which version; the default, since nothing waits. Drain: the commit waits until they end. Abort: "
        "they are ended and can be retried.",
    )
    max_version_lag: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None,
        description="How many versions behind its target a replica may answer; a request that finds it farther "
        "behind waits, or gets 409. Left out, "
        "there is no bound, and requests say for themselves what they accept.",
    )
    max_lag_seconds: Annotated[int, Field(ge=1, le=604_800)] | None = Field(
        default=None,
        description="For how many seconds the oldest version that a replica does not serve yet may have been "
        "committed, by the store's clock, "
        "before requests wait or get 409. Left out, there is no bound.",
    )
    stale_action: StaleAction = Field(
        default=StaleAction.KEEP,
        description="What becomes of a replica beyond these bounds. Keep, the default: it stays ready and refuses "
        "request by request, so that a "
        "store that is away takes no pool down. MarkNotReady: it is also taken out of Services, never "
        "more of them than maxUnavailable.",
    )
    unprovable: Unprovable = Field(
        default=Unprovable.REFUSE,
        description="What becomes of an engine whose weights cannot be proven from outside, as on some reload "
        "routes. Refuse, the default: it is "
        "not ready. Serve: it is, and the condition Proven tells of it.",
    )
    canary: Canary | None = Field(
        default=None, description="Takes a version to a few replicas first. Left out, it goes to all at once."
    )
    rules = (
        Rule(
            "self.type != 'Pinned' || has(self.version)",
            "type Pinned needs version, the one to serve",
            at=".version",
            reason="FieldValueRequired",
        ),
        Rule(
            "self.type == 'Pinned' || !has(self.version)",
            "version goes with type Pinned; Latest takes none",
            at=".version",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.staleAction != 'MarkNotReady' || has(self.maxVersionLag) || has(self.maxLagSeconds)",
            "staleAction MarkNotReady needs maxVersionLag or maxLagSeconds: without a bound nothing is stale",
            at=".staleAction",
        ),
    )


class RollingUpdate(Part):
    """How many pods may be away or too many while they are replaced."""

    max_unavailable: CountOrPercent = Field(
        default="25%",
        description="How many replicas, or which percentage rounded down, may be unavailable at once while pods are "
        "replaced, or be marked not ready "
        "by staleAction. A quarter, as for Deployments.",
    )
    max_surge: CountOrPercent = Field(
        default=0,
        description="How many replicas, or which percentage rounded up, may run beyond spec.replicas while pods are "
        "replaced. None by default: where "
        "every GPU is taken, a surge pod would wait for ever.",
    )
    rules = (
        Rule(
            f"!(string(self.maxUnavailable) in {NOTHING} && string(self.maxSurge) in {NOTHING})",
            "maxUnavailable and maxSurge cannot both be 0: no pod could ever be replaced",
        ),
    )


class UpdateStrategy(Part):
    """How pods are replaced."""

    type: UpdateType = Field(
        default=UpdateType.ROLLING_UPDATE,
        description="RollingUpdate replaces a few pods at a time; Recreate ends all, then starts all.",
    )
    rolling_update: RollingUpdate = Field(
        default_factory=RollingUpdate,
        description="How many at a time, with type RollingUpdate. maxUnavailable bounds staleAction with either type.",
    )


class DisruptionBudget(Part):
    """A PodDisruptionBudget of the pool."""

    max_unavailable: CountOrPercent = Field(
        default="25%",
        description="How many replicas, or which percentage rounded up, may be evicted at once, by a drain for "
        "instance. A quarter by default; 100% "
        "hinders no eviction. Pods that are not ready may always be evicted.",
    )


class Disruption(Part):
    """What happens when pods have to go."""

    termination_notice: Annotated[Span, lasting("1s", "1h")] = Field(
        default="15s",
        description="What a pod has from the notice (SIGTERM, a doomed node) to its end: no request is let in any "
        "more, no commit begins, and "
        "those in flight may end. The default is what the shortest spot notice leaves.",
    )
    pod_disruption_budget: DisruptionBudget = Field(
        default_factory=DisruptionBudget, description="How many may be evicted at once."
    )
