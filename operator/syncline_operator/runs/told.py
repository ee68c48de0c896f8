"""What a TrainingRun's status tells beside its conditions, from the distributor's `/status`.

Nothing in it moves by itself: times are moments, not ages, so that looking twice writes once.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from syncline_operator.api.run_status import (
    Chain,
    Consumer,
    ConsumerSummary,
    LatestVersion,
    SourceStatus,
    TrainingRunStatus,
    Veto,
)

TEXT = 1024
CONSUMERS, VETOES = 64, 16
HEARD_TO_S = 60
"""Heartbeats come all the time: told to the minute, they cause no write of their own."""
RELOAD = "reload"


def told(answer: Mapping[str, Any], run: str, before: TrainingRunStatus) -> TrainingRunStatus:
    """All but conditions and what deletion leaves."""
    head, writer = answer.get("head"), answer.get("writer")
    anchors, vetoes = answer.get("anchors") or (), answer.get("vetoes") or {}
    consumers = [_consumer(each) for each in answer.get("consumers") or ()]
    marked = sorted(((int(version), why) for version, why in vetoes.items()), reverse=True)[:VETOES]
    chain = answer.get("chain")
    return TrainingRunStatus(
        run_name=run,
        # The first that was seen: deletion names it, and must never name another training's.
        lineage=before.lineage or answer.get("lineage"),
        epoch=(writer or {}).get("epoch") or (head or {}).get("epoch") or before.epoch,
        latest_version=_latest(head) if head else before.latest_version,
        latest_anchor_version=max(anchors, default=None),
        latest_skip_version=(chain or {}).get("skip"),
        oldest_retained_version=min(anchors, default=None),
        chain=None
        if chain is None
        else Chain(length=chain["length"], delta_bytes=chain["bytes"], full_bytes=chain["full_bytes"]),
        source=_source(answer["source"]) if answer.get("source") else None,
        vetoes=tuple(Veto(version=version, reason=str(why)[:TEXT]) for version, why in marked),
        consumer_summary=_summary(consumers),
        consumers=tuple(sorted(sorted(consumers, key=_behind)[:CONSUMERS], key=_name)),
    )


def moment(seconds: float) -> str:
    """RFC 3339, to the second."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant(text: str) -> float:
    """Seconds since 1970 of what an API server wrote."""
    return datetime.datetime.fromisoformat(text).timestamp()


def _latest(head: Mapping[str, Any]) -> LatestVersion:
    changed, committed = head.get("changed"), head.get("committed_at")
    return LatestVersion(
        version=head["version"],
        step=head.get("step"),
        parent_version=head.get("parent"),
        base_version=head.get("base"),
        digest=head.get("digest"),
        published_time=None if committed is None else moment(committed),
        size_bytes=head.get("bytes"),
        changed_fraction=None if changed is None else f"{changed:.6f}",
    )


def _consumer(pool: Mapping[str, Any]) -> Consumer:
    errors: Mapping[str, int] = pool.get("errors") or {}
    versions, lag, heard = pool.get("versions") or {}, pool.get("lag_seconds_max"), pool.get("last_heartbeat")
    return Consumer(
        cluster=pool["cluster"],
        namespace=pool["namespace"],
        name=pool["pool"],
        nodes=pool["nodes"],
        stale_nodes=pool["stale"],
        proven_nodes=pool["proven"],
        current_version=min(map(int, versions), default=None),
        version_lag=pool.get("lag_versions_max"),
        lag_seconds=None if lag is None else int(lag),
        reloading_nodes=(pool.get("apply_paths") or {}).get(RELOAD, 0),
        last_heartbeat_time=None if heard is None else moment(heard - heard % HEARD_TO_S),
        error=max(errors, key=lambda words: (errors[words], words))[:TEXT] if errors else None,
    )


def _summary(consumers: list[Consumer]) -> ConsumerSummary:
    fresh = [each for each in consumers if each.nodes]
    return ConsumerSummary(
        pools=len(fresh),
        nodes=sum(each.nodes for each in fresh),
        proven_nodes=sum(each.proven_nodes for each in fresh),
        version_lag=max((each.version_lag for each in fresh if each.version_lag is not None), default=None),
        lag_seconds=max((each.lag_seconds for each in fresh if each.lag_seconds is not None), default=None),
    )


def _source(source: Mapping[str, Any]) -> SourceStatus:
    waits = source.get("waits_for")
    return SourceStatus(
        published=source.get("published_count") or 0,
        pending=source.get("pending") or 0,
        incomplete=len(source.get("waiting") or ()),
        refused=len(source.get("refused") or ()),
        waits_for=None if waits is None else str(waits)[:TEXT],
    )


def _behind(consumer: Consumer) -> tuple[int, int, tuple[str, str, str]]:
    return -(consumer.version_lag or 0), -(consumer.lag_seconds or 0), _name(consumer)


def _name(consumer: Consumer) -> tuple[str, str, str]:
    return consumer.cluster, consumer.namespace, consumer.name
