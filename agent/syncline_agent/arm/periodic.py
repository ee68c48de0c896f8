"""Sweeps from time to time, inside an engine that serves on. Only decides when; what a sweep finds is `live`'s to say."""

from __future__ import annotations

import threading

from structlog.typing import FilteringBoundLogger

from syncline.errors import DigestMismatch
from syncline_agent.arm.client import ArmClient
from syncline_agent.arm.live import LiveWeights


def sweep_for_ever(
    live: LiveWeights,
    arm: ArmClient,
    stopping: threading.Event,
    *,
    interval_s: float,
    rest: float,
    log: FilteringBoundLogger,
) -> None:
    """Until `stopping`: every `interval_s` a sweep that rests `rest` times as long as it works; then tell the agent."""
    while not stopping.wait(interval_s):
        try:
            log.info("sweep matched", version=live.sweep(rest=rest).version)
        except DigestMismatch as error:
            log.error("sweep failed", reason=str(error))
        except Exception:  # memory that cannot be read now: the next sweep must come all the same
            log.exception("sweep did not end")
        finally:
            arm.notify()
