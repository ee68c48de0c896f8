"""A small Qwen2-shaped model with an odd vocabulary, published version by version, and vLLM servers that serve it.

vLLM lives in an environment of its own (`make vllm`); without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from syncline.store.local import LocalStore
from syncline.testing.tables import safetensors_bytes
from syncline.wire.tensors import TensorSpec, split_axis
from syncline_distributor.publisher import Publisher

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SYNCLINE_VLLM_PYTHON", ROOT / ".venv-vllm/bin/python"))
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",
}
VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 517, 128, 192, 2, 4, 2, 32
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {f"t{n}": n for n in range(VOCAB)}, "unk_token": "t0"},
    "pre_tokenizer": {"type": "WhitespaceSplit"},
}
FILES = {
    "config.json": json.dumps(CONFIG),
    "tokenizer.json": json.dumps(TOKENIZER),
    "tokenizer_config.json": json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}),
    "generation_config.json": "{}",
}
Weights = Mapping[str, NDArray[np.uint16]]


def shapes() -> dict[str, list[int]]:
    """The tensors of the model as a checkpoint has them."""
    found: dict[str, list[int]] = {
        "model.embed_tokens.weight": [VOCAB, HIDDEN],
        "lm_head.weight": [VOCAB, HIDDEN],
        "model.norm.weight": [HIDDEN],
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            found[f"{prefix}self_attn.{name}_proj.weight"] = [rows * HEAD, HIDDEN]
            found[f"{prefix}self_attn.{name}_proj.bias"] = [rows * HEAD]
        found[f"{prefix}self_attn.o_proj.weight"] = [HIDDEN, HEADS * HEAD]
        found[f"{prefix}mlp.gate_proj.weight"] = found[f"{prefix}mlp.up_proj.weight"] = [INNER, HIDDEN]
        found[f"{prefix}mlp.down_proj.weight"] = [HIDDEN, INNER]
        found[f"{prefix}input_layernorm.weight"] = found[f"{prefix}post_attention_layernorm.weight"] = [HIDDEN]
    return found


def bits_of(values: NDArray[Any]) -> NDArray[np.uint16]:
    """BF16 bits, rounded towards zero."""
    return (np.asarray(values, np.float32).reshape(-1).view(np.uint32) >> 16).astype(np.uint16)


class SmallModel:
    """Versions of the small model: each step moves a few weights far enough that other tokens are the likeliest."""

    def __init__(self, seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self.shapes = shapes()
        self.newest = {name: bits_of(self._draw(name, shape)) for name, shape in self.shapes.items()}

    def _draw(self, name: str, shape: list[int]) -> NDArray[Any]:
        if "norm" in name:
            return np.ones(shape)
        known = {"lm_head.weight": 0.4, "model.embed_tokens.weight": 1.0}
        width: float = known[name] if name in known else 1.5 / float(shape[-1]) ** 0.5
        return self._random.normal(0, width, shape)

    def step(self, share: float = 0.02) -> Weights:
        """Change about `share` of every tensor; the new weights."""
        changed = {name: bits.copy() for name, bits in self.newest.items()}
        for name, bits in changed.items():
            places = self._random.choice(bits.size, max(1, int(share * bits.size)), replace=False)
            bits[places] = bits_of(self._draw(name, self.shapes[name]).reshape(-1)[places])
            bits[places[0]] ^= 1  # norms, too
        self.newest = changed
        return changed

    def specs(self) -> list[TensorSpec]:
        return [
            TensorSpec(name=name, dtype="BF16", shape=shape, axis=split_axis(name, shape))
            for name, shape in sorted(self.shapes.items())
        ]


@dataclass(frozen=True)
class Streamed:
    """A streamed completion that has ended."""

    tokens: list[int]
    finish: str | None
    error: str | None


class Traffic:
    """Requests that follow each other until the block ends, and what became of them."""

    SPANNING = 1500
    """Tokens of a request that is to meet a commit."""

    def __init__(self, server: VllmServer, prompts: list[list[int]]) -> None:
        self._server = server
        self._stopping = threading.Event()
        lengths = [700 + 400 * n for n in range(len(prompts))]  # not all of them begin and end at once
        self._begun = [threading.Event() for _ in prompts]
        asked = zip(prompts, lengths, self._begun, strict=True)
        self._readers = [threading.Thread(target=self._read, args=request) for request in asked]
        self._spanning = threading.Semaphore(0)
        self._readers.append(threading.Thread(target=self._read_spans, args=(prompts[0],)))
        # A reader of streams may lag far behind the engine; these are in flight for as long as the engine works on them.
        self._readers += [threading.Thread(target=self._ask, args=(prompt,)) for prompt in prompts[:2]]
        self.streamed: list[Streamed] = []
        self.spans: list[list[dict[str, Any]]] = []
        """Of each request that was answered at once: which version drew which tokens, where the release says it."""

    def __enter__(self) -> Traffic:
        for reader in self._readers:
            reader.start()
        for begun in self._begun:
            assert begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for reader in self._readers:
            reader.join(120)
            assert not reader.is_alive()

    def _read(self, prompt: list[int], tokens: int, begun: threading.Event) -> None:
        while not self._stopping.is_set():
            streamed = self._server.stream(prompt, tokens, begun)
            assert streamed.finish != "length" or tokens == len(streamed.tokens)
            self.streamed.append(streamed)

    def _ask(self, prompt: list[int]) -> None:
        while not self._stopping.is_set():
            answer = self._server.http.post("/v1/completions", json=self._server.ask(prompt, 1800)).json()
            choice = answer["choices"][0]
            self.streamed.append(Streamed(choice["token_ids"], choice["finish_reason"], None))

    def wait_for_a_new_one(self) -> None:
        """Return when a request whose versions are told has just begun: what follows soon meets it."""
        while self._spanning.acquire(blocking=False):
            pass
        assert self._spanning.acquire(timeout=60)

    def _read_spans(self, prompt: list[int]) -> None:
        while not self._stopping.is_set():
            self._spanning.release()
            answer = self._server.generate(prompt, self.SPANNING)
            if answer["finish_reason"] == "length":
                self.spans.append(answer.get("weight_versions", []))


class VllmServer:
    """One vLLM process on the checkpoint of a node."""

    def __init__(
        self, checkpoint: Path, log: Path, environ: Mapping[str, str], ranks: int = 1, executor: str = "mp"
    ) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        flags = {
            "--model": str(checkpoint),
            "--served-model-name": "m",
            "--host": "127.0.0.1",
            "--port": str(port),
            "--dtype": "bfloat16",
            "--max-model-len": "2048",
            "--tensor-parallel-size": str(ranks),
            "--distributed-executor-backend": executor,
        }
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--enable-scale-out"]
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, *(part for pair in flags.items() for part in pair)],
                env={**os.environ, **QUIET, **environ},
                cwd=log.parent,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        # A connection of its own for each request: the server closes idle ones while the next request is on its way.
        alone = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, limits=alone)
        self._pause = threading.Event()

    def wait_ready(self, seconds: int = 240) -> None:
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

    @property
    def release(self) -> tuple[int, ...]:
        """vLLM's own."""
        told = self.http.get("/version").json()["version"]
        return tuple(int(part) for part in re.findall(r"\d+", told)[:2])

    def told(self, most: int = 6000) -> str:
        return self.log.read_text(errors="replace")[-most:]

    def ask(self, prompt: list[int], tokens: int, **more: Any) -> dict[str, Any]:
        """The body of a greedy completion's request."""
        return {
            "model": "m",
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **more,
        }

    def stream(self, prompt: list[int], tokens: int, begun: threading.Event) -> Streamed:
        """A completion, read as it comes; `begun` is set with its first token."""
        drawn: list[int] = []
        finish = error = None
        with self.http.stream("POST", "/v1/completions", json=self.ask(prompt, tokens, stream=True)) as answer:
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if not line or data == "[DONE]":
                    continue
                told = json.loads(data)
                if "error" in told:
                    error = json.dumps(told["error"])
                    continue
                drawn += told["choices"][0].get("token_ids") or []
                begun.set()
                finish = told["choices"][0]["finish_reason"] or finish
        return Streamed(drawn, finish, error)

    def generate(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """The only choice of an answer that says which version drew which tokens."""
        drawn = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
        body = {"model": "m", "token_ids": prompt, "sampling_params": drawn}
        answer = self.http.post("/inference/v1/generate", json=body)
        assert 200 == answer.status_code, answer.text
        return answer.json()["choices"][0]

    def metric(self, name: str) -> float:
        """The sum of a counter's samples."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0] == name)

    def complete(self, prompt: list[int], tokens: int = 12) -> list[int]:
        """Greedy tokens of one prompt."""
        answer = self.http.post("/v1/completions", json=self.ask(prompt, tokens))
        assert 200 == answer.status_code, answer.text
        return answer.json()["choices"][0]["token_ids"]

    def kill(self) -> None:
        """End all of its processes at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(30)
        self.http.close()


ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Core and worker in one process: what vLLM takes for one GPU. Spelled out, since for the CPU it changes its short name."""
PROMPTS = [[5, 6, 7], [500, 3, 9, 77, 41], list(range(100, 240))]
"""The last one fills a block of the prefix cache."""


def bound(ranks: int) -> dict[str, str]:
    """Each of several workers on cores of its own; vLLM wants to be told."""
    cores = sorted(os.sched_getaffinity(0))
    if ranks == 1:
        return {}
    if len(cores) < ranks:
        pytest.skip(f"{ranks} workers of vLLM need a core each, here are {len(cores)}")
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores[:ranks]))}


class Fleet:
    """A run in a local store, an agent that follows it, and the vLLM servers beside it, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store, self.node = folder / "store", folder / "node"
        self.node.mkdir()
        self.model = SmallModel()
        self.publisher = Publisher(LocalStore(self.store), "small")
        self.publisher.open()
        self.digests: dict[int, str] = {}
        self.agent: subprocess.Popen[bytes] | None = None
        self.server: VllmServer | None = None
        self._port = 0
        self._generation = 0
        self.http = httpx.Client(timeout=10.0)
        self._pause = threading.Event()

    def publish(self, *, parent: int | None = None) -> int:
        """The model's newest weights as the next version, kept as a folder."""
        source = self.folder / "next"
        source.mkdir()
        for name, text in FILES.items():
            (source / name).write_text(text)
        (source / "model.safetensors").write_bytes(safetensors_bytes(self.model.specs(), self.model.newest))
        published = self.publisher.publish(source, step=len(self.digests), parent=parent)
        self.digests[published.version] = published.manifest.digest
        source.rename(self.checkpoint(published.version))
        return published.version

    def checkpoint(self, version: int) -> Path:
        return self.folder / f"version-{version}"

    def target(self, mode: str = "Latest", version: int | None = None, policy: str = "keep") -> None:
        """Say what to serve, and wait until an agent that runs has heard it."""
        self._generation += 1
        wanted = {"mode": mode} | ({} if version is None else {"version": version})
        body = {"run": "small", "view": "main", "policy": policy, "version": wanted, "suspend": False}
        new = self.folder / "target.new"
        new.write_text(json.dumps({**body, "generation": self._generation}))
        new.rename(self.folder / "target.json")
        if self.agent is not None:
            self.wait(lambda: self.status()["generation"] == self._generation or None, "heard its target")

    def start_agent(self, kill_at: str | None = None) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self._port = free.getsockname()[1]
        flags = {
            "--store": str(self.store),
            "--target": str(self.folder / "target.json"),
            "--node-dir": str(self.node),
            "--pool": "p",
            "--node": "n",
            "--port": str(self._port),
        }
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "syncline_agent", *(part for pair in flags.items() for part in pair)],
                env={**os.environ} | ({"SYNCLINE_KILL_AT": kill_at} if kill_at else {}),
                stderr=log,
            )

    def kill_agent(self) -> None:
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait(10)

    def start_server(self, ranks: int = 1, executor: str = "mp", **environ: str) -> VllmServer:
        """vLLM on the node's checkpoint, as soon as the agent has brought that."""
        self.wait(lambda: (self.node / "checkpoint/.syncline/marker.json").exists() or None, "a checkpoint")
        armed = {"SYNCLINE_ARM_SOCKET": str(self.node / "arm.sock"), "SYNCLINE_POOL": "p", "SYNCLINE_POD": "n"}
        self.server = VllmServer(
            self.node / "checkpoint", self.folder / "vllm.log", {**armed, **bound(ranks), **environ}, ranks
        )
        self.server.wait_ready()
        return self.server

    def status(self) -> dict[str, Any]:
        return self.http.get(f"http://127.0.0.1:{self._port}/status").json()

    def verify(self) -> dict[str, Any]:
        """What a sweep of all live memory finds."""
        return self.http.post(f"http://127.0.0.1:{self._port}/verify", timeout=60).json()

    def wait(self, found: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
        """What `found` returns, as soon as that is not None."""
        for _ in range(int(seconds / 0.05)):
            try:
                result = found()
            except httpx.TransportError:
                result = None
            if result is not None:
                return result
            self._pause.wait(0.05)
        told = "" if self.server is None else self.server.told()
        agent = self.folder / "agent.log"
        said = self.http.get(f"http://127.0.0.1:{self._port}/status").text if self._port else ""
        raise AssertionError(f"never {what}\n{said}\n{told}\n{agent.read_text()[-4000:] if agent.exists() else ''}")

    def wait_serving(self, version: int) -> dict[str, Any]:
        """The agent's status once the engine serves a version, proven, in place."""

        def served() -> dict[str, Any] | None:
            status = self.status()
            applied = status["applied"]
            served = applied is not None and (version, True) == (applied["version"], applied["proven"])
            return status if served else None

        status = self.wait(served, f"served {version}")
        assert self.digests[version] == status["applied"]["digest"]
        return status

    def fresh_tokens(self, versions: list[int], ranks: int = 1) -> dict[int, list[list[int]]]:
        """What a vLLM without Syncline draws from each version's checkpoint."""
        folders = [str(self.checkpoint(version)) for version in versions]
        done = subprocess.run(
            [str(PYTHON), str(Path(__file__).parent / "fresh.py"), str(ranks), json.dumps(PROMPTS), *folders],
            env={
                **os.environ,
                **QUIET,
                **bound(ranks),
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_LOGGING_LEVEL": "ERROR",
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=280,
        )
        told = [line.removeprefix("TOKENS ") for line in done.stdout.splitlines() if line.startswith("TOKENS ")]
        assert len(versions) == len(told), done.stderr[-4000:]
        return dict(zip(versions, map(json.loads, told), strict=True))

    def close(self) -> None:
        if self.server is not None:
            self.server.kill()
        if self.agent is not None and self.agent.poll() is None:
            self.agent.terminate()
            try:
                self.agent.wait(15)
            except subprocess.TimeoutExpired:
                self.agent.kill()
        self.http.close()


@pytest.fixture
def vllm_python() -> Path:
    """The Python of vLLM's environment."""
    if not PYTHON.exists():
        pytest.skip("no environment of vLLM; `make vllm` makes it")
    return PYTHON


@pytest.fixture
def fleet(tmp_path: Path, vllm_python: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    fleet.target()
    yield fleet
    fleet.close()


@pytest.fixture
def one_process() -> str:
    return ONE_PROCESS


@pytest.fixture
def traffic() -> type[Traffic]:
    return Traffic


@pytest.fixture
def prompts() -> list[list[int]]:
    return PROMPTS
