"""What a TrainingRun's status tells of the run and its readers, and that looking again changes nothing."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.metrics import Metrics
from syncline.store.memory import MemoryStore
from syncline_distributor.consumers import Readers, Seen, summarize
from syncline_distributor.status import Observer, Reporter
from syncline_distributor.watch import SourceState
from syncline_operator.api import TrainingRun
from syncline_operator.kube.recording import EventType
from syncline_operator.kube.resources import DEPLOYMENTS, Document, ObjectKey
from syncline_operator.runs.decide import decide
from syncline_operator.runs.values import TRAINING_RUNS, Decision, Failure, Observed
from syncline_operator.testing.distributor import ANSWER, CONSUMER, NOW, SOURCE, answer, served
from syncline_operator.testing.objects import ABSENT, changed, training_run

IMAGE = "i:1"


def an_object(**changes: Any) -> Document:
    found = training_run(**changes)
    found["metadata"] |= {"namespace": "rl", "uid": "u-1", "generation": 3}
    return found


def look(found: Document, now: float = NOW, **seen: Any) -> Decision:
    return decide(Observed(TrainingRun.read(found), now, **seen), image=IMAGE)


def after(found: Document, decision: Decision) -> Document:
    """The object once the decision is carried out."""
    made = {**found, "status": decision.status, "metadata": dict(found["metadata"])}
    for child in decision.apply:
        if child.resource == TRAINING_RUNS:
            made["metadata"]["finalizers"] = child.document["metadata"].get("finalizers", [])
    return made


def children(decision: Decision) -> dict[ObjectKey, Document]:
    return {child.key: child.document for child in decision.apply if child.resource != TRAINING_RUNS}


def test_the_sample_has_the_fields_of_the_program() -> None:
    observer = Observer(ChainReader(MemoryStore(ManualClock()), "run"), ManualClock(), Metrics())
    told = Reporter(observer, None, None, None, [], None).status()
    assert told.keys() == ANSWER.keys()
    assert asdict(SourceState()).keys() == SOURCE.keys()
    assert told["store"].keys() == ANSWER["store"].keys()
    assert [] == summarize(Readers(0.0, [Seen("a", 1.0, None)], []), 1, 60.0)


def test_status_tells_head_chain_source_vetoes_and_readers() -> None:
    status = look(an_object(), answer=answer(consumers=[CONSUMER])).status
    del status["conditions"]
    assert {
        "observedGeneration": 3,
        "runName": "run",
        "lineage": "0f" * 16,
        "epoch": 4,
        "latestVersion": {
            "version": 12,
            "step": 1200,
            "parentVersion": 7,
            "baseVersion": 11,
            "digest": "ab" * 16,
            "publishedTime": "2027-01-15T07:59:56Z",
            "sizeBytes": 418,
            "changedFraction": "0.011300",
        },
        "latestAnchorVersion": 10,
        "latestSkipVersion": 11,
        "oldestRetainedVersion": 5,
        "chain": {"length": 2, "deltaBytes": 900, "fullBytes": 20_000},
        "source": {"published": 9, "pending": 1, "incomplete": 1, "refused": 0},
        "vetoes": [{"version": 9, "reason": "loss went up"}],
        "consumerSummary": {"pools": 1, "nodes": 3, "provenNodes": 2, "versionLag": 1, "lagSeconds": 4},
        "consumers": [
            {
                "cluster": "a",
                "namespace": "rl",
                "name": "p",
                "nodes": 3,
                "staleNodes": 1,
                "provenNodes": 2,
                "currentVersion": 11,
                "versionLag": 1,
                "lagSeconds": 4,
                "reloadingNodes": 1,
                "lastHeartbeatTime": "2027-01-15T07:59:00Z",
                "error": "the disk is full",
            }
        ],
        "leftObjects": [],
    } == status


def test_of_more_pools_than_fit_those_farthest_behind_are_told_and_all_are_counted() -> None:
    many = [{**CONSUMER, "pool": f"p{n:03}", "lag_versions_max": n} for n in range(100)]
    status = look(an_object(), answer=answer(consumers=many)).status
    assert (64, "p036", 100, 99) == (
        len(status["consumers"]),
        status["consumers"][0]["name"],
        status["consumerSummary"]["pools"],
        status["consumerSummary"]["versionLag"],
    )


def test_what_was_known_stays_while_the_distributor_is_silent() -> None:
    known = after(an_object(), look(an_object(), answer=answer(consumers=[CONSUMER])))
    silent = look(known, NOW + 60)
    for field in ("latestVersion", "latestAnchorVersion", "consumers", "lineage", "epoch"):
        assert known["status"][field] == silent.status[field]


def test_a_time_moves_only_where_a_status_does() -> None:
    first = after(an_object(), look(an_object(), answer=answer()))
    silent = look(first, NOW + 60).status
    since = {each["type"]: each["lastTransitionTime"] for each in silent["conditions"]}
    assert ("2027-01-15T08:00:00Z", "2027-01-15T08:01:00Z") == (since["Deleting"], since["StoreReachable"])


def test_only_a_turn_of_a_condition_is_urgent() -> None:
    first = look(an_object(), answer=answer())
    known = after(an_object(), first)
    newer = look(known, NOW + 1, answer=answer(head={**ANSWER["head"], "version": 13}))
    assert (True, False, True) == (first.urgent, newer.urgent, look(known, NOW + 1).urgent)


def test_events_tell_turns_once_and_that_a_name_was_taken() -> None:
    well = look(an_object(), answer=answer())
    assert [(EventType.NORMAL, "AsSpecified")] == [(each.type, each.reason) for each in well.notes]
    known = after(an_object(), well)
    assert () == look(known, NOW + 1, answer=answer()).notes
    silent = look(known, NOW + 2)
    assert [(EventType.WARNING, "DistributorStarting")] == [(each.type, each.reason) for each in silent.notes]
    other = look(known, NOW + 3, answer=answer(lineage="1e" * 16))
    assert ["LineageChanged"] == [each.reason for each in other.notes]
    taken = after(known, other)
    assert () == look(taken, NOW + 4, answer=answer(lineage="1e" * 16)).notes
    assert ANSWER["lineage"] == other.status["lineage"]


def test_a_child_of_somebody_else_is_not_deleted() -> None:
    made = children(look(an_object()))
    theirs = {key: {**document, "metadata": {"name": key.name}} for key, document in made.items()}
    assert () == look(an_object(networkPolicy="None"), children=theirs).delete
    assert ["NetworkPolicy"] == [k.resource.kind for k in look(an_object(networkPolicy="None"), children=made).delete]


def test_suspending_changes_the_pod_and_nothing_else() -> None:
    on, off = children(look(an_object())), children(look(an_object(suspend=True)))
    assert {DEPLOYMENTS} == {key.resource for key in on if on[key] != off[key]}


SPECS: list[dict[str, Any]] = [
    {},
    {"suspend": True},
    {"networkPolicy": "None"},
    {"publisher": "SDK", "checkpointSource": ABSENT},
    {"deletionPolicy": "Delete"},
    {"distributor__serviceAccountName": "bound"},
]
SEEN: list[dict[str, Any]] = [
    {},
    {"answer": answer()},
    {"answer": served()},
    {"answer": answer(consumers=[CONSUMER])},
    {"failure": Failure("ChildRefused", "exceeded quota")},
    {"answer": answer(writer={"epoch": 4, "fenced": "epoch 5 was taken"})},
]


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(range(len(SPECS))), st.sampled_from(range(len(SEEN)))), max_size=6),
    last=st.tuples(st.sampled_from(range(len(SPECS))), st.sampled_from(range(len(SEEN)))),
    seed=st.integers(0, 2**32),
)
def test_whatever_came_before_in_any_order_ends_in_the_same_and_then_nothing_is_left_to_do(
    steps: list[tuple[int, int]], last: tuple[int, int], seed: int
) -> None:
    """Each step's children are carried out in part only, in a random order: an operator may end anywhere."""
    order = random.Random(seed)
    found, held, now = an_object(), dict[ObjectKey, Document](), NOW
    for spec, seen in steps:
        found = {**found, "spec": changed(an_object(), **SPECS[spec])["spec"]}
        decision = look(found, now := now + 1, children=held, **SEEN[seen])
        made = list(children(decision).items())
        order.shuffle(made)
        held |= dict(made[: order.randint(0, len(made))])
        for key in decision.delete[: order.randint(0, len(decision.delete))]:
            del held[key]
        found = after(found, decision) if order.random() < 0.7 else found
    spec, seen = last
    found = {**found, "spec": changed(an_object(), **SPECS[spec])["spec"]}
    for _ in range(2):
        decision = look(found, now := now + 1, children=held, **SEEN[seen])
        held = {key: document for key, document in held.items() if key not in decision.delete} | children(decision)
        found = after(found, decision)
    fresh = look({**an_object(), "spec": found["spec"]}, now, **SEEN[seen])
    assert children(fresh) == held
    again = look(found, now + 1, children=held, **SEEN[seen])
    assert (found["status"], children(again), (), (), False) == (
        again.status,
        held,
        again.delete,
        again.notes,
        again.urgent,
    )
    assert all(child.resource != TRAINING_RUNS for child in again.apply)
