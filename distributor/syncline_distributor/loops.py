"""Threads that drive ticks: one a concern, so that an anchor never holds up a publish.

A tick does at most one thing and returns seconds until the next, or None when it is done for good. Errors that may pass
are waited out, and said once while they stay the same; being fenced ends that loop and not the process; an error that
nobody foresaw ends the loop and shows in `/livez`, so that whatever runs the process starts it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from syncline.errors import Fenced, SynclineError

log = structlog.get_logger()
Tick = Callable[[], float | None]
ERROR_WAIT_S = 5.0


class Loop:
    """One ticking thread."""

    def __init__(self, name: str, tick: Tick, stop: threading.Event) -> None:
        self.name = name
        self._tick = tick
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name=f"syncline-{name}", daemon=True)
        self.error: str | None = None
        """What the last tick raised; None once one succeeds."""
        self.kind: str | None = None
        """Which error that was, by the name of its class."""
        self.broken = False
        """An error that nobody foresaw ended this loop."""

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the tick that is running; False when it still is."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        wait: float | None = 0.0
        while wait is not None and not self._stop.wait(wait):
            wait = self._once()

    def _once(self) -> float | None:
        try:
            wait = self._tick()
            self.error = self.kind = None
            return wait
        except Fenced as error:
            self.error, self.kind = str(error), _kind(error)
            log.error("stopped for good", loop=self.name, error=str(error), phase=self.name)
            return None
        except (SynclineError, OSError) as error:
            if str(error) != self.error:
                log.warning("failed; trying again", loop=self.name, error=str(error), phase=self.name)
            self.error, self.kind = str(error), _kind(error)
            return ERROR_WAIT_S
        except Exception as error:
            self.error, self.kind = f"{type(error).__name__}: {error}", _kind(error)
            self.broken = True
            log.exception("broken", loop=self.name, phase=self.name)
            return None


def _kind(error: Exception) -> str:
    return type(error).__name__
