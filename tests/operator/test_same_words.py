"""What a user may ask for is what the programs do: the same defaults, the same words, the same bounds."""

from __future__ import annotations

import re
from enum import StrEnum

import pytest

from syncline.logs import LEVELS
from syncline.store import keys
from syncline.versions import Policy, TargetMode
from syncline.wire.limits import CODEC_NAMES
from syncline_agent.arm.settings import ArmSettings
from syncline_agent.gateway.settings import GatewaySettings
from syncline_agent.settings import AgentSettings
from syncline_distributor.settings import (
    AUTO,
    LEASE_LEAST_S,
    LINK_MBIT,
    AnchorSettings,
    Completion,
    NonFinite,
    RetentionSettings,
    WatchSettings,
)
from syncline_operator.api import RolloutPool, TrainingRun, values
from syncline_operator.api import checkpoints as asked_of_checkpoints
from syncline_operator.api import publishing as asked_of_publishing
from syncline_operator.api.pods import LogLevel
from syncline_operator.api.policy import RequestPolicy, VersionPolicyType
from syncline_operator.testing.objects import rollout_pool, training_run

RUN = TrainingRun.model_validate(training_run()).spec
POOL = RolloutPool.model_validate(rollout_pool()).spec


def flag(word: str) -> str:
    """As a command line has it: XorLz4 is xor-lz4."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", word).lower()


def test_a_run_that_asks_for_nothing_gets_what_the_service_does_by_itself() -> None:
    anchors, kept, watch = AnchorSettings(), RetentionSettings(), WatchSettings()
    source = RUN.checkpoint_source
    assert source is not None
    assert (anchors.anchor_every, anchors.anchor_ratio * 100, anchors.skip_every, LINK_MBIT) == (
        RUN.publish_policy.anchor_every,
        RUN.publish_policy.anchor_at_percent,
        RUN.publish_policy.skip_every,
        RUN.publish_policy.link_mbit,
    )
    assert (kept.keep_anchors, kept.keep_versions, kept.lease_period_s, kept.sweep_every_s) == (
        RUN.retention.keep_anchors,
        RUN.retention.keep_versions,
        values.seconds(RUN.retention.lease_period),
        values.seconds(RUN.retention.sweep_interval),
    )
    assert (watch.poll_s, watch.stable_polls, watch.subfolder, watch.completion) == (
        values.seconds(source.poll_interval),
        source.completion.stable_polls,
        source.subfolder,
        flag(source.completion.type),
    )


def test_a_pool_that_asks_for_nothing_gets_what_the_processes_do_by_themselves() -> None:
    agent = AgentSettings.__dataclass_fields__
    gateway = GatewaySettings.__dataclass_fields__
    arm = ArmSettings.__dataclass_fields__
    assert (
        agent["fetch_workers"].default,
        gateway["wait_seconds"].default,
        gateway["pin_seconds"].default,
        arm["sweep_interval_s"].default,
    ) == (
        POOL.agent.fetch_workers,
        values.seconds(POOL.gateway.wait),
        values.seconds(POOL.gateway.pin),
        values.seconds(POOL.engine.sweep_interval),
    )


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        (asked_of_publishing.Codec, {AUTO, *CODEC_NAMES.values()}),
        (asked_of_checkpoints.Completion, set(Completion)),
        (RequestPolicy, set(Policy)),
        (LogLevel, set(LEVELS)),
    ],
    ids=["codecs", "completion", "request policy", "log levels"],
)
def test_each_choice_is_one_that_a_program_has(asked: type[StrEnum], known: set[str]) -> None:
    assert known == {flag(word) for word in asked}


def test_choices_that_programs_spell_as_the_api_does_are_the_same() -> None:
    assert set(NonFinite) == set(asked_of_publishing.NonFinite)
    assert set(TargetMode) == set(VersionPolicyType)


def test_bounds_are_those_of_the_store() -> None:
    assert keys.VERSION_MAX == values.VERSION_MAX
    assert values.seconds("1m") == LEASE_LEAST_S


@pytest.mark.parametrize(("kind", "found"), [(TrainingRun, training_run()), (RolloutPool, rollout_pool())])
def test_what_an_older_operator_does_not_know_it_passes_over(
    kind: type[TrainingRun | RolloutPool], found: dict[str, object]
) -> None:
    spec = found["spec"]
    assert isinstance(spec, dict)
    newer = {**found, "spec": {**spec, "later": {"a": 1}}, "status": {"later": 2, "conditions": []}}
    read = kind.read(newer)
    assert kind.read(found).spec == read.spec
    assert read.status is not None
    assert "later" not in read.status.to_json()
