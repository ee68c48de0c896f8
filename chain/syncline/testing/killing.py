"""Real processes that kill -9 themselves at a kill point, without paying for an interpreter's start each time.

`KillableMain` runs a program's `main` in a child that a fork server made after importing that program once: a process of its own, with
its own memory, files and threads, which dies as any other does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from syncline import faults


class KillableMain:
    """Starts `module.main(arguments)`; every child's output goes to `log`."""

    def __init__(self, module: str, log: Path) -> None:
        self._module = module
        self._log = log
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([module, __name__])
        self._children: list[ForkServerProcess] = []

    def start(self, arguments: Sequence[str], *, kill_at: str | None = None) -> ForkServerProcess:
        """A new child; with `kill_at` it dies there (`<name>#<n>`: at the n-th time)."""
        child = self._context.Process(
            target=run_main, args=(self._module, list(arguments), kill_at, str(self._log)), daemon=True
        )
        child.start()
        self._children.append(child)
        return child

    def end_all(self) -> None:
        """Kill what still runs."""
        for child in self._children:
            if child.is_alive():
                child.kill()
            child.join(10)


def run_main(module: str, arguments: list[str], kill_at: str | None, log: str) -> None:
    """What the child does."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if kill_at is not None:
        faults.install_hook(faults.kill_hook(kill_at))
    sys.exit(import_module(module).main(arguments))


def was_killed(child: ForkServerProcess, *, within_seconds: float) -> bool:
    """Wait for a child and say whether SIGKILL ended it."""
    child.join(within_seconds)
    return child.exitcode == -signal.SIGKILL
