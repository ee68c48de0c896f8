"""What a condition is, and the vocabulary of one kind's: which types there are, and which reasons each may give.

The tables themselves are in run_conditions.py and pool_conditions.py. Reasons are part of the API: they are never
renamed, and docs/kubernetes.md lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from syncline_operator.api.schema import Told
from syncline_operator.api.values import Instant, Large, map_list

READY = "Ready"


class Truth(StrEnum):
    """The three that a condition may be."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Told):
    """One fact about an object."""

    type: Annotated[str, Field(max_length=64)] = Field(description="What is told, one word in CamelCase.")
    status: Truth = Field(description="Whether it is so: True, False, or Unknown.")
    observed_generation: Large | None = Field(
        default=None,
        description="The metadata.generation that it was told of. Lower than the object's: a change of spec is not "
        "looked at yet.",
    )
    last_transition_time: Instant = Field(description="When status last changed, by the operator's clock.")
    reason: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="Why, one word in CamelCase out of those that docs/kubernetes.md lists."
    )
    message: Annotated[str, Field(max_length=2048)] = Field(
        description="Why, in a sentence for people: what happened, to which object, what to do."
    )


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16), map_list("type")]


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason and what it stands for."""

    name: str
    status: Truth
    meaning: str
    remedy: str = ""
    """What to do; empty where nothing is wrong."""
    asked: bool = False
    """It is so because the spec asks for it: Ready does not mind."""


@dataclass(frozen=True, slots=True)
class ConditionType:
    """A type of conditions of one kind. Every object has one of each from the first look on."""

    name: str
    meaning: str
    """What status True says."""
    reasons: Sequence[Reason]
    wanted: Truth | None = None
    """The status without which Ready is not True; None where Ready does not look at it."""

    def reason(self, name: str) -> Reason:
        """KeyError for a reason that this type does not give."""
        for reason in self.reasons:
            if reason.name == name:
                return reason
        raise KeyError(f"condition {self.name} has no reason {name}")


@dataclass(frozen=True, slots=True)
class Finding:
    """What is found of one condition: a reason that it may give, and a sentence for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The conditions of one kind, in the order in which Ready looks at them; Ready is the last."""

    kind: str
    types: Sequence[ConditionType]

    def type(self, name: str) -> ConditionType:
        """KeyError for a type that the kind does not have."""
        for kind in self.types:
            if kind.name == name:
                return kind
        raise KeyError(f"a {self.kind} has no condition {name}")

    def status(self, condition: str, reason: str) -> Truth:
        """What a condition is for this reason. Ready takes over the reason of what keeps it from being True."""
        if condition == READY:
            for kind in self.types[:-1]:
                for found in kind.reasons:
                    if found.name == reason and _contrary(kind, found):
                        return Truth.UNKNOWN if found.status is Truth.UNKNOWN else Truth.FALSE
        return self.type(condition).reason(reason).status

    def ready(self, findings: Mapping[str, Finding], *, otherwise: Finding) -> Finding:
        """What Ready tells: what the first condition that is not as it must be does, those that are known to be otherwise
        before those that nobody knows of; `otherwise`, where all are. KeyError where a condition was not looked at."""
        contrary = [
            (found, findings[kind.name])
            for kind in self.types[:-1]
            for found in [kind.reason(findings[kind.name].reason)]
            if _contrary(kind, found)
        ]
        contrary.sort(key=lambda pair: pair[0].status is Truth.UNKNOWN)
        return contrary[0][1] if contrary else otherwise


def _contrary(kind: ConditionType, reason: Reason) -> bool:
    return kind.wanted is not None and reason.status is not kind.wanted and not reason.asked


NOT_OBSERVED = Reason(
    "NotObserved", Truth.UNKNOWN, "the operator has not looked yet", "wait, or look whether the operator runs"
)
CERTIFICATE_REFUSED = Reason(
    "CertificateRefused",
    Truth.FALSE,
    "nobody vouches for the endpoint's certificate",
    "name the authority in weightStore.caBundleRef",
)
CHILD_REFUSED = Reason(
    "ChildRefused",
    Truth.FALSE,
    "the API server refused one of the operator's objects: a quota, a policy, an admission webhook",
    "do what the message says",
)
FIELD_MANAGER_CONFLICT = Reason(
    "FieldManagerConflict",
    Truth.FALSE,
    "somebody else owns fields of the operator's objects",
    "let go of the fields that the message names",
)
NAMESPACE_TERMINATING = Reason(
    "NamespaceTerminating", Truth.FALSE, "the namespace is being deleted, nothing can be made in it"
)
