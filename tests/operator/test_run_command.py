"""Every flag that a TrainingRun is rendered to, held to the distributor's own parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from syncline.store.s3_location import S3Location
from syncline_distributor.options import parse_settings
from syncline_distributor.settings import (
    AnchorSettings,
    Completion,
    NonFinite,
    RetentionSettings,
    ServiceSettings,
    WatchSettings,
    codec_choice,
)
from syncline_operator.api import TrainingRun
from syncline_operator.api.distributor import LogLevel
from syncline_operator.api.publishing import Codec
from syncline_operator.runs.command import Work, arguments, work_of
from syncline_operator.testing.objects import ABSENT, training_run

SDK = {"publisher": "SDK", "checkpointSource": ABSENT}
LINEAGE = "0f" * 16


def rendered(run: TrainingRun, work: Work | None = None) -> ServiceSettings:
    """What the program makes of it; SystemExit for a flag that it does not know."""
    return parse_settings(arguments(run, work or work_of(run)), {})


def a_run(**changes: Any) -> TrainingRun:
    return TrainingRun.read(training_run(**changes))


def test_a_run_that_asks_for_nothing_is_watched_as_the_program_does_by_itself() -> None:
    settings = rendered(a_run())
    assert (AnchorSettings(), RetentionSettings(), WatchSettings()) == (
        settings.anchors,
        settings.retention,
        settings.watch,
    )
    assert ("run", "main", "/checkpoints", 8080) == (settings.run, settings.view, settings.source, settings.port)
    assert (Path("/var/lib/syncline/state"), "json", "info") == (
        settings.state_dir,
        settings.log_format,
        settings.log_level,
    )


def test_all_that_may_be_asked_for_reaches_the_program() -> None:
    settings = rendered(
        a_run(
            runName="grpo.2",
            view="fp8",
            checkpointSource={
                "persistentVolumeClaim": {"claimName": "c", "path": "runs/a b/"},
                "subfolder": "actor/hf",
                "completion": {"type": "Marker", "marker": "DONE", "stablePolls": 3},
                "take": "Latest",
                "pollInterval": "1500ms",
            },
            publishPolicy={
                "codec": "XorLz4",
                "linkMbit": 10_000,
                "nonFinite": "Refuse",
                "anchorEvery": 20,
                "anchorAtPercent": 55,
                "skipEvery": 3,
                "verifyEvery": 7,
            },
            retention={
                "mode": "Keep",
                "keepAnchors": 4,
                "keepVersions": 9,
                "leasePeriod": "1h30m",
                "sweepInterval": "90s",
            },
            distributor={"workers": 5, "logLevel": "Warning"},
        )
    )
    assert ("grpo.2", "fp8", "/checkpoints/runs/a b") == (settings.run, settings.view, settings.source)
    assert (
        WatchSettings(
            completion=Completion.MARKER,
            marker="DONE",
            stable_polls=3,
            poll_s=1.5,
            subfolder="actor/hf",
            latest_only=True,
        )
        == settings.watch
    )
    choice = codec_choice("xor-lz4", link_mbit=10_000)
    assert AnchorSettings(anchor_every=20, anchor_ratio=0.55, skip_every=3, choice=choice) == settings.anchors
    kept = RetentionSettings(enabled=False, keep_anchors=4, keep_versions=9, lease_period_s=5400.0, sweep_every_s=90.0)
    assert kept == settings.retention
    assert (NonFinite.REFUSE, 7, choice) == (
        settings.publish.nonfinite,
        settings.publish.verify_every,
        settings.publish.choice,
    )
    assert (5, "warning") == (settings.workers, settings.log_level)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("level", LogLevel)
def test_each_choice_is_one_that_the_program_takes(codec: Codec, level: LogLevel) -> None:
    settings = rendered(a_run(publishPolicy={"codec": codec}, distributor={"logLevel": level}))
    assert level.value.lower() == settings.log_level


def test_a_trainer_that_publishes_itself_is_served_and_so_is_a_run_that_is_suspended() -> None:
    assert (Work.WATCH, Work.SERVE, Work.SERVE) == (
        work_of(a_run()),
        work_of(a_run(**SDK)),
        work_of(a_run(suspend=True)),
    )
    for changes in (SDK, {"suspend": True}):
        settings = rendered(a_run(publishPolicy={"anchorEvery": 20}, **changes))
        assert (None, 20) == (settings.source, settings.anchors.anchor_every)


@pytest.mark.parametrize(
    ("changes", "endpoint", "region"),
    [
        ({}, "s3.example.com", "us-east-1"),
        (
            {"weightStore__endpoint": ABSENT, "weightStore__region": "eu-west-1"},
            "s3.eu-west-1.amazonaws.com",
            "eu-west-1",
        ),
        ({"weightStore__endpoint": "http://[fd00::1]:9000", "weightStore__region": "a&b=c"}, "[fd00::1]:9000", "a&b=c"),
    ],
)
def test_where_the_store_answers_reaches_its_adapter(changes: dict[str, Any], endpoint: str, region: str) -> None:
    where = S3Location.parse(rendered(a_run(**changes)).store, {})
    assert ("weights", "team-a", endpoint, region) == (where.bucket, where.prefix, where.host, where.region)


def test_a_bucket_of_checkpoints_is_a_source_with_an_address_of_its_own() -> None:
    source = {"objectStorage": {"uri": "s3://ckpt/a", "endpoint": "http://minio:9000", "region": "r"}}
    where = S3Location.parse(rendered(a_run(checkpointSource=source)).source or "", {})
    assert ("ckpt", "a", "minio:9000", "r") == (where.bucket, where.prefix, where.host, where.region)


def test_what_is_erased_is_the_lineage_that_was_told() -> None:
    run = TrainingRun.read({**training_run(), "status": {"lineage": LINEAGE}})
    assert LINEAGE == rendered(run, Work.ERASE).erases
