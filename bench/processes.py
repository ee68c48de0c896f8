"""Processes that a benchmark starts and looks at from outside: their answers over HTTP, their memory in /proc."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

SAMPLE_S = 0.01


class Processes:
    """Starts them with a log each; ends them by pid on exit, newest first."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._running.values()):
            process.terminate()
        for process in reversed(self._running.values()):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, module: str, arguments: Sequence[str], *, environ: dict[str, str] | None = None) -> Memory:
        """Run `python -m module arguments…`; returns what watches its memory."""
        with (self._logs / f"{module}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
            )
        self._running[module] = process
        return Memory(process.pid)

    def run(
        self, module: str, arguments: Sequence[str], *, timeout_s: float, environ: dict[str, str] | None = None
    ) -> str:
        """One that ends by itself. How it ended, in words."""
        self.start(module, arguments, environ=environ).stop()
        process = self._running.pop(module)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"cut off after {timeout_s:.0f} s"
        return "done" if code == 0 else f"ended with {code}:\n{self._tails()}"

    def wait(self, ready: Callable[[], Any], *, what: str, timeout_s: float, every_s: float = 0.01) -> Any:
        """The first true answer of `ready`. Exits with the logs' ends when it does not come or a process has ended."""
        deadline = monotonic() + timeout_s
        while monotonic() < deadline:
            answer = ready()
            if answer:
                return answer
            gone = [name for name, process in self._running.items() if process.poll() is not None]
            if gone:
                raise SystemExit(f"{', '.join(gone)} ended while waiting for {what}:\n{self._tails()}")
            sleep(every_s)
        raise SystemExit(f"{what} did not come in {timeout_s:.0f} s:\n{self._tails()}")

    def _tails(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in self._logs.glob("*.log")
        )


class Memory:
    """Peak memory of one process since `reset`, in bytes: resident as the kernel counted it, and without files that it
    maps, sampled; and its time on a processor."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.anonymous = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Forget earlier peaks."""
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")
        self.anonymous = 0

    @property
    def resident(self) -> int:
        return self._read("VmHWM")

    @property
    def processor_s(self) -> float:
        """What the process has had of a processor since it was started, of the kernel's work for it, too."""
        fields = Path(f"/proc/{self._pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """No more samples; the rest can be asked for all the same."""
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            try:
                self.anonymous = max(self.anonymous, self._read("RssAnon"))
            except (OSError, KeyError):
                return  # it has ended

    def _read(self, field: str) -> int:
        lines = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii").splitlines()
        return int(dict(line.split(":", 1) for line in lines)[field].split()[0]) * 1024


def answer(port: int, path: str = "/status") -> Any:
    """JSON of a loopback server; None while it does not answer."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
            return json.loads(response.read())
    except (URLError, ConnectionError, TimeoutError, ValueError):
        return None


def sums(port: int, metric: str, label: str) -> dict[str, float]:
    """`metric`_sum of a Prometheus page by the value of `label`."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith(f"{metric}_sum{{"):
            labels, _, value = line.rpartition(" ")
            found[labels.split(f'{label}="')[1].split('"')[0]] = float(value)
    return found


def free_port() -> int:
    """A loopback port that was free just now."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return int(free.getsockname()[1])
