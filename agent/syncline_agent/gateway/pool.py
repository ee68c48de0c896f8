"""What the pool's owner says of lag: by `target.json`, watched while requests come and go, and by flags.

A bound that the file names holds in the place of the flag's. A file that vanishes or cannot be read leaves what it said last
in force; while it was never read nobody knows what the pool's bounds are. Knows no request.
"""

from __future__ import annotations

import asyncio

from structlog.typing import FilteringBoundLogger

from syncline_agent.gateway.bounds import Bounds
from syncline_agent.policy import Target, TargetFile

LOOK_S = 0.2


class PoolPolicy:
    """One pool's bounds as they are now."""

    def __init__(self, file: TargetFile | None, flags: Bounds, *, log: FilteringBoundLogger) -> None:
        """`file` None: the flags are all there is."""
        self._file = file
        self._flags = flags
        self._log = log
        self._target: Target | None = None
        self._error: str | None = None
        self.bounds: Bounds | None = flags if file is None else None
        """None while the file was never read."""

    @property
    def generation(self) -> int | None:
        """Of the file that is in force; None while there is none."""
        return None if self._target is None else self._target.generation

    @property
    def error(self) -> str | None:
        """Why the file as it stands is not in force; None when it is, or none was named."""
        return self._error

    def look(self) -> None:
        """Read the file as it stands."""
        if self._file is None:
            return
        before, target, error = self._error, self._file.poll(), self._file.error
        if target is not None and target != self._target:
            self._log.info(
                "target file in force",
                generation=target.generation,
                max_version_lag=target.max_version_lag,
                max_lag_seconds=target.max_lag_seconds,
            )
            self.bounds = Bounds(
                self._flags.versions if target.max_version_lag is None else target.max_version_lag,
                self._flags.seconds if target.max_lag_seconds is None else target.max_lag_seconds,
            )
        self._target, self._error = target, error
        if error is not None and error != before:
            self._log.warning("target file not in force", error=error)

    async def follow(self) -> None:
        """Look for ever, in a thread: a file system that hangs must not hold up any request."""
        while self._file is not None:
            try:
                await asyncio.to_thread(self.look)
            except Exception as error:  # no thread, no memory: what the file said last holds until it can be read again
                if self._error is None:
                    self._log.exception("the target file cannot be looked at")
                self._error = f"the target file cannot be looked at ({type(error).__name__}: {error})"
            await asyncio.sleep(LOOK_S)
