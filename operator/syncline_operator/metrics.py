"""Every metric of the operator: names, help, labels, buckets, on a registry of its own.

Labels are bounded: kind, outcome, method, code, reason; never an object's name, except of a pool, by which fleets are
looked at.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class OperatorMetrics:
    """All families of one operator."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        r = self.registry = registry or CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "syncline_operator_reconcile_seconds",
            "Seconds of a reconcile by kind and outcome.",
            ("kind", "outcome"),
            buckets=SECONDS,
            registry=r,
        )
        self.queue_depth = Gauge("syncline_operator_queue_depth", "Objects that wait for a reconcile.", registry=r)
        self.queue_age = Gauge(
            "syncline_operator_queue_age_seconds",
            "Seconds that the object that is due longest has waited or been worked on.",
            registry=r,
        )
        self.missed_events = Counter(
            "syncline_operator_missed_events",
            "Changes that a full list found and no watch had told.",
            ("kind",),
            registry=r,
        )
        self.lists = Counter(
            "syncline_operator_lists", "Full lists by kind and outcome.", ("kind", "outcome"), registry=r
        )
        self.api_seconds = Histogram(
            "syncline_operator_api_seconds",
            "Seconds of a request to the API server.",
            ("method",),
            buckets=SECONDS,
            registry=r,
        )
        self.api_errors = Counter(
            "syncline_operator_api_errors",
            "Requests to the API server that failed, by HTTP status (none: no answer).",
            ("method", "code"),
            registry=r,
        )
        self.leading = Gauge("syncline_operator_leading", "1 while this process holds the Lease.", registry=r)
        self.events_dropped = Counter(
            "syncline_operator_events_dropped", "Kubernetes Events not written.", ("reason",), registry=r
        )
