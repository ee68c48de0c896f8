"""A vLLM process as the benchmark sees it: orders go in, answers come back, and its log tells the rest."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a worker is asked for its memory by a function
}
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def plain(told: str) -> str:
    """A log without its colours."""
    return ESCAPES.sub("", told)


class VllmProcess:
    """One vLLM on a folder. With an agent's socket it is armed."""

    def __init__(
        self, folder: Path, log: Path, flags: Sequence[str], environ: Mapping[str, str], socket: Path | None
    ) -> None:
        self.log = log
        self._began = monotonic()
        arm = {} if socket is None else {"SYNCLINE_ARM_SOCKET": str(socket), "SYNCLINE_POD": "pod-0"}
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.vllm_run.engine", str(folder), *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env={**os.environ, **QUIET, **environ, **arm},
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float) -> float:
        """Seconds from its start until it serves."""
        return self._read(timeout_s)["ready"] - self._began

    def ask(self, do: str, timeout_s: float = 120.0, **more: Any) -> dict[str, Any]:
        """The answer to an order. RuntimeError with what the engine says where it failed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
        self._process.stdin.flush()
        told = self._read(timeout_s)
        if "error" in told:
            raise RuntimeError(f"{do}: {told['error']}")
        return told

    def told(self) -> str:
        return plain(self.log.read_text(errors="replace"))

    def found(self, pattern: str) -> list[str]:
        """The first group of every match in the log."""
        return re.findall(pattern, self.told())

    def close(self) -> None:
        if self._process.poll() is None:
            try:
                self.ask("end", 20.0)
            except (RuntimeError, TimeoutError, OSError):
                pass
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # the core and workers of one that did not end by itself
        except ProcessLookupError:
            pass

    def _read(self, timeout_s: float) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        if not select([out], [], [], timeout_s)[0]:
            raise TimeoutError(f"vLLM did not answer in {timeout_s:.0f} s:\n{self.told()[-1500:]}")
        line = out.readline()
        if not line:
            raise RuntimeError(f"vLLM ended with {self._process.wait(30)}:\n{self.told()[-6000:]}")
        return json.loads(line)
