"""Conditions of a TrainingRun, a row a case: what is observed, which reason is told, and what Ready makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from syncline_operator.api import TrainingRun
from syncline_operator.api.run_conditions import TRAINING_RUN
from syncline_operator.kube.resources import DEPLOYMENTS, VOLUME_CLAIMS, Document, ObjectKey
from syncline_operator.runs.decide import decide
from syncline_operator.runs.values import Decision, Failure, Observed
from syncline_operator.testing.distributor import ANSWER, NOW, URL, answer, served
from syncline_operator.testing.objects import ABSENT, training_run

SDK = {"publisher": "SDK", "checkpointSource": ABSENT}
REFUSED = {"refused": {"checkpoint-9": "it is odd"}, "newest_refused": "checkpoint-9"}


def a_run(**changes: Any) -> TrainingRun:
    found = training_run(**changes)
    found["metadata"] |= {"namespace": "rl", "uid": "u-1", "generation": 3}
    return TrainingRun.read(found)


def fault(loop: str, kind: str, words: str) -> dict[str, Any]:
    return {"loops": {**ANSWER["loops"], loop: words}, "faults": {loop: kind}}  # type: ignore[dict-item]


def pod(**status: Any) -> Document:
    return {"metadata": {"name": "run-trun-x", "creationTimestamp": "2026-11-30T12:00:00Z"}, "status": status}


def waiting(reason: str, message: str = "", **more: Any) -> Document:
    return pod(
        containerStatuses=[{"image": "i:1", "state": {"waiting": {"reason": reason, "message": message}}, **more}]
    )


def unscheduled(message: str) -> Document:
    return pod(conditions=[{"type": "PodScheduled", "status": "False", "message": message}])


def look(run: TrainingRun | None = None, **seen: Any) -> Decision:
    return decide(Observed(run or a_run(), NOW, **seen), image="i:1")


def conditions(decision: Decision) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in decision.status["conditions"]}


ENDED = {"lastState": {"terminated": {"exitCode": 2, "message": "log\nsyncline-distributor: no key pair for S3"}}}
PODS: list[tuple[str, dict[str, Any], str, str]] = [
    ("no pod", {}, "DistributorStarting", "not made yet"),
    ("old pod ends", {"pods": ({**pod(), "metadata": {"name": "o", "deletionTimestamp": "t"}},)}, "DistributorStarting", "old pod"),
    ("image", {"pods": (waiting("ImagePullBackOff", "not found"),)}, "ImageUnavailable", "i:1: not found"),
    ("no secret", {"pods": (waiting("CreateContainerConfigError", 'secret "weights" not found'),)}, "ConfigMissing", "weights"),
    ("crash", {"pods": (waiting("CrashLoopBackOff", "back-off", **ENDED),)}, "DistributorCrashing", "no key pair for S3"),
    ("creating", {"pods": (waiting("ContainerCreating"),)}, "DistributorStarting", "ContainerCreating"),
    ("running", {"pods": (pod(phase="Running", containerStatuses=[{"state": {"running": {}}}]),), "silence": "timed out"},
     "DistributorStarting", "timed out"),
    ("evicted", {"pods": (pod(phase="Failed", message="the node was low on disk"),)}, "DistributorCrashing", "low on disk"),
    ("no node", {"pods": (unscheduled("0/3 nodes are available: 3 Insufficient cpu."),)}, "PodUnschedulable", "cpu"),
    ("no claim", {"pods": (unscheduled('persistentvolumeclaim "checkpoints" not found'),)}, "ConfigMissing", "checkpoints"),
    ("no volume", {"pods": (unscheduled("pod has unbound immediate PersistentVolumeClaims"),),
                   "children": {ObjectKey(VOLUME_CLAIMS, "rl", "run-trun"): {"metadata": {}, "status": {"phase": "Pending"}}}},
     "VolumePending", "run-trun is Pending"),
    ("pods refused", {"children": {ObjectKey(DEPLOYMENTS, "rl", "run-trun"): {"metadata": {}, "status": {"conditions": [
        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}]}}}}, "ChildRefused", "quota"),
    ("fields taken", {"failure": Failure("FieldManagerConflict", "kubectl owns .spec.replicas")}, "FieldManagerConflict", "owns"),
    ("namespace ends", {"namespace_ends": True}, "NamespaceTerminating", "rl"),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "reason", "words"), [case[1:] for case in PODS], ids=[case[0] for case in PODS])
def test_what_keeps_the_distributor_from_answering_is_told(seen: dict[str, Any], reason: str, words: str) -> None:
    told = conditions(look(**seen))
    assert reason == told["DistributorAvailable"]["reason"] == told["Ready"]["reason"]
    assert words in told["Ready"]["message"]
    assert ("DistributorSilent", "Unknown") == (told["StoreReachable"]["reason"], told["StoreReachable"]["status"])


DENIED = f"run/main/chunks/a in {URL}: AccessDenied; check the key pair and what it may do there"
BUCKET = {"checkpointSource": {"objectStorage": {"uri": "s3://ckpt/a"}}}
TOLD: list[tuple[str, dict[str, Any], dict[str, Any], str, str, str]] = [
    ("well", {}, answer(), "StoreReachable", "StoreAnswers", "AsSpecified"),
    ("well", {}, answer(), "ConditionalWritesSupported", "ProbePassed", "AsSpecified"),
    ("well", {}, answer(), "Publishing", "CheckpointsPublished", "AsSpecified"),
    ("well", {}, answer(), "DistributorAvailable", "DistributorRunning", "AsSpecified"),
    ("no conditions", {}, answer(store={"url": URL, "conditional_writes": False}),
     "ConditionalWritesSupported", "SingleWriter", "AsSpecified"),
    ("not probed", {}, answer(store={"url": URL, "conditional_writes": None}),
     "ConditionalWritesSupported", "ProbeFailed", "AsSpecified"),
    ("denied", {}, answer(**fault("sweep", "StoreDenied", DENIED)), "StoreReachable", "StoreDenied", "StoreDenied"),
    ("down", {}, answer(**fault("observe", "StoreUnavailable", f"{URL}: 503")), "StoreReachable", "StoreUnreachable", "StoreUnreachable"),
    ("down while it publishes", {}, answer({"error": f"{URL}: 503", "error_kind": "StoreUnavailable"}),
     "StoreReachable", "StoreUnreachable", "StoreUnreachable"),
    ("certificate", {}, answer(**fault("observe", "StoreUnavailable", "certificate verify failed")),
     "StoreReachable", "CertificateRefused", "CertificateRefused"),
    ("no bucket", {}, answer(**fault("observe", "NotFound", f"{URL} does not exist; the bucket is not there; create it")),
     "StoreReachable", "BucketMissing", "BucketMissing"),
    ("another bucket is denied", BUCKET, answer(**fault("watch", "StoreDenied", "s3://ckpt/a: AccessDenied")),
     "StoreReachable", "StoreAnswers", "SourceMissing"),
    ("first look", {}, answer({"phase": "starting", "listable": False, "waits_for": "the first look"}),
     "Publishing", "NotObserved", "NotObserved"),
    ("no folder", {}, answer({"phase": "waiting", "listable": False, "waits_for": "/checkpoints cannot be listed"}),
     "Publishing", "SourceMissing", "SourceMissing"),
    ("empty folder", {}, answer({"phase": "waiting", "waits_for": "/checkpoints holds no checkpoint yet"}),
     "Publishing", "SourceEmpty", "SourceEmpty"),
    ("refused", {}, answer({**REFUSED, "refused_as": {"checkpoint-9": "SourceInvalid"}}),
     "Publishing", "CheckpointRefused", "CheckpointRefused"),
    ("not finite", {}, answer({**REFUSED, "refused_as": {"checkpoint-9": "NonFiniteWeights"}}),
     "Publishing", "NonFiniteRefused", "NonFiniteRefused"),
    ("changes while it is read", {}, answer({**REFUSED, "refused_as": {"checkpoint-9": "SourceNotReady"}}),
     "Publishing", "CheckpointsPublished", "AsSpecified"),
    ("refused before the newest", {}, answer({**REFUSED, "newest_refused": None}),
     "Publishing", "CheckpointsPublished", "AsSpecified"),
    ("fenced", {}, answer(writer={"epoch": 4, "fenced": "epoch 5 was taken"}), "Publishing", "Fenced", "Fenced"),
    ("another training", {}, answer(**fault("keep", "LineageChanged", "the run name was reused")),
     "Publishing", "LineageChanged", "LineageChanged"),
    ("full", {}, answer({"error": "no room on /var/lib/syncline", "error_kind": "DiskFull"}), "Publishing", "StateFull", "StateFull"),
    ("full, by the system", {}, answer(**fault("watch", "OSError", "[Errno 28] No space left on device")),
     "Publishing", "StateFull", "StateFull"),
    ("fails", {}, answer(**fault("watch", "FrameCorrupt", "frame 3 is torn")), "Publishing", "PublishFailing", "PublishFailing"),
    ("the trainer publishes", SDK, served(), "Publishing", "TrainerPublishes", "AsSpecified"),
    ("the trainer has not begun", SDK, served(waits_for="run run does not exist yet"),
     "Publishing", "RunMissing", "RunMissing"),
    ("suspended", {"suspend": True}, served(), "Suspended", "SuspendRequested", "Suspended"),
    ("suspended", {"suspend": True}, served(), "Publishing", "Suspended", "Suspended"),
    ("not yet suspended", {"suspend": True}, answer(), "Suspended", "Suspending", "Suspended"),
    ("the trainer is not suspended", {**SDK, "suspend": True}, served(), "Suspended", "Suspending", "Suspended"),
    ("goes on", {}, served(), "Publishing", "NotObserved", "NotObserved"),
    ("another run answers", {}, answer(view="fp8"), "Publishing", "DistributorSilent", "DistributorStarting"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "said", "condition", "reason", "ready"),
    [case[1:] for case in TOLD],
    ids=[f"{case[0]}: {case[3]}" for case in TOLD],
)
def test_what_the_distributor_says_becomes_a_condition(
    spec: dict[str, Any], said: dict[str, Any], condition: str, reason: str, ready: str
) -> None:
    told = conditions(look(a_run(**spec), answer=said))
    assert (reason, ready) == (told[condition]["reason"], told["Ready"]["reason"])
    assert told[condition]["message"]


def test_every_reason_has_a_row() -> None:
    rows = {(case[3], case[4]) for case in TOLD} | {("DistributorAvailable", case[2]) for case in PODS}
    elsewhere = {("Deleting", each.name) for each in TRAINING_RUN.type("Deleting").reasons}  # test_run_deletion.py
    missing = {
        (kind.name, reason.name)
        for kind in TRAINING_RUN.types[:-1]
        for reason in kind.reasons
        if reason.name not in ("NotObserved", "DistributorSilent", "NotRequested")
    }
    assert set() == missing - rows - elsewhere


def test_conditions_are_all_there_in_the_order_of_the_vocabulary_from_the_first_look() -> None:
    assert [kind.name for kind in TRAINING_RUN.types] == [each["type"] for each in look().status["conditions"]]


@pytest.mark.parametrize("seen", [case[1] for case in PODS], ids=[case[0] for case in PODS])
def test_a_status_is_one_that_the_kind_may_bear(seen: dict[str, Any]) -> None:
    status = look(**seen).status
    assert status == TrainingRun.read({**training_run(), "status": status}).status.to_json()  # type: ignore[union-attr]
