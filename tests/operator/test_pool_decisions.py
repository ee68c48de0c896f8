"""What is decided about a pool, and what its status counts."""

from __future__ import annotations

import dataclasses

from syncline_operator.api.conditions import Truth
from syncline_operator.kube.recording import EventType
from syncline_operator.kube.resources import DAEMON_SETS, Document
from syncline_operator.pools.asking import agents_to_ask
from syncline_operator.pools.deciding import Decision, decide
from syncline_operator.testing.fleets import (
    NOW,
    all_heard,
    asked,
    fleet,
    heard,
    looked,
    pool_of,
    told,
)
from syncline_operator.testing.pools import agent_pod, carried_out, engine_pod


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


def test_a_canary_that_is_asked_for_is_said_to_be_none_once_a_spec() -> None:
    seen = asked(versionPolicy={"canary": {"replicas": 1}})(fleet())
    first = decide(seen)
    assert [(EventType.WARNING, "CanaryNotCarriedOut")] == [(event.kind, event.reason) for event in first.events][:1]
    again = decide(carried_out(seen, first))
    assert "CanaryNotCarriedOut" not in {event.reason for event in again.events}


def test_agents_are_asked_where_they_run_once_they_have_an_address() -> None:
    pool = pool_of()
    pods = [
        engine_pod(pool, 0, podIP="10.0.0.1"),
        agent_pod(pool, 0, podIP="10.0.0.2"),
        agent_pod(pool, 1, podIP="fd00::3"),
        agent_pod(pool, 2),
    ]
    shared = {"agent-0": "http://10.0.0.2:9401/status", "agent-1": "http://[fd00::3]:9401/status"}
    assert shared == agents_to_ask(pool, pods)
    assert {"engine-0": "http://10.0.0.1:9401/status"} == agents_to_ask(pool_of(agent__mode="Sidecar"), pods)
