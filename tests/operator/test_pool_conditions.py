"""What a pool's conditions tell, case by case."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Mapping
from pathlib import Path

import pytest

from syncline.clock import SystemClock
from syncline.errors import NotFound, StoreDenied
from syncline.store.memory import MemoryStore
from syncline.store.s3_errors import error_for
from syncline.store.s3_location import S3Credentials
from syncline_agent.nodefiles import disk_full
from syncline_agent.runs import instead_of
from syncline_operator.api.pool_conditions import ROLLOUT_POOL
from syncline_operator.kube.resources import DAEMON_SETS, DEPLOYMENTS, Document
from syncline_operator.pools import words
from syncline_operator.pools.deciding import decide
from syncline_operator.pools.observed import Observed, RefusalKind, WorkloadFault, read_agent
from syncline_operator.pools.replicas import rfc3339
from syncline_operator.testing.fleets import (
    NOW,
    SETTINGS,
    Change,
    all_heard,
    asked,
    fleet,
    heard,
    looked,
    pool_of,
    refused,
    silent,
    told,
    waits,
    with_status,
)
from syncline_operator.testing.objects import ABSENT
from syncline_operator.testing.pools import agent_pod, engine_pod, said


def runs_for(seconds: float) -> Document:
    """The status of a container that runs."""
    return {"name": "engine", "state": {"running": {"startedAt": rfc3339(NOW - seconds)}}}


CASES: Mapping[str, tuple[Change, dict[str, str]]] = {
    "all is well": (
        lambda seen: seen,
        {
            "Ready": "AsSpecified",
            "Available": "EnoughReplicas",
            "AgentReady": "AgentsRunning",
            "Proven": "AllProven",
            "WeightsCurrent": "Current",
            "StoreReachable": "StoreAnswers",
            "HeartbeatsWritten": "HeartbeatsOn",
            "InPlace": "ChangedInPlace",
            "Progressing": "Complete",
            "Suspended": "NotRequested",
        },
    ),
    "no agent answers": (
        silent,
        {
            "Ready": "AgentsStarting",
            "Proven": "AgentsSilent",
            "WeightsCurrent": "AgentsSilent",
            "InPlace": "AgentsSilent",
        },
    ),
    "one agent is silent, and its engine is ready": (
        lambda seen: dataclasses.replace(seen, said={k: v for k, v in seen.said.items() if k != "agent-0"}),
        {"Proven": "AgentsSilent", "WeightsCurrent": "AgentsSilent", "AgentReady": "AgentsStarting"},
    ),
    "a quarter is away": (lambda seen: looked(seen, 0), {"Available": "EnoughReplicas", "Ready": "AsSpecified"}),
    "half is away": (
        lambda seen: looked(looked(seen, 0), 1),
        {"Available": "EngineStarting", "Ready": "EngineStarting"},
    ),
    "no node takes two": (
        lambda seen: looked(
            looked(seen, 0), 1, conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
        ),
        {"Available": "PodUnschedulable"},
    ),
    "an image is missing": (
        lambda seen: looked(looked(seen, 0), 1, containerStatuses=[waits("ImagePullBackOff")]),
        {"Available": "ImageUnavailable", "AgentReady": "AgentsRunning"},
    ),
    "engines crash": (
        lambda seen: looked(looked(seen, 0), 1, containerStatuses=[waits("CrashLoopBackOff")]),
        {"Available": "EngineCrashing"},
    ),
    "an agent's Secret is missing": (
        lambda seen: dataclasses.replace(
            seen,
            pods=(
                *seen.pods[:-1],
                agent_pod(seen.pool, 3, containerStatuses=[waits("CreateContainerConfigError", "syncline-agent")]),
            ),
        ),
        {"AgentReady": "ConfigMissing", "Ready": "ConfigMissing"},
    ),
    "engines may not serve": (
        lambda seen: heard(looked(looked(seen, 0), 1), 1, engine={"pod": "engine-1", "error": "in doubt"}),
        {"Available": "EngineOutOfService"},
    ),
    "an arm is turned away": (
        lambda seen: heard(seen, 1, engine={"pod": "engine-1", "error": "a second engine is turned away"}),
        {"AgentReady": "ArmRefused"},
    ),
    "an arm never came": (
        lambda seen: heard(looked(seen, 1, containerStatuses=[runs_for(901)]), 1, engine=None),
        {"AgentReady": "ArmMissing", "Ready": "ArmMissing"},
    ),
    "an arm may still come": (
        lambda seen: heard(looked(seen, 1, containerStatuses=[runs_for(899)]), 1, engine=None),
        {"AgentReady": "AgentsStarting"},
    ),
    "a disk is full": (lambda seen: heard(seen, 1, error="no room to write x"), {"AgentReady": "NodeDirectoryFull"}),
    "the template is none": (
        refused(RefusalKind.MALFORMED),
        {"Available": "TemplateInvalid", "Ready": "TemplateInvalid"},
    ),
    "a quota refuses": (refused(RefusalKind.FORBIDDEN), {"Available": "ChildRefused"}),
    "somebody owns fields": (refused(RefusalKind.FIELDS_TAKEN), {"Available": "FieldManagerConflict"}),
    "the namespace ends": (refused(RefusalKind.TERMINATING), {"Available": "NamespaceTerminating"}),
    "hostPath is refused": (
        refused(RefusalKind.POD_SECURITY, DAEMON_SETS, "pool-agent"),
        {"AgentReady": "PodSecurityRefused", "Ready": "PodSecurityRefused"},
    ),
    "pods are refused": (
        lambda seen: with_status(
            looked(looked(seen, 0), 1),
            conditions=({"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"},),
        ),
        {"Available": "ChildRefused"},
    ),
    "pods are refused, for the folder of the node": (
        lambda seen: with_status(
            looked(looked(seen, 0), 1),
            conditions=(
                {
                    "type": "ReplicaFailure",
                    "status": "True",
                    "message": 'pods "pool-x" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes',
                },
            ),
        ),
        {"AgentReady": "PodSecurityRefused", "Ready": "PodSecurityRefused", "Available": "ChildRefused"},
    ),
    "nothing moves": (
        lambda seen: with_status(
            seen, conditions=({"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},)
        ),
        {"Progressing": "ProgressDeadlineExceeded"},
    ),
    "pods are replaced": (
        lambda seen: with_status(seen, replicas=4, updatedReplicas=1),
        {"Progressing": "TemplateRollout"},
    ),
    "a pod is too few": (
        lambda seen: dataclasses.replace(seen, pods=seen.pods[1:]),
        {"Progressing": "Scaling", "Ready": "AsSpecified"},
    ),
    "policy spreads": (asked(versionPolicy={"requestPolicy": "Drain"}), {"Progressing": "PolicySpreading"}),
    "to be suspended": (
        asked(suspend=True),
        {"Suspended": "Suspending", "Progressing": "PolicySpreading", "WeightsCurrent": "Suspended"},
    ),
    "suspended": (
        lambda seen: all_heard(generation=2, suspended=True)(asked(suspend=True)(seen)),
        {"Suspended": "SuspendRequested", "Progressing": "Complete", "Ready": "Suspended"},
    ),
    "pinned, and there": (
        lambda seen: all_heard(generation=2)(asked(versionPolicy={"type": "Pinned", "version": 7})(seen)),
        {"WeightsCurrent": "AtPinned", "Ready": "AtPinned"},
    ),
    "pinned, and on the way": (
        asked(versionPolicy={"type": "Pinned", "version": 5}),
        {"WeightsCurrent": "CatchingUp", "Ready": "CatchingUp"},
    ),
    "pinned to what was marked bad": (
        lambda seen: heard(
            asked(versionPolicy={"type": "Pinned", "version": 5})(seen),
            0,
            error="version 5 is pinned and was marked bad (x); taking 4",
        ),
        {"WeightsCurrent": "VersionVetoed"},
    ),
    "one on its way": (
        lambda seen: heard(seen, 0, head=8, target=8, lag_versions=1),
        {"WeightsCurrent": "Current", "Ready": "AsSpecified"},
    ),
    "one beyond the bound": (
        lambda seen: all_heard(generation=2)(
            heard(asked(versionPolicy={"maxVersionLag": 2})(seen), 0, target=10, lag_versions=3)
        ),
        {"WeightsCurrent": "CatchingUp", "Ready": "CatchingUp"},
    ),
    "one that cannot follow": (
        lambda seen: heard(seen, 0, target=9, lag_versions=2, error="chunk x does not hash to its name"),
        {"WeightsCurrent": "NotFollowing", "StoreReachable": "StoreAnswers"},
    ),
    "the store is away": (
        lambda seen: heard(seen, 0, head_age_seconds=400.0, error="s3://w: no answer within 10 s"),
        {"StoreReachable": "StoreUnreachable", "Ready": "StoreUnreachable", "Available": "EnoughReplicas"},
    ),
    "the key pair is refused": (
        lambda seen: heard(seen, 0, error="head in s3://w: the store answered 403 AccessDenied; check the key pair"),
        {"StoreReachable": "StoreDenied", "Ready": "StoreDenied"},
    ),
    "the run is not there": (
        all_heard(
            error="no run r; check the run name in target.json; the store (s3://w) holds q", head_age_seconds=None
        ),
        {"WeightsCurrent": "RunMissing", "StoreReachable": "StoreAnswers"},
    ),
    "the key pair only reads": (
        lambda seen: heard(seen, 2, heartbeats="off: 403"),
        {"HeartbeatsWritten": "HeartbeatsDenied", "Ready": "AsSpecified"},
    ),
    "two agents of one name": (
        lambda seen: heard(seen, 2, heartbeats="shared: x"),
        {"HeartbeatsWritten": "HeartbeatsShared"},
    ),
    "heartbeats come late": (
        lambda seen: heard(seen, 2, heartbeats="late: x"),
        {"HeartbeatsWritten": "HeartbeatsLate"},
    ),
    "other bits": (
        lambda seen: heard(looked(seen, 0), 0, phase="Heal", error="the digest of live memory is another"),
        {"Proven": "DigestMismatch", "Ready": "DigestMismatch"},
    ),
    "one is being read": (
        lambda seen: heard(looked(seen, 0), 0, applied={"version": 7, "proven": False}),
        {"Proven": "SweepPending", "Ready": "AsSpecified"},
    ),
    "ready, and not proven": (
        lambda seen: heard(seen, 0, applied={"version": 7, "proven": False}),
        {"Proven": "AgentsSilent"},
    ),
    "unprovable": (
        lambda seen: heard(seen, 0, engine={"pod": "engine-0", "unprovable": "repacked"}),
        {"Proven": "Unprovable", "Ready": "Unprovable"},
    ),
    "unprovable, and accepted": (
        lambda seen: all_heard(generation=2)(
            heard(asked(versionPolicy={"unprovable": "Serve"})(seen), 0, engine={"pod": "engine-0", "unprovable": "x"})
        ),
        {"Proven": "ServedUnproven", "Ready": "AsSpecified"},
    ),
    "a layout is refused": (
        lambda seen: heard(seen, 0, apply_path="reload"),
        {"InPlace": "LayoutRefused", "Ready": "AsSpecified"},
    ),
    "no version came": (all_heard(apply_path=None), {"InPlace": "NoCommitYet"}),
    "nothing is wanted": (
        lambda seen: dataclasses.replace(fleet(0), now=seen.now),
        {"Ready": "AsSpecified", "Available": "NoReplicas", "Proven": "NoReplicas", "AgentReady": "NoReplicas"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_conditions_tell_what_is_so(case: str) -> None:
    change, expected = CASES[case]
    found = told(decide(change(fleet())))
    assert [kind.name for kind in ROLLOUT_POOL.types] == list(found)
    assert expected == {name: found[name][1] for name in expected}
    for name, (truth, reason) in found.items():
        assert ROLLOUT_POOL.status(name, reason).value == truth


def test_a_pool_that_was_never_looked_at_has_every_condition_at_once() -> None:
    found = told(decide(Observed(pool_of(replicas=4), SETTINGS, NOW)))
    assert [kind.name for kind in ROLLOUT_POOL.types] == list(found)
    assert ("False", "AgentsStarting") == found["Ready"]
    assert ("True", "Scaling") == found["Progressing"]


def test_an_adopted_workload_is_told_of_by_its_scale_and_its_pods() -> None:
    where = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "big"}
    pool = pool_of(template=ABSENT, workloadRef=where)
    seen = Observed(pool, SETTINGS, NOW, workload=WorkloadFault.MISSING)
    assert ("False", "WorkloadMissing") == told(decide(seen))["Available"]
    seen = dataclasses.replace(seen, workload=WorkloadFault.UNREADABLE)
    assert ("False", "WorkloadUnreadable") == told(decide(seen))["Available"]
    assert DEPLOYMENTS not in {one.resource for one in decide(seen).apply}
    bare = engine_pod(pool, 0)
    bare["metadata"]["labels"] = {"app": "big"}
    there = dataclasses.replace(
        seen,
        pods=(bare, agent_pod(pool, 0)),
        said={"agent-0": said(7, pod="engine-0")},
        workload={"spec": {"replicas": 1}},
    )
    assert ("False", "ArmMissing") == told(decide(there))["AgentReady"]
    armed = engine_pod(pool, 0)
    armed["spec"]["containers"][0]["env"] = [{"name": "SYNCLINE_ARM_SOCKET", "value": "/x"}]
    assert ("True", "AsSpecified") == told(decide(dataclasses.replace(there, pods=(armed, agent_pod(pool, 0)))))[
        "Ready"
    ]


def test_a_node_that_no_agent_will_come_to_is_named() -> None:
    seen = fleet()
    children = dict(seen.children)
    status = {"observedGeneration": 1, "desiredNumberScheduled": 3, "currentNumberScheduled": 3}
    children[DAEMON_SETS, "pool-agent"] = {**children[DAEMON_SETS, "pool-agent"], "status": status}
    seen = dataclasses.replace(seen, pods=seen.pods[:-1], children=children)
    found = decide(seen).status
    assert found is not None
    (condition,) = (item for item in found.conditions if item.type == "AgentReady")
    assert "NodeWithoutAgent" == condition.reason
    assert "node-3" in condition.message


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (error_for(403, "AccessDenied", "", key="head", url="s3://w"), "StoreDenied"),
        (error_for(404, "NoSuchBucket", "", key="head", url="s3://w"), "BucketMissing"),
        (error_for(503, "SlowDown", "", key="head", url="s3://w"), "StoreUnreachable"),
        (NotFound("run r", instead_of(MemoryStore(clock=SystemClock())) or ""), "StoreAnswers"),
    ],
)
def test_what_is_wrong_with_a_store_is_told_from_the_stores_own_words(error: Exception, expected: str) -> None:
    seen = all_heard(error=str(error), head_age_seconds=None)(fleet())
    assert expected == told(decide(seen))["StoreReachable"][1]


def test_other_words_of_agents_are_known_as_agents_say_them() -> None:
    nothing = NotFound("run r", instead_of(MemoryStore(clock=SystemClock())) or "")
    assert "RunMissing" == words.following_fault(str(nothing))
    gone = NotFound("r/main/versions/000000000005.json")
    pinned = heard(asked(versionPolicy={"type": "Pinned", "version": 5})(fleet()), 0, error=str(gone))
    assert "VersionMissing" == told(decide(pinned))["WeightsCurrent"][1]
    assert "VersionMissing" != told(decide(heard(fleet(), 0, error=str(gone))))["WeightsCurrent"][1]
    with pytest.raises(StoreDenied) as denied:
        S3Credentials.from_env({})
    assert "StoreDenied" == words.store_fault(str(denied.value))
    assert words.is_full(str(disk_full(OSError(errno.ENOSPC, "full"), Path("/node"))))
    assert not words.is_full(str(gone))


def test_what_is_no_agents_status_counts_as_silence() -> None:
    assert read_agent(b"<html>") is None
    assert read_agent(b'{"applied": {"version": "many"}}') is None
    read = read_agent(b'{"generation": 3, "applied": null, "engine": null, "news": 1}')
    assert read is not None
    assert 3 == read.generation
