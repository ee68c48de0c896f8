"""deletionPolicy Delete: when an object is held, what is done meanwhile, and when and with which words it is let go."""

from __future__ import annotations

from typing import Any

import pytest

from syncline_operator.api import TrainingRun
from syncline_operator.kube.recording import EventType
from syncline_operator.kube.resources import DEPLOYMENTS, Document
from syncline_operator.runs.decide import decide
from syncline_operator.runs.deletion import FINALIZER
from syncline_operator.runs.told import instant
from syncline_operator.runs.values import TRAINING_RUNS, Decision, Failure, Observed
from syncline_operator.testing.distributor import answer
from syncline_operator.testing.objects import training_run

WHEN = "2026-11-30T12:00:00Z"
BEGAN = instant(WHEN)
LINEAGE = "0f" * 16


def an_object(*, deleted: bool = True, held: bool = True, known: bool = True, **spec: Any) -> Document:
    found = training_run(**{"deletionPolicy": "Delete", **spec})
    found["metadata"] |= {"namespace": "rl", "uid": "u-1", "generation": 3}
    if deleted:
        found["metadata"]["deletionTimestamp"] = WHEN
    if held:
        found["metadata"]["finalizers"] = [FINALIZER]
    if known:
        found["status"] = {"lineage": LINEAGE, "latestVersion": {"version": 12}}
    return found


def look(found: Document, after_s: float = 1.0, **seen: Any) -> Decision:
    return decide(Observed(TrainingRun.read(found), BEGAN + after_s, **seen), image="i:1")


def erasing(**changes: Any) -> dict[str, Any]:
    said = {"deleted": 5, "left_count": 40, "left": ["run/main/chunks/a"], "done": False, "error": None, "kind": None}
    return {"run": "run", "view": "main", "store": {"url": "s3://weights/team-a"}, "erasure": {**said, **changes}}


def finalizers(decision: Decision) -> list[list[str]]:
    """What the object is made to bear; empty where it is left as it is."""
    return [c.document["metadata"].get("finalizers", []) for c in decision.apply if c.resource == TRAINING_RUNS]


def command(decision: Decision) -> list[str]:
    for child in decision.apply:
        if child.resource == DEPLOYMENTS:
            args: list[str] = child.document["spec"]["template"]["spec"]["containers"][0]["args"]
            return args
    return []


def deleting(decision: Decision) -> tuple[str, str]:
    told = next(each for each in decision.status["conditions"] if each["type"] == "Deleting")
    return told["reason"], told["message"]


def test_an_object_is_held_only_where_its_run_is_to_go() -> None:
    assert [[FINALIZER]] == finalizers(look(an_object(deleted=False, held=False)))
    assert [] == finalizers(look(an_object(deleted=False)))
    assert [] == finalizers(look(an_object(deleted=False, held=False, deletionPolicy="Retain")))
    assert [[]] == finalizers(look(an_object(deleted=False, deletionPolicy="Retain")))
    assert ("NotRequested", "Nobody deleted it.") == deleting(look(an_object(deleted=False)))


def test_no_finalizer_is_added_to_what_goes_already() -> None:
    decision = look(an_object(held=False))
    assert ((), ()) == (decision.apply, decision.delete)


def test_the_service_is_started_anew_to_erase_the_lineage_that_was_told() -> None:
    decision = look(an_object())
    assert ("erase", f"--lineage={LINEAGE}") == (command(decision)[0], command(decision)[-1])
    assert [] == finalizers(decision)
    assert "DeletingObjects" == deleting(decision)[0]
    # The old pod still answers, as what it was.
    assert "DeletingObjects" == deleting(look(an_object(), answer=answer()))[0]
    assert 12 == look(an_object(), answer=erasing()).status["latestVersion"]["version"]


def test_another_training_that_took_the_name_is_never_erased() -> None:
    taken = look(an_object(deleted=False), answer=answer(lineage="1e" * 16))
    deleted = {**an_object(), "status": taken.status}
    assert f"--lineage={LINEAGE}" == command(look(deleted))[-1]


def test_what_blocks_it_is_told_with_what_is_left() -> None:
    decision = look(an_object(), answer=erasing(error="the key pair may not delete", kind="StoreDenied"))
    reason, words = deleting(decision)
    assert "DeletionBlocked" == reason
    assert "the key pair may not delete; 40 objects are left, such as run/main/chunks/a" == words
    assert ["run/main/chunks/a"] == decision.status["leftObjects"]
    assert [] == finalizers(decision)


RELEASED: list[tuple[str, dict[str, Any], dict[str, Any], EventType, str, str]] = [
    ("done", {}, {"answer": erasing(done=True, left=[])}, EventType.NORMAL, "RunDeleted", "is deleted"),
    ("never seen", {"known": False}, {}, EventType.NORMAL, "RunLeft", "ever seen"),
    ("the namespace goes", {}, {"namespace_ends": True}, EventType.WARNING, "RunLeft", "stay in the store"),
    ("its pod is refused so", {}, {"failure": Failure("NamespaceTerminating", "x")}, EventType.WARNING, "RunLeft", "stay"),
    ("in time, blocked", {}, {"after_s": 600.0, "answer": erasing(error="AccessDenied")},
     EventType.WARNING, "DeletionTimedOut", "AccessDenied; 40 objects are left, such as run/main/chunks/a"),
    ("in time, silent", {}, {"after_s": 600.0, "silence": "no route"}, EventType.WARNING, "DeletionTimedOut", "no route"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "seen", "kind", "reason", "words"), [case[1:] for case in RELEASED], ids=[case[0] for case in RELEASED]
)
def test_an_object_is_let_go_with_an_event_that_says_why(
    shape: dict[str, Any], seen: dict[str, Any], kind: EventType, reason: str, words: str
) -> None:
    decision = look(an_object(**shape), **seen)
    assert [[]] == finalizers(decision)
    assert [] == command(decision)
    assert (kind, reason) == (decision.notes[0].type, decision.notes[0].reason)
    assert words in decision.notes[0].words


def test_it_is_held_until_its_time_is_over_and_no_longer() -> None:
    blocked = erasing(error="AccessDenied")
    assert [] == finalizers(look(an_object(deletionTimeout="90s"), 89.9, answer=blocked))
    assert [[]] == finalizers(look(an_object(deletionTimeout="90s"), 90.0, answer=blocked))


def test_a_policy_that_was_changed_meanwhile_lets_it_go_and_the_run_stay() -> None:
    decision = look(an_object(deletionPolicy="Retain"))
    assert ([[]], []) == (finalizers(decision), command(decision))


def test_an_erasure_of_another_run_lets_nothing_go() -> None:
    decision = look(an_object(), answer={**erasing(done=True), "run": "other"})
    assert [] == finalizers(decision)
