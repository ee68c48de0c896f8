"""The demo's processes: started with a log file each, watched, and ended by pid whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from syncline.clock import SystemClock
from syncline.errors import SynclineError


class ProcessDied(SynclineError):
    """A process of the demo ended by itself."""

    def __init__(self, text: str, tail: Sequence[str]) -> None:
        super().__init__(text)
        self.tail = tail
        """The last lines of its log."""


@dataclass(frozen=True, slots=True)
class Running:
    """One process and where it writes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Processes:
    """Starts processes and ends all of them on exit, newest first."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[Running] = []
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(
        self, name: str, module: str, arguments: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> Running:
        """Run `python -m module arguments…` with its output in `<logs>/<name>.log`."""
        log = self._logs / f"{name}.log"
        # One thread a process: with two cores, several torch processes would otherwise wait for each other's idle threads.
        threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **threads, **(environment or {})},
            )
        running = Running(name, process, log)
        self._running.append(running)
        return running

    def check(self) -> None:
        """ProcessDied, with the end of its log, when one has ended."""
        for running in self._running:
            code = running.process.poll()
            if code is not None and not (running.name == "trainer" and code == 0):
                tail = running.log.read_text(errors="replace").splitlines()[-15:]
                raise ProcessDied(f"{running.name} ended with {code}; its log is {running.log}", tail)

    def stop(self) -> None:
        """SIGTERM, five seconds, SIGKILL."""
        for running in reversed(self._running):
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGTERM)
        clock = SystemClock()
        deadline = clock.monotonic() + 5
        for running in reversed(self._running):
            try:
                running.process.wait(max(0.1, deadline - clock.monotonic()))
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()
        self._running.clear()


def free_port() -> int:
    """A loopback port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
