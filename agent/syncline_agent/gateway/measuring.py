"""The gateway's metrics: names, help, labels, buckets, on a registry of its own.

Labels are bounded: outcome, reason, phase; never a version.
"""

from __future__ import annotations

from collections import Counter as Count

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

WAIT_SECONDS = (0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
SPANS = (1, 2, 3, 4, 6, 8, 16)


class GatewayMetrics:
    """All families of one gateway."""

    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        self.requests = Counter(
            "syncline_gateway_requests", "Requests by outcome and reason.", ("outcome", "reason"), registry=r
        )
        self.waited_seconds = Histogram(
            "syncline_gateway_waited_seconds",
            "Seconds that a request that asks for a version waited to be let in, or refused.",
            buckets=WAIT_SECONDS,
            registry=r,
        )
        self.spans = Histogram(
            "syncline_gateway_answer_spans", "Spans of versions in a choice of an answer.", buckets=SPANS, registry=r
        )
        self.answered_version = Gauge(
            "syncline_gateway_answered_version",
            "Version that the last token of the newest answer came from.",
            registry=r,
        )
        self.in_flight = Gauge(
            "syncline_gateway_in_flight",
            "Requests here: waiting, begun on the version that is applied (current), or on another one (older).",
            ("phase",),
            registry=r,
        )
        self.ready = Gauge(
            "syncline_gateway_ready", "1 while the agent says that the engine is in service.", registry=r
        )
        self.begun: Count[int | None] = Count()
        """Requests at the engine by the version that they were let in under."""
        self.waiting = 0

    def look(self, *, applied: int | None, ready: bool) -> None:
        """Bring the gauges up to the moment."""
        current = self.begun[applied]
        self.in_flight.labels("waiting").set(self.waiting)
        self.in_flight.labels("current").set(current)
        self.in_flight.labels("older").set(self.begun.total() - current)
        self.ready.set(ready)
