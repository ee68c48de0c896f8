"""What a node says about itself: one frozen value, made by the follower, read by `/status`, heartbeats, metrics and
the operator.

`/status` (JSON, every field always there):

    run, view, cluster, namespace, pool, node
    generation       of the target file in force (echoed, so that the operator knows that it arrived)
    target_error     why the file as it stands is not in force, or null
    mode, pinned, suspended, policy
                     what the target file says
    phase            Idle | Join | Plan | Fetch | Stage | Commit | Heal | Suspended | Failed
    head             newest version that this node knows of, or null
    target           version that it should serve, or null
    applied          {version, digest, lineage, proven} of live memory, or null
    in_service       proven, of the run and view that are followed, and not being healed; or unproven and served by --serve-unproven
    lag_versions     versions between applied and target
    lag_seconds      for how long the oldest version not applied yet has been committed, by the store's clock; with the
                     store unreachable, the time since it last answered
    lag_seconds_most it is behind by no more than these, whatever was committed since head was read; null where nobody
                     can tell. 0 on the version that the target file pins
    head_age_seconds since head was last read, or null while it never was
    newest_seen      the version that head was then, where it was read beside a phase that takes long; else null
    engine           {name, pod, ranks, error, unprovable} or null; error says why it is out of service, or that a second
                     engine of its pod is turned away; unprovable says why what it holds cannot be proven
    boot             version of the checkpoint on this node's disk, or null
    apply_path       delta | checkpoint | undo | reload: how the last commit came about
    last_sync        {version, from, seconds: {phase: s}, total_seconds, behind_seconds, pause_seconds, bytes, changed}
                     or null
    bytes_by_source  {source: bytes} since the agent started
    source_heads     {source: newest version that it holds, or null while it does not say}; empty with one source
    retries          {reason: count} since the agent started; "corrupt": chunks that did not hash to their name
    gateway          {url, waiting, at_engine} of the gateway beside this agent that says where it is reached, or null
    heartbeats       "on", or why they are off, late, or shared: another agent writes under this node's name
    error            what keeps this node from its target, or null
    failures         failures in a row
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from syncline.versions import Policy, TargetMode
from syncline_agent.engine import Applied, EngineDescription


class Phase(StrEnum):
    """What the follower is doing."""

    IDLE = "Idle"
    JOIN = "Join"
    PLAN = "Plan"
    FETCH = "Fetch"
    STAGE = "Stage"
    COMMIT = "Commit"
    HEAL = "Heal"
    SUSPENDED = "Suspended"
    FAILED = "Failed"


WORK = (Phase.JOIN, Phase.PLAN, Phase.FETCH, Phase.STAGE, Phase.COMMIT, Phase.HEAL)
"""Phases whose seconds are measured."""


class ApplyPath(StrEnum):
    """How a version came into the engine."""

    DELTA = "delta"
    CHECKPOINT = "checkpoint"
    UNDO = "undo"
    RELOAD = "reload"


@dataclass(frozen=True, slots=True)
class Identity:
    """Which node this is; part of keys and metrics."""

    cluster: str
    namespace: str
    pool: str
    node: str


@dataclass(frozen=True, slots=True)
class LastSync:
    """The last commit and what it took."""

    version: int
    came_from: int | None
    seconds: Mapping[str, float]
    total_seconds: float
    behind_seconds: float | None
    """From the version's commit in the store to serving it, by the store's clock; None where that clock is unknown."""
    pause_seconds: float
    bytes: int
    changed: int


@dataclass(frozen=True, slots=True)
class Status:
    """A moment of the follower."""

    identity: Identity
    run: str | None = None
    view: str = "main"
    generation: int = 0
    target_error: str | None = None
    mode: TargetMode = TargetMode.LATEST
    pinned: int | None = None
    suspended: bool = False
    policy: Policy = Policy.KEEP
    phase: Phase = Phase.IDLE
    lineage: str | None = None
    """Of the run in the store."""
    head: int | None = None
    target: int | None = None
    applied: Applied | None = None
    engine: EngineDescription | None = None
    foreign: bool = False
    """What is applied is of another training or view than the one to follow."""
    in_service: bool = False
    lag_versions: int = 0
    lag_seconds: float = 0.0
    lag_most: float | None = None
    head_age: float | None = None
    as_of: float | None = None
    """When ages were what they are here (monotonic); None where they stand still."""
    newest: int | None = None
    """What head was when it was read beside the follower."""
    newest_at: float | None = None
    """When that was (monotonic)."""
    boot: int | None = None
    apply_path: ApplyPath | None = None
    last_sync: LastSync | None = None
    bytes_by_source: Mapping[str, int] = field(default_factory=dict[str, int])
    source_heads: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    retries: Mapping[str, int] = field(default_factory=dict[str, int])
    error: str | None = None
    failures: int = 0

    def aged(self, now: float) -> Status:
        """The same a while later: a phase may take minutes, and what is behind grows older meanwhile."""
        if self.as_of is None:
            return self
        passed = max(0.0, now - self.as_of)
        return dataclasses.replace(
            self,
            lag_seconds=self.lag_seconds + passed if self.lag_seconds > 0 or self.lag_versions else 0.0,
            lag_most=None if self.lag_most is None else self.lag_most + passed,
            head_age=None if self.head_age is None else self.head_age + passed,
            as_of=self.as_of + passed,
        )

    @property
    def at_pin(self) -> bool:
        """What is applied is what the target file names, whatever the store holds by now."""
        return self.pinned is not None and self.applied is not None and self.applied.version == self.target

    def to_json(self, *, heartbeats: str) -> dict[str, Any]:
        """The body of `/status`."""
        applied = self.applied
        engine = self.engine
        last = self.last_sync
        return {
            **dataclasses.asdict(self.identity),
            "run": self.run,
            "view": self.view,
            "generation": self.generation,
            "target_error": self.target_error,
            "mode": self.mode.value,
            "pinned": self.pinned,
            "suspended": self.suspended,
            "policy": self.policy.value,
            "phase": self.phase.value,
            "head": self.head,
            "target": self.target,
            "applied": None
            if applied is None
            else {
                "version": applied.version,
                "digest": applied.digest,
                "lineage": applied.lineage,
                "proven": applied.proven,
            },
            "in_service": self.in_service,
            "lag_versions": self.lag_versions,
            "lag_seconds": round(self.lag_seconds, 3),
            **ages(self),
            "engine": None
            if engine is None
            else {
                "name": engine.engine,
                "pod": engine.pod,
                "ranks": engine.ranks,
                "error": engine.error or engine.second,
                "unprovable": engine.unprovable,
            },
            "boot": self.boot,
            "apply_path": None if self.apply_path is None else self.apply_path.value,
            "last_sync": None
            if last is None
            else {
                "version": last.version,
                "from": last.came_from,
                "seconds": {phase: round(s, 6) for phase, s in last.seconds.items()},
                "total_seconds": round(last.total_seconds, 6),
                "behind_seconds": None if last.behind_seconds is None else round(last.behind_seconds, 6),
                "pause_seconds": round(last.pause_seconds, 6),
                "bytes": last.bytes,
                "changed": last.changed,
            },
            "bytes_by_source": dict(self.bytes_by_source),
            "source_heads": dict(self.source_heads),
            "retries": dict(self.retries),
            "heartbeats": heartbeats,
            "error": self.error,
            "failures": self.failures,
        }


def ages(status: Status) -> dict[str, float | None]:
    """What is known of lag beside `lag_seconds`, as it is said."""
    most, head, newest = status.lag_most, status.head_age, None
    if status.newest is not None and status.newest_at is not None and status.as_of is not None:
        ago = max(0.0, status.as_of - status.newest_at)
        if head is None or ago < head:  # the follower has not looked since
            head, newest = ago, status.newest
            if status.applied is not None and newest <= status.applied.version:
                most = ago if most is None else min(most, ago)
    if status.at_pin:
        most = 0.0
    return {
        "lag_seconds_most": None if most is None else round(most, 3),
        "head_age_seconds": None if head is None else round(head, 3),
        "newest_seen": newest,
    }
