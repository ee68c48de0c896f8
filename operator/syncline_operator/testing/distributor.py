"""What a distributor's `/status` says, in full: tests hold its fields to those of the program."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

NOW = 1_800_000_000.0
URL = "s3://weights/team-a"
HEAD: Mapping[str, Any] = {
    "version": 12,
    "epoch": 4,
    "step": 1200,
    "parent": 7,
    "base": 11,
    "digest": "ab" * 16,
    "age_seconds": 3.5,
    "committed_at": NOW - 3.5,
    "bytes": 418,
    "changed": 0.0113,
}
SOURCE: Mapping[str, Any] = {
    "phase": "idle",
    "waits_for": None,
    "listable": True,
    "published": "checkpoint-1200",
    "published_count": 9,
    "pending": 1,
    "waiting": {"checkpoint-1300": "its size moves"},
    "refused": {},
    "refused_as": {},
    "newest_refused": None,
    "error": None,
    "error_kind": None,
}
ANSWER: Mapping[str, Any] = {
    "run": "run",
    "view": "main",
    "lineage": "0f" * 16,
    "waits_for": None,
    "head": HEAD,
    "chain": {"anchor": 10, "skip": 11, "length": 2, "bytes": 900, "full_bytes": 20_000},
    "anchors": [5, 10],
    "vetoes": {"9": "loss went up"},
    "writer": {"epoch": 4, "fenced": None},
    "source": SOURCE,
    "retention": None,
    "store": {"url": URL, "conditional_writes": True},
    "consumers": [],
    "loops": {"observe": None, "keep": None, "watch": None, "sweep": None},
    "faults": {},
}
CONSUMER: Mapping[str, Any] = {
    "cluster": "a",
    "namespace": "rl",
    "pool": "p",
    "nodes": 3,
    "stale": 1,
    "proven": 2,
    "versions": {"11": 2, "12": 1},
    "empty": 0,
    "lag_versions_max": 1,
    "lag_seconds_max": 4.9,
    "apply_paths": {"delta": 2, "reload": 1},
    "errors": {"the store is down": 1, "the disk is full": 2},
    "last_heartbeat": NOW - 5,
}


def answer(source: Mapping[str, Any] | None = None, /, **changes: Any) -> dict[str, Any]:
    """Of a run that is well and watched, but for what is named."""
    made = {**copy.deepcopy(dict(ANSWER)), **changes}
    return made if source is None else {**made, "source": {**SOURCE, **source}}


def served(**changes: Any) -> dict[str, Any]:
    """Of one whose trainer publishes itself."""
    return {**answer(**changes), "writer": None, "source": None}
