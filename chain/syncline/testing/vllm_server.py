"""A real vLLM as a process: started, asked, read from as it streams, killed.

vLLM lives in an environment of its own, whose Python it is given. A request that is to be in flight while something happens
is an endless one: it cannot have ended, so no clock decides whether it was met.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from syncline.testing.small_qwen import ENDING, LONGEST

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",
    "OMP_NUM_THREADS": "1",  # on a busy machine threads that wait for each other draw ten tokens a second
}
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Core and worker in one process: what vLLM takes for one GPU. Spelled out, since for the CPU it changes its short name."""
ENDLESS = LONGEST - 2048
"""Tokens that a request never comes to: at a thousand a second, two minutes."""
PATIENCE_S = 120.0


class Stream:
    """A request whose tokens a thread reads as they come, from the moment it is entered until it is left or has ended."""

    def __init__(self, http: httpx.Client, body: Mapping[str, Any]) -> None:
        self._http, self._body = http, body
        self._leaving = False
        self.name = ""
        """vLLM's for the request, once a token has come."""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.error: str | None = None
        self.spans: list[tuple[str, int, int]] = []
        """Of a request that has ended: version as vLLM calls it, first token, the token after the last."""
        self.ended = False

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The client goes away."""
        self._leaving = True
        self._reader.join(PATIENCE_S)
        assert kind is not None or not self._reader.is_alive()

    def wait_for(self, tokens: int) -> None:
        """Return when so many more tokens have come than had by now."""
        with self._changed:
            wanted = len(self.tokens) + tokens
            self._changed.wait_for(lambda: self.ended or len(self.tokens) >= wanted, PATIENCE_S)
            assert len(self.tokens) >= wanted, self.told()

    def wait_ended(self) -> Self:
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended, PATIENCE_S), self.told()
        return self

    def told(self) -> str:
        return f"{len(self.tokens)} tokens, finish {self.finish}, error {self.error}, ended {self.ended}"

    def _read(self) -> None:
        try:
            with self._http.stream("POST", "/inference/v1/generate", json=self._body) as answer:
                for line in answer.iter_lines():
                    if self._leaving:
                        return
                    self._take(line.removeprefix("data: "), answer.status_code)
        except httpx.HTTPError as error:
            self.error = self.error or f"{type(error).__name__}: {error}"
        finally:
            with self._changed:
                self.ended = True
                self._changed.notify_all()

    def _take(self, data: str, code: int) -> None:
        if not data or data == "[DONE]":
            return
        told: Any = json.loads(data) if code == 200 else {"error": data}
        with self._changed:
            if "error" in told:
                self.error = json.dumps(told["error"])
            else:
                self.name = told["request_id"]
                (choice,) = told["choices"]
                self.tokens += choice["token_ids"] or []
                self.finish = choice["finish_reason"] or self.finish
                spans: list[Any] = choice["weight_versions"] or []
                self.spans = [(span["version"], span["start"], span["end"]) for span in spans]
            self._changed.notify_all()


class Choices(dict[int, int]):
    """A request of several choices: how many pieces of each were read, from the moment it is entered until it is left."""

    def __init__(self, http: httpx.Client, body: Mapping[str, Any], name: str) -> None:
        super().__init__()
        headers = {"X-Request-Id": name}
        self._answer = http.stream("POST", "/v1/completions", json=body, headers=headers)
        self._lines: Iterator[str] = iter(())

    def __enter__(self) -> Self:
        self._lines = self._answer.__enter__().iter_lines()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The client goes away."""
        self._answer.__exit__(kind, error, trace)

    def read(self) -> None:
        """One line more."""
        data = next(self._lines).removeprefix("data: ")
        for choice in json.loads(data)["choices"] if data else ():
            self[choice["index"]] = self.get(choice["index"], 0) + 1


class VllmServer:
    """One vLLM process on a checkpoint."""

    def __init__(
        self,
        python: Path,
        checkpoint: Path,
        log: Path,
        environ: Mapping[str, str],
        *,
        ranks: int = 1,
        executor: str = "mp",
        adapters: Mapping[str, Path] | None = None,
    ) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        flags = {
            "--model": str(checkpoint),
            "--served-model-name": "m",
            "--host": "127.0.0.1",
            "--port": str(port),
            "--dtype": "bfloat16",
            "--max-model-len": str(LONGEST),
            "--max-num-seqs": "16",
            "--tensor-parallel-size": str(ranks),
            "--distributed-executor-backend": executor,
        }
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--enable-scale-out"]
        command += [part for pair in flags.items() for part in pair]
        if adapters:
            command += ["--enable-lora", "--lora-modules", *(f"{name}={folder}" for name, folder in adapters.items())]
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **QUIET, **environ},
                cwd=log.parent,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        # A connection of its own for each request: the server closes idle ones while the next request is on its way.
        alone = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, limits=alone)
        self._pause = threading.Event()

    def wait_ready(self, seconds: int = 300) -> None:
        for _ in range(seconds * 4):
            if self.process.poll() is not None:
                raise AssertionError(f"vLLM ended with {self.process.returncode}:\n{self.told()}")
            try:
                if self.http.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            self._pause.wait(0.25)
        raise AssertionError(f"vLLM was not ready in {seconds} s:\n{self.told()}")

    def told(self, most: int = 6000) -> str:
        return self.log.read_text(errors="replace")[-most:]

    @property
    def weight_version(self) -> str:
        """As vLLM says it."""
        return self.http.get("/weight_info").json()["weight_version"]

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0] == name)

    def ask(self, prompt: Sequence[int], tokens: int, model: str = "m") -> httpx.Response:
        """The answer to a greedy completion's request, an error too."""
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return self.http.post("/v1/completions", json={**body, "return_token_ids": True})

    def complete(self, prompt: Sequence[int], tokens: int = 12, model: str = "m") -> list[int]:
        """Greedy tokens of one prompt."""
        answer = self.ask(prompt, tokens, model)
        assert 200 == answer.status_code, answer.text
        return answer.json()["choices"][0]["token_ids"]

    def stream(self, prompt: Sequence[int], tokens: int) -> Stream:
        """A greedy completion that says which version drew which tokens; it ends with `ENDING`, too."""
        drawn = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True, "stop_token_ids": [ENDING]}
        return Stream(self.http, {"model": "m", "token_ids": prompt, "sampling_params": drawn, "stream": True})

    def endless(self, prompt: Sequence[int]) -> Stream:
        """A greedy completion that goes on until weights draw `ENDING`, the engine ends it, or the client leaves."""
        return self.stream(prompt, ENDLESS)

    def choices(self, prompt: Sequence[int], number: int, *, name: str) -> Choices:
        """Several endless completions of one request, which the client calls `name`."""
        body = {"model": "m", "prompt": prompt, "n": number, "max_tokens": ENDLESS, "ignore_eos": True, "stream": True}
        return Choices(self.http, body, name)

    def end(self, stream: Stream) -> None:
        """End a request that streams, as whoever runs this vLLM can."""
        self.http.post("/abort_requests", json={"request_ids": [stream.name]}).raise_for_status()

    def kill(self) -> None:
        """End all of its processes at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(30)
        self.http.close()
