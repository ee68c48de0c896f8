"""deletionPolicy Delete: when the object must wait for its run's objects in the store, and when it is let go. Pure.

The operator has no store keys: the distributor is started anew as `erase` and says in its `/status` how far it is. An
object is never held for longer than deletionTimeout, nor by what cannot happen any more; an Event then says what stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from syncline_operator.api.conditions import Finding
from syncline_operator.api.run import DeletionPolicy
from syncline_operator.api.values import seconds
from syncline_operator.children import Note
from syncline_operator.kube.recording import EventType
from syncline_operator.runs.told import instant
from syncline_operator.runs.values import Observed

FINALIZER = "syncline.dev/run-objects"
LEFT, KEY = 16, 512
NOT_REQUESTED = Finding("NotRequested", "Nobody deleted it.")


@dataclass(frozen=True, slots=True)
class Ending:
    """How the object stands to its end."""

    finding: Finding
    holds: bool
    """The object must bear the finalizer."""
    erases: bool = False
    """The distributor deletes the run's objects."""
    over: bool = False
    """The object is being deleted, and nothing is waited for: what it owns goes with it."""
    left: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def ending(observed: Observed, lineage: str | None) -> Ending:
    """`lineage` is the run's identity as it was told before: another training's objects are not ours to delete."""
    run = observed.run
    metadata, wanted = run.metadata, run.spec.deletion_policy is DeletionPolicy.DELETE
    if metadata.deletion_timestamp is None:
        return Ending(NOT_REQUESTED, holds=wanted)
    where = f"run {run.run}, view {run.spec.view}, in {run.spec.weight_store.uri}"
    deleting = Finding("DeletingObjects", f"The distributor deletes {where}.")
    if not wanted:
        return Ending(Finding("DeletingObjects", f"The object goes; {where}, stays."), holds=False, over=True)
    if FINALIZER not in metadata.finalizers:
        return Ending(deleting, holds=False, over=True)
    erasure: Mapping[str, Any] = (observed.answer or {}).get("erasure") or {}
    left = tuple(str(key)[:KEY] for key in erasure.get("left") or ())[:LEFT]
    if erasure.get("done"):
        return _released(deleting, EventType.NORMAL, "RunDeleted", f"{where}, is deleted from the store")
    if lineage is None:
        words = f"nothing of {where}, was ever seen, so nothing of it is deleted"
        return _released(deleting, EventType.NORMAL, "RunLeft", words)
    if observed.namespace_ends or (observed.failure is not None and observed.failure.reason == "NamespaceTerminating"):
        words = (
            f"the namespace is being deleted, so nothing can run that deletes {where}: its objects stay in the store"
        )
        return _released(deleting, EventType.WARNING, "RunLeft", words)
    if observed.now >= instant(metadata.deletion_timestamp) + seconds(run.spec.deletion_timeout):
        why = erasure.get("error") or (observed.silence if observed.answer is None else "it was not done in time")
        words = f"after {run.spec.deletion_timeout} {where}, is not deleted: {why}; {_listed(erasure, left)}"
        return _released(deleting, EventType.WARNING, "DeletionTimedOut", words, left)
    if erasure.get("error"):
        deleting = Finding("DeletionBlocked", f"{erasure['error']}; {_listed(erasure, left)}")
    return Ending(deleting, holds=True, erases=True, left=left)


def _released(finding: Finding, kind: EventType, reason: str, words: str, left: tuple[str, ...] = ()) -> Ending:
    return Ending(finding, holds=False, over=True, left=left, notes=(Note(kind, reason, words),))


def _listed(erasure: Mapping[str, Any], left: tuple[str, ...]) -> str:
    if not left:
        return "what is left is not known"
    count = erasure.get("left_count", len(left))
    return f"{count} objects are left, such as {', '.join(left[:3])}"
