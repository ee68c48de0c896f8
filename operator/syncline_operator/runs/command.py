"""The distributor's command line for a TrainingRun. Spells every flag; tests hold each to the program's own parser."""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import urlencode

from syncline_operator.api.checkpoints import CheckpointSource, Completion, Take
from syncline_operator.api.publishing import Collection
from syncline_operator.api.run import PublisherKind, TrainingRun, TrainingRunSpec
from syncline_operator.api.store import StoreAddress
from syncline_operator.api.values import seconds

PORT = 8080
STATE_MOUNT = "/var/lib/syncline"
STATE = f"{STATE_MOUNT}/state"
COMPILED = f"{STATE_MOUNT}/compiled"
"""Compiled kernels outlive the pod, so that a restart does not compile again."""
CHECKPOINTS = "/checkpoints"


class Work(StrEnum):
    """The program's commands."""

    WATCH = "watch"
    SERVE = "serve"
    ERASE = "erase"


def work_of(run: TrainingRun) -> Work:
    """A run that is suspended is looked after as one whose trainer publishes itself: `serve` takes no epoch and publishes
    nothing."""
    publishes = run.spec.publisher is PublisherKind.DISTRIBUTOR and not run.spec.suspend
    return Work.WATCH if publishes else Work.SERVE


def arguments(run: TrainingRun, work: Work) -> list[str]:
    """Of the container."""
    flags, source, switches = _where(run), run.spec.checkpoint_source, list[str]()
    if work is Work.ERASE:
        flags["lineage"] = (run.status.lineage if run.status is not None else None) or ""
    else:
        flags |= _upkeep(run.spec)
    if work is Work.WATCH and source is not None:
        flags |= _watch(run.spec, source)
        switches = ["--latest-only"] if source.take is Take.LATEST else []
    return [work.value, *(f"--{name}={value}" for name, value in flags.items()), *switches]


def store_url(address: StoreAddress) -> str:
    """As the programs take it."""
    options = {"endpoint": address.endpoint, "region": address.region}
    given = {name: value for name, value in options.items() if value is not None}
    return f"{address.uri}?{urlencode(given)}" if given else address.uri


def _where(run: TrainingRun) -> dict[str, str]:
    return {
        "store": store_url(run.spec.weight_store),
        "run": run.run,
        "view": run.spec.view,
        "state-dir": STATE,
        "host": "0.0.0.0",
        "port": str(PORT),
        "log-format": "json",
        "log-level": _flag(run.spec.distributor.log_level),
    }


def _upkeep(spec: TrainingRunSpec) -> dict[str, str]:
    publish, kept = spec.publish_policy, spec.retention
    return {
        "workers": str(spec.distributor.workers),
        "codec": _flag(publish.codec),
        "link-mbit": str(publish.link_mbit),
        "anchor-every": str(publish.anchor_every),
        "anchor-ratio": _number(publish.anchor_at_percent / 100),
        "skip-every": str(publish.skip_every),
        "retention": "on" if kept.mode is Collection.COLLECT else "off",
        "lease-seconds": _number(seconds(kept.lease_period)),
        "keep-anchors": str(kept.keep_anchors),
        "keep-versions": str(kept.keep_versions),
        "sweep-seconds": _number(seconds(kept.sweep_interval)),
    }


def _watch(spec: TrainingRunSpec, source: CheckpointSource) -> dict[str, str]:
    completion = source.completion
    flags = {
        "source": _source(source),
        "subfolder": source.subfolder,
        "complete": _flag(completion.type),
        "stable-polls": str(completion.stable_polls),
        "poll-seconds": _number(seconds(source.poll_interval)),
        "nonfinite": spec.publish_policy.non_finite.value,
        "verify-every": str(spec.publish_policy.verify_every),
    }
    if completion.type is Completion.MARKER and completion.marker is not None:
        flags["marker"] = completion.marker
    return flags


def _source(source: CheckpointSource) -> str:
    if source.object_storage is not None:
        return store_url(source.object_storage)
    claim = source.persistent_volume_claim
    folder = claim.path.strip("/") if claim is not None else ""
    return f"{CHECKPOINTS}/{folder}" if folder else CHECKPOINTS


def _flag(word: str) -> str:
    """As a command line has it: XorLz4 is xor-lz4."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", word).lower()


def _number(value: float) -> str:
    return f"{value:.12g}"
