"""A rank's own sweeps of its live memory: said in its log and metrics, and to the agent."""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import DigestMismatch
from syncline.metrics import Metrics
from syncline_agent.arm.client import ArmClient
from syncline_agent.arm.live import LiveWeights

SWEEP_REST = 4.0
"""A periodic sweep rests this many times as long as it works, so that generation keeps the core."""


def sweep(
    live: LiveWeights, arm: ArmClient, *, pool: str, clock: Clock, metrics: Metrics, log: FilteringBoundLogger
) -> None:
    """One sweep. It raises nothing: what it found is what `live` says from then on, and another one will come."""
    began = clock.monotonic()
    try:
        applied = live.sweep(rest=SWEEP_REST)
        log.info("sweep matched", version=applied.version)
    except DigestMismatch as error:
        log.error("sweep failed", reason=str(error))
        view = live.applied.view if live.applied else ""
        metrics.digest_failures.labels(run="", view=view, pool=pool, phase="sweep").inc()
    except Exception:  # a device without room for a slice: the next sweep must come all the same
        log.exception("sweep did not end")
    finally:
        metrics.sweep_seconds.observe(clock.monotonic() - began)
        arm.notify()
