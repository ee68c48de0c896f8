"""Sweeps from time to time, inside an engine that serves on: said in its log and, where it has some, its metrics, and to the
agent. Only decides when; what a sweep finds is `live`'s to say."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import DigestMismatch, EngineUnavailable
from syncline.metrics import Metrics
from syncline_agent.arm.client import ArmClient
from syncline_agent.arm.live import LiveWeights

SWEEP_REST = 9.0
"""A sweep sleeps so many times as long as it worked: a tenth of a core, and of the engine's memory bandwidth."""


@dataclass(frozen=True, slots=True)
class SweepMetrics:
    """Where an engine that is asked for its metrics counts its sweeps."""

    metrics: Metrics
    pool: str
    clock: Clock


def sweep_for_ever(
    live: LiveWeights,
    arm: ArmClient,
    stopping: threading.Event,
    *,
    interval_s: float,
    log: FilteringBoundLogger,
    counted: SweepMetrics | None = None,
) -> None:
    """Until `stopping`: every `interval_s` a sweep. It raises nothing: what it found is what `live` says from then on."""
    while not stopping.wait(interval_s):
        began = 0.0 if counted is None else counted.clock.monotonic()
        try:
            log.info("sweep matched", version=live.sweep(rest=SWEEP_REST).version)
        except DigestMismatch as error:
            log.error("sweep failed", reason=str(error))
            if counted is not None:
                view = live.applied.view if live.applied else ""
                counted.metrics.digest_failures.labels(run="", view=view, pool=counted.pool, phase="sweep").inc()
        except EngineUnavailable as error:  # an engine that sleeps, say
            log.info("no sweep", reason=str(error))
        except Exception:  # memory that cannot be read now: the next sweep must come all the same
            log.exception("sweep did not end")
        finally:
            if counted is not None:
                counted.metrics.sweep_seconds.observe(counted.clock.monotonic() - began)
            arm.notify()
