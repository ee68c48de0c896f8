"""The vocabulary of conditions: what each reason says, and what Ready makes of all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from syncline_operator.api.conditions import READY, Finding, Truth, Vocabulary
from syncline_operator.api.pool_conditions import ROLLOUT_POOL
from syncline_operator.api.run_conditions import TRAINING_RUN

ROOT = Path(__file__).resolve().parents[2]
WORD = re.compile(r"[A-Z][A-Za-z0-9]{1,63}")
VOCABULARIES = (TRAINING_RUN, ROLLOUT_POOL)
WELL = Finding("AsSpecified", "All is as asked for.")
RUN_WELL = {
    "Deleting": "NotRequested",
    "DistributorAvailable": "DistributorRunning",
    "StoreReachable": "StoreAnswers",
    "ConditionalWritesSupported": "ProbePassed",
    "Publishing": "CheckpointsPublished",
    "Suspended": "NotRequested",
}
POOL_WELL = {
    "AgentReady": "AgentsRunning",
    "StoreReachable": "StoreAnswers",
    "HeartbeatsWritten": "HeartbeatsOn",
    "Available": "EnoughReplicas",
    "Proven": "AllProven",
    "WeightsCurrent": "Current",
    "InPlace": "ChangedInPlace",
    "Progressing": "Complete",
    "Suspended": "NotRequested",
}


def ready(vocabulary: Vocabulary, reasons: dict[str, str]) -> tuple[str, Truth]:
    """What Ready tells where each condition has this reason."""
    told = vocabulary.ready({name: Finding(reason, "so") for name, reason in reasons.items()}, otherwise=WELL)
    return told.reason, vocabulary.status(READY, told.reason)


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["trun", "rpool"])
def test_types_and_reasons_are_words_and_none_stands_twice(vocabulary: Vocabulary) -> None:
    assert READY == vocabulary.types[-1].name
    names = [kind.name for kind in vocabulary.types]
    assert sorted(set(names)) == sorted(names)
    for kind in vocabulary.types:
        reasons = [reason.name for reason in kind.reasons]
        assert sorted(set(reasons)) == sorted(reasons)
        assert [] == [name for name in (kind.name, *reasons) if not WORD.fullmatch(name)]
        assert "NotObserved" in reasons


@pytest.mark.parametrize(
    ("vocabulary", "well"), [(TRAINING_RUN, RUN_WELL), (ROLLOUT_POOL, POOL_WELL)], ids=["trun", "rpool"]
)
def test_ready_takes_over_the_reason_of_whatever_keeps_it_from_being_true(
    vocabulary: Vocabulary, well: dict[str, str]
) -> None:
    assert set(well) == {kind.name for kind in vocabulary.types[:-1]}
    assert ("AsSpecified", Truth.TRUE) == ready(vocabulary, well)
    for kind in vocabulary.types[:-1]:
        for reason in kind.reasons:
            if kind.wanted is None or reason.status is kind.wanted or reason.asked:
                expected = ("AsSpecified", Truth.TRUE)
            else:
                expected = (reason.name, Truth.UNKNOWN if reason.status is Truth.UNKNOWN else Truth.FALSE)
            assert expected == ready(vocabulary, {**well, kind.name: reason.name})


def test_ready_tells_causes_before_what_follows_from_them() -> None:
    denied = {
        **POOL_WELL,
        "StoreReachable": "StoreDenied",
        "Available": "EngineStarting",
        "WeightsCurrent": "NotFollowing",
    }
    assert ("StoreDenied", Truth.FALSE) == ready(ROLLOUT_POOL, denied)
    missing = {**POOL_WELL, "WeightsCurrent": "RunMissing", "Available": "EngineStarting"}
    assert ("RunMissing", Truth.FALSE) == ready(ROLLOUT_POOL, missing)
    unschedulable = {**POOL_WELL, "Proven": "NoneReady", "WeightsCurrent": "NoneReady", "Available": "PodUnschedulable"}
    assert ("PodUnschedulable", Truth.FALSE) == ready(ROLLOUT_POOL, unschedulable)
    crashing = {
        "Deleting": "NotRequested",
        "DistributorAvailable": "DistributorCrashing",
        "StoreReachable": "DistributorSilent",
        "ConditionalWritesSupported": "DistributorSilent",
        "Publishing": "DistributorSilent",
        "Suspended": "NotRequested",
    }
    assert ("DistributorCrashing", Truth.FALSE) == ready(TRAINING_RUN, crashing)


def test_what_is_known_to_be_wrong_is_told_before_what_nobody_knows() -> None:
    told = {**POOL_WELL, "AgentReady": "NotObserved", "WeightsCurrent": "RunMissing"}
    assert ("RunMissing", Truth.FALSE) == ready(ROLLOUT_POOL, told)


def test_ready_does_not_mind_what_was_asked_for() -> None:
    assert ("AsSpecified", Truth.TRUE) == ready(TRAINING_RUN, {**RUN_WELL, "Publishing": "Suspended"})
    assert ("AsSpecified", Truth.TRUE) == ready(ROLLOUT_POOL, {**POOL_WELL, "Proven": "ServedUnproven"})


def test_a_condition_that_nobody_looked_at_is_an_error() -> None:
    seen = {name: Finding(reason, "so") for name, reason in POOL_WELL.items() if name != "Proven"}
    with pytest.raises(KeyError, match="Proven"):
        ROLLOUT_POOL.ready(seen, otherwise=WELL)


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["trun", "rpool"])
def test_a_reason_that_a_condition_does_not_give_is_an_error(vocabulary: Vocabulary) -> None:
    with pytest.raises(KeyError, match="condition Ready has no reason Unheard"):
        vocabulary.status(READY, "Unheard")
    with pytest.raises(KeyError, match="condition Suspended has no reason StoreDenied"):
        vocabulary.status("Suspended", "StoreDenied")
    with pytest.raises(KeyError, match="has no condition Suspend'"):
        vocabulary.status("Suspend", "StoreDenied")


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["trun", "rpool"])
def test_every_reason_for_which_something_can_be_done_says_what(vocabulary: Vocabulary) -> None:
    by_itself = {
        "NamespaceTerminating",
        "ReloadRequested",
        "NoCommitYet",
        "CanaryBaking",
        "Suspended",
        "ServedUnproven",
    }
    silent = [
        f"{kind.name}/{reason.name}"
        for kind in vocabulary.types
        for reason in kind.reasons
        if kind.wanted is not None and reason.status is not kind.wanted and not reason.remedy
    ]
    assert [] == [name for name in silent if name.partition("/")[2] not in by_itself | {"DeletingObjects"}]


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["trun", "rpool"])
def test_every_reason_is_documented_as_it_is(vocabulary: Vocabulary) -> None:
    text = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    section = text.partition(f"### Conditions of a {vocabulary.kind}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\w+) \| (.+?) \| (.*?) ?\|$", section, re.MULTILINE)
    expected = [
        (kind.name, reason.name, reason.status.value, reason.meaning, reason.remedy)
        for kind in vocabulary.types
        for reason in kind.reasons
    ]
    assert expected == rows


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["trun", "rpool"])
def test_the_document_says_which_conditions_ready_does_not_look_at(vocabulary: Vocabulary) -> None:
    text = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    section = text.partition(f"### Conditions of a {vocabulary.kind}\n")[2]
    sentence = re.search(r"^(.+) do not keep `Ready` from being True\.$", section, re.MULTILINE)
    assert sentence is not None
    expected = [kind.name for kind in vocabulary.types[:-1] if kind.wanted is None]
    assert expected == re.findall(r"`(\w+)`", sentence[1])
