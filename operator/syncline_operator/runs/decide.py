"""One look at a TrainingRun: what must be there, what must go, and what is told. Pure; the same observation always gives
the same decision, and one that is carried out gives nothing new to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from syncline_operator.api.conditions import READY, Condition, Finding, Truth
from syncline_operator.api.run_conditions import TRAINING_RUN
from syncline_operator.api.run_status import TrainingRunStatus
from syncline_operator.children import Child, Note, is_owned
from syncline_operator.kube.recording import EventType
from syncline_operator.kube.resources import FieldManager, ObjectKey
from syncline_operator.runs import findings
from syncline_operator.runs.availability import availability
from syncline_operator.runs.command import Work, work_of
from syncline_operator.runs.deletion import FINALIZER, Ending, ending
from syncline_operator.runs.service import wanted_children
from syncline_operator.runs.told import moment, told
from syncline_operator.runs.values import TRAINING_RUNS, Decision, Observed

HOLDER = FieldManager("syncline-run-finalizer")
STEADY_S, UNSETTLED_S = 10.0, 2.0
"""When to look again although nothing was heard: the distributor's `/status` has no watch."""
WORDS = 2048
"""Characters of a condition's message."""


def decide(observed: Observed, *, image: str) -> Decision:
    """`image` is the operator's own release of the distributor."""
    observed = _heard(observed)
    run, before = observed.run, observed.run.status or TrainingRunStatus()
    end = ending(observed, before.lineage)
    found = _found(observed, end)
    conditions = _conditions(found, before, generation=run.metadata.generation, now=observed.now)
    facts = before if observed.answer is None or end.erases else told(observed.answer, run.run, before)
    status = facts.model_copy(
        update={
            "observed_generation": run.metadata.generation,
            "run_name": run.run,
            "left_objects": end.left,
            "conditions": conditions,
        }
    )
    wanted = [] if end.over else wanted_children(run, Work.ERASE if end.erases else work_of(run), image=image)
    settled = TRAINING_RUN.status(READY, found[READY].reason) is Truth.TRUE
    return Decision(
        apply=(*_finalizer(observed, end), *wanted),
        delete=_unwanted(observed, wanted) if wanted else (),
        status=status.to_json(),
        notes=(*end.notes, *_notes(before, status)),
        requeue_s=STEADY_S if settled else UNSETTLED_S,
        urgent=_pairs(before) != _pairs(status) or before.observed_generation != status.observed_generation,
    )


def _heard(observed: Observed) -> Observed:
    """Without an answer that is about another run: an address may have passed on."""
    answer, run = observed.answer, observed.run
    if answer is None or (answer.get("run"), answer.get("view")) == (run.run, run.spec.view):
        return observed
    other = f"what answers looks after run {answer.get('run')}, view {answer.get('view')}"
    return replace(observed, answer=None, silence=other)


def _found(observed: Observed, end: Ending) -> Mapping[str, Finding]:
    """Every condition of the kind."""
    found = {
        "Deleting": end.finding,
        "DistributorAvailable": availability(observed),
        "StoreReachable": findings.store_finding(observed),
        "ConditionalWritesSupported": findings.conditional_finding(observed),
        "Publishing": findings.publishing_finding(observed),
        "Suspended": findings.suspended_finding(observed),
    }
    if observed.run.spec.suspend:
        as_asked = Finding("Suspended", "Publishing stands still, as spec.suspend asks for.")
    else:
        as_asked = Finding("AsSpecified", "All is as asked for.")
    return {**found, READY: TRAINING_RUN.ready(found, otherwise=as_asked)}


def _conditions(
    found: Mapping[str, Finding], before: TrainingRunStatus, *, generation: int, now: float
) -> tuple[Condition, ...]:
    """In the vocabulary's order. A time moves only where a status does."""
    held = {condition.type: condition for condition in before.conditions}
    made: list[Condition] = []
    for kind in TRAINING_RUN.types:
        finding, old = found[kind.name], held.get(kind.name)
        status = TRAINING_RUN.status(kind.name, finding.reason)
        since = old.last_transition_time if old is not None and old.status is status else moment(now)
        made.append(
            Condition(
                type=kind.name,
                status=status,
                observed_generation=generation,
                last_transition_time=since,
                reason=finding.reason,
                message=finding.message[:WORDS],
            )
        )
    return tuple(made)


def _finalizer(observed: Observed, end: Ending) -> tuple[Child, ...]:
    """The object itself, in a role of its own, where its finalizer is not as it must be. None is added to what goes already."""
    metadata = observed.run.metadata
    held = FINALIZER in metadata.finalizers
    if held == end.holds or (not held and metadata.deletion_timestamp is not None):
        return ()
    named = {"name": metadata.name, "namespace": metadata.namespace}
    itself = {"metadata": {**named, "finalizers": [FINALIZER]} if end.holds else named}
    return (Child(TRAINING_RUNS, itself, HOLDER),)


def _unwanted(observed: Observed, wanted: Sequence[Child]) -> tuple[ObjectKey, ...]:
    """Of its own objects those that the spec does not ask for any more."""
    keep, uid = {child.key for child in wanted}, observed.run.metadata.uid
    return tuple(sorted(key for key, held in observed.children.items() if key not in keep and is_owned(held, uid)))


def _notes(before: TrainingRunStatus, status: TrainingRunStatus) -> tuple[Note, ...]:
    """What changed that people should read: Ready's turns."""
    notes: list[Note] = []
    old = next((each for each in before.conditions if each.type == READY), None)
    new = next(each for each in status.conditions if each.type == READY)
    if (old.status, old.reason) != (new.status, new.reason) if old is not None else new.status is Truth.TRUE:
        kind = EventType.WARNING if new.status is Truth.FALSE else EventType.NORMAL
        notes.append(Note(kind, new.reason, new.message))
    return tuple(notes)


def _pairs(status: TrainingRunStatus) -> list[tuple[str, str, str]]:
    return [(each.type, each.status.value, each.reason) for each in status.conditions]
