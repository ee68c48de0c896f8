"""What the gateway counts of its requests, and brings into its metrics when they are read.

Requests in flight are counted by version here; as a label a version would never end, so there it is how many versions ago a
request was let in.
"""

from __future__ import annotations

import math
from collections import Counter as Count

from prometheus_client import CollectorRegistry

from syncline.metrics import GatewayFamilies
from syncline_agent.gateway.bounds import Lag

BEGUN = ("applied", "1_before", "2_before", "more_before", "later", "unknown")
"""Every value of the label: on what is applied now, on one before it, on a later one (before an undo), nobody knows."""


class GatewayMetrics(GatewayFamilies):
    """All families of one gateway, and what is counted beside them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        self.begun: Count[int | None] = Count()
        """Requests at the engine by the version that they were let in under."""
        self.waiting = 0
        """Requests that wait to be let in."""

    def look(self, *, applied: int | None, ready: bool, lag: Lag, target_error: bool) -> None:
        """Bring the gauges up to the moment."""
        told = Count[str]()
        for version, requests in self.begun.items():
            told[_begun(version, applied)] += requests
        for name in BEGUN:
            self.in_flight.labels(name).set(told[name])
        self.queue.set(self.waiting)
        self.ready.set(ready)
        self.lag_versions.set(math.nan if lag.versions is None else lag.versions)
        self.lag_seconds.set(math.nan if lag.seconds is None else lag.seconds)
        self.target_error.set(target_error)


def _begun(version: int | None, applied: int | None) -> str:
    if version is None or applied is None:
        return "unknown"
    if version > applied:
        return "later"
    return BEGUN[min(applied - version, 3)]
