"""What a condition is, and the vocabulary of one kind's: which types there are, and which reasons each may give.

The tables themselves are in run_conditions.py and pool_conditions.py. Reasons are part of the API: they are never
renamed, and docs/kubernetes.md lists them all.
"""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class ConditionType:
    """A type of conditions of one kind. Every object has one of each from the first look on."""

    name: str
    meaning: str
    """What status True says."""
    reasons: Sequence[Reason]

    def reason(self, name: str) -> Reason:
        """KeyError for a reason that this type does not give."""
        return {reason.name: reason for reason in self.reasons}[name]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The conditions of one kind, in the order in which Ready looks at them."""

    kind: str
    types: Sequence[ConditionType]

    def type(self, name: str) -> ConditionType:
        """KeyError for a type that the kind does not have."""
        return {kind.name: kind for kind in self.types}[name]

    def status(self, condition: str, reason: str) -> Truth:
        """What a condition is for this reason. Ready is False for whatever reason another condition gives."""
        own = {found.name: found for found in self.type(condition).reasons}
        if reason in own:
            return own[reason].status
        if condition == READY and any(reason == found.name for kind in self.types for found in kind.reasons):
            return Truth.FALSE
        raise KeyError(f"{self.kind} has no condition {condition} of reason {reason}")


NOT_OBSERVED = Reason(
    "NotObserved", Truth.UNKNOWN, "the operator has not looked yet", "wait, or look whether the operator runs"
)
