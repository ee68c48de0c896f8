"""What a decision about a TrainingRun is made of, and what it hands on. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from syncline_operator.api.run import TrainingRun
from syncline_operator.children import Child, Note
from syncline_operator.kube.errors import ApiFailure, FieldsTaken, Malformed, Occupied, Refused
from syncline_operator.kube.resources import Document, ObjectKey, Resource

TRAINING_RUNS = Resource("syncline.dev", "v1alpha1", "trainingruns", "TrainingRun")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the API server did not take one of the operator's objects, as a reason that conditions know."""

    reason: str
    words: str

    @classmethod
    def of(cls, error: ApiFailure) -> Failure | None:
        """None for what a later try may mend: whoever acts comes back."""
        match error:
            case FieldsTaken():
                return cls("FieldManagerConflict", str(error))
            case Refused() if "because it is being terminated" in str(error):
                return cls("NamespaceTerminating", str(error))
            case Refused() | Malformed() | Occupied():
                return cls("ChildRefused", str(error))
            case _:
                return None


@dataclass(frozen=True, slots=True)
class Observed:
    """All that is looked at, of one moment."""

    run: TrainingRun
    now: float
    """Seconds since 1970, by the operator's clock."""
    children: Mapping[ObjectKey, Document] = field(default_factory=dict[ObjectKey, Document])
    """All objects with the run's label."""
    pods: tuple[Document, ...] = ()
    answer: Mapping[str, Any] | None = None
    """The distributor's `/status`; None while it does not answer."""
    silence: str = "it was not asked yet"
    """Why there is no answer."""
    failure: Failure | None = None
    """Of the last try to make the children."""
    namespace_ends: bool = False
    """The namespace is being deleted: nothing can be made in it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done. Applying what is there already costs nothing: that is the writer's to tell."""

    apply: tuple[Child, ...]
    delete: tuple[ObjectKey, ...]
    status: Document
    notes: tuple[Note, ...]
    requeue_s: float
    urgent: bool
    """A condition changed: the status is written at once, else at most once in ten seconds."""
