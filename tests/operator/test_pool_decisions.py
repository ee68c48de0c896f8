"""What is decided about a pool, and what its status tells, case by case."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from syncline.clock import SystemClock
from syncline.errors import NotFound, StoreDenied
from syncline.store.memory import MemoryStore
from syncline.store.s3_errors import error_for
from syncline.store.s3_location import S3Credentials
from syncline_agent.nodefiles import disk_full
from syncline_agent.runs import instead_of
from syncline_operator.api.conditions import Truth
from syncline_operator.api.pool import RolloutPool
from syncline_operator.api.pool_conditions import ROLLOUT_POOL
from syncline_operator.kube.recording import EventType
from syncline_operator.kube.resources import DAEMON_SETS, DEPLOYMENTS, Document
from syncline_operator.pools import words
from syncline_operator.pools.beside import PoolSettings
from syncline_operator.pools.deciding import Decision, decide
from syncline_operator.pools.observed import AgentSaid, Observed, Refusal, RefusalKind, WorkloadFault, read_agent
from syncline_operator.testing.objects import ABSENT, rollout_pool
from syncline_operator.testing.pools import agent_pod, carried_out, engine_pod, said, settled

NOW = 1_800_000_000.0
SETTINGS = PoolSettings(image="registry.example.com/syncline/agent:1", cluster="eu-1")
Change = Callable[[Observed], Observed]


def pool_of(*, generation: int = 1, **changes: Any) -> RolloutPool:
    found = rollout_pool("pool", **changes)
    found["metadata"] |= {"namespace": "rl", "uid": "7a1f", "generation": generation}
    return RolloutPool.read(found)


def fleet(size: int = 4, version: int = 7, **changes: Any) -> Observed:
    """A pool that is as specified: engines, each with an agent on its node, all on one version."""
    pool = pool_of(replicas=size, **changes)
    pods = [engine_pod(pool, at) for at in range(size)] + [agent_pod(pool, at) for at in range(size)]
    agents = {f"agent-{at}": said(version, pod=f"engine-{at}") for at in range(size)}
    seen = settled(Observed(pool, SETTINGS, NOW, pods=tuple(pods), said=agents))
    return with_status(seen, replicas=size, updatedReplicas=size)


def with_status(observed: Observed, *, conditions: tuple[Mapping[str, Any], ...] = (), **told: int) -> Observed:
    """With what the Deployment's controller says."""
    children = dict(observed.children)
    for place, document in children.items():
        if place[0] is DEPLOYMENTS:
            status = {"observedGeneration": 1, "conditions": list(conditions), **told}
            children[place] = {**document, "status": status}
    return dataclasses.replace(observed, children=children)


def heard(observed: Observed, number: int, **more: Any) -> Observed:
    """With what one agent says changed."""
    name = f"agent-{number}"
    changed = AgentSaid.model_validate(observed.said[name].model_dump() | more)
    return dataclasses.replace(observed, said={**observed.said, name: changed})


def looked(observed: Observed, number: int, *, ready: bool = False, **status: Any) -> Observed:
    """With one engine pod as told."""
    pods = [pod for pod in observed.pods if pod["metadata"]["name"] != f"engine-{number}"]
    return dataclasses.replace(observed, pods=(*pods, engine_pod(observed.pool, number, ready=ready, **status)))


def silent(observed: Observed) -> Observed:
    return dataclasses.replace(observed, said={})


def refused(kind: RefusalKind, resource: Any = DEPLOYMENTS, name: str = "pool") -> Change:
    return lambda observed: dataclasses.replace(observed, refused={(resource, name): Refusal(kind, "its words")})


def asked(**changes: Any) -> Change:
    """With another spec, that is looked at for the first time."""

    def change(observed: Observed) -> Observed:
        pool = pool_of(generation=2, replicas=4, **changes)
        return dataclasses.replace(observed, pool=pool.model_copy(update={"status": observed.pool.status}))

    return change


def waits(reason: str, container: str = "engine", words: str = "its words") -> Document:
    return {"name": container, "state": {"waiting": {"reason": reason, "message": words}}}


def all_heard(**more: Any) -> Change:
    def change(observed: Observed) -> Observed:
        for at in range(4):
            observed = heard(observed, at, **more)
        return observed

    return change


def told(decision: Decision) -> dict[str, tuple[str, str]]:
    assert decision.status is not None
    return {item.type: (item.status.value, item.reason) for item in decision.status.conditions}


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


