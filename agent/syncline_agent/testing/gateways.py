"""A gateway as a process of its own: started, asked, ended, started again at the same port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import httpx

PATIENCE_S = 60.0


class GatewayProcess:
    """`python -m syncline_agent.gateway` in front of an engine."""

    def __init__(self, engine_url: str, kind: str, node_dir: Path, *flags: str, port: int = 0) -> None:
        """`port` 0 takes a free one."""
        self._command = [
            *(sys.executable, "-m", "syncline_agent.gateway", "--engine-url", engine_url, "--engine-kind", kind),
            *("--node-dir", str(node_dir), *flags),
        ]
        self.port = port
        self._said: list[str] = []
        self.process = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.05)):
            try:
                answer = httpx.get(f"{self.url}/readyz", timeout=PATIENCE_S)
                if answer.status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert self.process.poll() is None, "the gateway ended"
            pause.wait(0.05)
        raise AssertionError(f"the gateway was not ready in {PATIENCE_S:g} s")

    def restart(self, *, kill: bool) -> None:
        """End it, at once or as an operator does, and start it again where it was."""
        self.process.kill() if kill else self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.process = self._start()

    def stop(self) -> None:
        """End it at once; what it logged is printed, for whoever reads of a test that failed."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        print("".join(self._said))

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*self._command, "--port", str(self.port)], env=dict(os.environ), stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        lines = process.stderr
        for line in lines:
            self._said.append(line)
            found = re.search(r"address=\S+:(\d+)", line)
            if found:
                self.port = int(found[1])
                self._reader = threading.Thread(target=self._read_on, args=(lines,), daemon=True)
                self._reader.start()
                return process
        raise AssertionError("the gateway ended before it listened:\n" + "".join(self._said))

    def _read_on(self, lines: IO[str]) -> None:
        with lines:
            self._said.extend(lines)
