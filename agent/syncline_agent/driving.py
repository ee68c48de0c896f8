"""A thread that drives one state machine: tick, wait as long as it says, tick again. Knows nothing of what it
drives."""

from __future__ import annotations

import threading
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

TROUBLE_SECONDS = 5.0


class Driven:
    """Runs `tick` until stopped. What `tick` should have caught is logged with its traceback, and the machine goes
    on."""

    def __init__(self, name: str, tick: Callable[[], float], log: FilteringBoundLogger) -> None:
        self._name = name
        self._tick = tick
        self._log = log
        self._ended = False
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def wake(self) -> None:
        """Tick now rather than when the last tick said."""
        self._bell.set()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Ask it to end and wait that long; a tick that blocks longer is left behind, as a kill would."""
        self._ended = True
        self._bell.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        delay = 0.0
        while True:
            self._bell.wait(delay)
            if self._ended:
                return
            self._bell.clear()
            try:
                delay = self._tick()
            except Exception:
                # A full disk or a broken device shows here as OSError; the next tick starts from what is true then.
                self._log.exception("tick broke", machine=self._name)
                delay = TROUBLE_SECONDS