def test_a_status_counts_versions_lag_and_the_last_sync() -> None:
    sync = {"version": 7, "behind_seconds": 1.25, "pause_seconds": 0.004, "bytes": 100}
    seen = all_heard(last_sync=sync)(fleet())
    found = decide(seen).status
    assert found is not None
    assert (4, 4, 4, 4, 4, 7, 7, 0) == (
        found.replicas,
        found.ready_replicas,
        found.available_replicas,
        found.current_replicas,
        found.proven_replicas,
        found.current_version,
        found.target_version,
        found.version_lag,
    )
    assert found.last_sync is not None
    assert (7, "1.250s", "0.0040s", 400) == (
        found.last_sync.version,
        found.last_sync.duration,
        found.last_sync.pause,
        found.last_sync.bytes,
    )
    newer = {"version": 9, "proven": True, "lineage": "0f" * 16}
    mixed = heard(heard(seen, 0, head=9, target=9, applied=newer), 1, target=9, lag_versions=2, lag_seconds=3.7)
    status = decide(carried_out(mixed, decide(seen))).status
    assert status is not None
    assert [(9, 1), (7, 3)] == [(item.version, item.replicas) for item in status.versions]
    assert (7, 9, 2, 4, 1) == (
        status.current_version,
        status.target_version,
        status.version_lag,
        status.lag_seconds,
        status.current_replicas,
    )
    assert status.last_sync == found.last_sync


def test_a_condition_keeps_its_time_until_its_status_is_another() -> None:
    first = fleet()
    later = dataclasses.replace(first, now=NOW + 500)
    before, after = decide(first).status, decide(heard(later, 0, head_age_seconds=99.0, error="no answer")).status
    assert before is not None and after is not None
    moved = {
        old.type
        for old, new in zip(before.conditions, after.conditions, strict=True)
        if old.last_transition_time != new.last_transition_time
    }
    assert {"StoreReachable", "Ready"} == moved


def test_only_what_people_must_know_is_told_as_an_event_and_only_once() -> None:
    away = heard(fleet(), 0, head_age_seconds=99.0, error="no answer")
    first = decide(away)
    assert [(EventType.WARNING, "StoreUnreachable")] == [(event.kind, event.reason) for event in first.events]
    assert first.urgent
    again = decide(carried_out(away, first))
    assert () == again.events
    assert not again.urgent
    healed = decide(heard(carried_out(away, first), 0, head_age_seconds=1.0, error=None))
    assert [(EventType.NORMAL, "AsSpecified")] == [(event.kind, event.reason) for event in healed.events]


def test_a_pool_that_is_being_deleted_is_left_to_its_end() -> None:
    seen = fleet()
    metadata = seen.pool.metadata.model_copy(update={"deletion_timestamp": "2026-01-01T00:00:00Z"})
    assert Decision() == decide(dataclasses.replace(seen, pool=seen.pool.model_copy(update={"metadata": metadata})))


def test_another_mode_takes_down_what_the_first_one_had_and_nothing_of_others() -> None:
    seen = fleet()
    theirs: Document = {"metadata": {"name": "theirs", "labels": {"syncline.dev/pool": "pool"}}}
    seen = dataclasses.replace(seen, children={**seen.children, (DAEMON_SETS, "theirs"): theirs})
    decision = decide(asked(agent__mode="Sidecar")(seen))
    assert {
        ("DaemonSet", "pool-agent"),
        ("NetworkPolicy", "pool-agent"),
        ("Service", "pool-local"),
        ("ServiceAccount", "pool-agent"),
    } == {(resource.kind, document["metadata"]["name"]) for resource, document in decision.delete}


def marks(decision: Decision) -> dict[str, tuple[str, str | None]]:
    return {
        one.document["metadata"]["name"]: (
            one.document["metadata"]["labels"]["syncline.dev/serves"],
            one.document["metadata"].get("annotations", {}).get("controller.kubernetes.io/pod-deletion-cost"),
        )
        for one in decision.apply
        if one.resource.kind == "Pod"
    }


def test_doomed_pods_go_first_then_those_that_do_not_serve_then_stale_ones() -> None:
    doom = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "DisruptionTarget", "status": "True"},
    ]
    seen = heard(looked(looked(fleet(), 0, conditions=doom), 1), 2, lag_versions=3)
    decision = decide(seen)
    assert {"engine-0": ("true", "-30"), "engine-1": ("true", "-20"), "engine-2": ("true", "-10")} == marks(decision)
    assert decision.status is not None
    assert 1 == decision.status.doomed_replicas
    done = carried_out(seen, decision)
    assert {} == marks(decide(done))
    assert {"engine-2": ("true", None)} == marks(decide(heard(done, 2, lag_versions=0)))


def test_stale_pods_leave_services_only_as_far_as_others_may_be_away_and_come_back() -> None:
    policy = {"maxVersionLag": 1, "staleAction": "MarkNotReady"}
    stale = all_heard(lag_versions=3)(asked(versionPolicy=policy)(fleet()))
    stale = heard(stale, 2, lag_versions=5)
    first = decide(stale)
    assert ["engine-2"] == [name for name, (serves, _) in marks(first).items() if serves == "false"]
    done = carried_out(stale, first)
    assert {} == marks(decide(done))
    assert ("true", None) == marks(decide(heard(done, 2, lag_versions=0)))["engine-2"]
    assert "false" not in {serves for serves, _ in marks(decide(looked(stale, 0))).values()}
    assert Truth.FALSE.value == told(first)["WeightsCurrent"][0]


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
