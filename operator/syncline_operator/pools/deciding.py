"""`decide`: from what was seen of a pool to all that is to be done about it, at once and without asking anybody.

What is decided depends on nothing but what was observed, so that whoever comes after a crash decides the same; and of what is
there already nothing is decided again.
"""

from __future__ import annotations

from dataclasses import dataclass

from syncline_operator.api.conditions import READY, Condition, Truth
from syncline_operator.api.pool_status import RolloutPoolStatus
from syncline_operator.kube.ownership import is_settled
from syncline_operator.kube.recording import EventType
from syncline_operator.kube.resources import PODS, Document, FieldManager, Resource
from syncline_operator.pools import names
from syncline_operator.pools.children import children
from syncline_operator.pools.facts import Facts, count
from syncline_operator.pools.marks import pod_marks
from syncline_operator.pools.observed import Observed
from syncline_operator.pools.telling import status

SOON_S, LATER_S = 2.0, 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object, or fields of one, as its manager wants it; `there` is what was seen of it."""

    resource: Resource
    manager: FieldManager
    document: Document
    there: Document | None


@dataclass(frozen=True, slots=True)
class Told:
    """An Event."""

    kind: EventType
    reason: str
    note: str


NO_CANARY = Told(
    EventType.WARNING,
    "CanaryNotCarriedOut",
    "this release does not carry out versionPolicy.canary: versions go to all replicas at once; pin a version to hold others",
)


@dataclass(frozen=True, slots=True)
class Decision:
    """All that is to be done about a pool."""

    apply: tuple[Wanted, ...] = ()
    """In this order."""
    delete: tuple[tuple[Resource, Document], ...] = ()
    status: RolloutPoolStatus | None = None
    urgent: bool = False
    """A condition is another than the object tells; else the status may wait."""
    events: tuple[Told, ...] = ()
    again_s: float | None = None
    """When to look again, whether or not anything was heard by then."""


def decide(observed: Observed) -> Decision:
    """What to do. Of a pool that is being deleted nothing: its parts go by their owner."""
    if observed.pool.metadata.deletion_timestamp:
        return Decision()
    facts = count(observed)
    wanted = [
        Wanted(resource, names.CHILDREN, document, observed.child(resource, document["metadata"]["name"]))
        for resource, document in children(observed)
    ]
    by_name = {replica.name: replica.document for replica in facts.all}
    marks = [Wanted(PODS, names.PODS, document, by_name[document["metadata"]["name"]]) for document in pod_marks(facts)]
    told = status(facts)
    changed = _changed(observed, told)
    return Decision(
        apply=tuple(one for one in (*wanted, *marks) if not _is_there(one)),
        delete=_left_over(observed, wanted),
        status=told,
        urgent=changed,
        events=_events(observed, told),
        again_s=SOON_S if _moves(facts, told) else LATER_S,
    )


def _is_there(one: Wanted) -> bool:
    return one.there is not None and is_settled(one.document, one.there, one.manager)


def _left_over(observed: Observed, wanted: list[Wanted]) -> tuple[tuple[Resource, Document], ...]:
    """Children that an earlier spec had; only what says itself that it is this pool's."""
    kept = {(one.resource, one.document["metadata"]["name"]) for one in wanted}
    return tuple(
        (resource, document)
        for (resource, name), document in observed.children.items()
        if (resource, name) not in kept and _is_ours(observed, document)
    )


def _is_ours(observed: Observed, document: Document) -> bool:
    owners = document["metadata"].get("ownerReferences", ())
    return any(owner.get("controller") and owner.get("uid") == observed.pool.metadata.uid for owner in owners)


def _facts_of(conditions: tuple[Condition, ...]) -> dict[str, tuple[Truth, str]]:
    return {item.type: (item.status, item.reason) for item in conditions}


def _changed(observed: Observed, told: RolloutPoolStatus) -> bool:
    before = observed.pool.status
    if before is None or before.observed_generation != told.observed_generation:
        return True
    return _facts_of(before.conditions) != _facts_of(told.conditions)


def _events(observed: Observed, told: RolloutPoolStatus) -> tuple[Told, ...]:
    """What Ready has become; the other conditions are in the status. And once a spec, what of it is not carried out."""
    last = observed.pool.status.observed_generation if observed.pool.status else None
    asked = observed.pool.spec.version_policy.canary is not None and last != told.observed_generation
    return (*((NO_CANARY,) if asked else ()), *_of_ready(observed, told))


def _of_ready(observed: Observed, told: RolloutPoolStatus) -> tuple[Told, ...]:
    before = _facts_of(observed.pool.status.conditions if observed.pool.status else ()).get(READY)
    now = next(item for item in told.conditions if item.type == READY)
    if before == (now.status, now.reason):
        return ()
    kind = EventType.WARNING if now.status is Truth.FALSE else EventType.NORMAL
    return (Told(kind, now.reason, now.message),)


def _moves(facts: Facts, told: RolloutPoolStatus) -> bool:
    found = _facts_of(told.conditions)
    return found["Progressing"][0] is Truth.TRUE or found[READY][0] is not Truth.TRUE or bool(told.version_lag)
