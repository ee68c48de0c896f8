"""Official clients through the gateway to a real vLLM, while versions are committed.

On vLLM's own route the gateway's spans are compared with vLLM's; on OpenAI's routes, where vLLM says none, with what only the
newest weights can have drawn.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from syncline.testing.small_qwen import ENDING, PROMPTS
from syncline.testing.vllm_server import ENDLESS
from syncline_agent.testing.gateways import GatewayProcess

LETTERS = [chr(ord("a") + number) for number in range(26)]
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
ENDS = {"ignore_eos": True, "stop_token_ids": [ENDING]}
PATIENCE_S = 200.0


@pytest.fixture
def gateway(fleet: Any) -> Iterator[GatewayProcess]:
    """In front of a vLLM that can chat."""
    fleet.publish()
    fleet.start_agent()
    checkpoint: Path = fleet.node / "checkpoint"
    fleet.wait(lambda: (checkpoint / ".syncline/marker.json").exists() or None, "a checkpoint")
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    names = [f"t{number}" for number in range(len(tokenizer["model"]["vocab"]))]
    names[5 : 5 + len(LETTERS)] = LETTERS  # what vLLM takes for a Qwen model reads pairs of bytes, and no whole words
    model = {"type": "BPE", "vocab": {name: number for number, name in enumerate(names)}, "merges": []}
    (checkpoint / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    server = fleet.start_server(SYNCLINE_VLLM_KV="sessions")
    fleet.wait_serving(1)
    gateway = GatewayProcess(str(server.http.base_url).rstrip("/"), "vllm", fleet.node, "--kv-reuse", "sessions")
    gateway.wait_ready()
    yield gateway
    gateway.stop()


def spans_of(label: Any) -> list[list[tuple[int, int, int]]]:
    return [[(s["first"], s["last"], s["version"]) for s in choice["spans"]] for choice in label["choices"]]


def generate(
    http: httpx.Client, prompt: list[int], *, tokens: int, n: int, streamed: bool, **how: Any
) -> list[list[tuple[int, int, int]]]:
    """Ask vLLM's own route, and compare what it says with what the gateway does: the spans of each choice."""
    drawn = {"temperature": 1.0, "max_tokens": tokens, "ignore_eos": True, "n": n, **how}
    body = {"model": "m", "token_ids": prompt, "sampling_params": drawn, "stream": streamed}
    answer = http.post("/inference/v1/generate", json=body)
    assert 200 == answer.status_code, answer.text
    events = (
        [answer.json()]
        if not streamed
        else [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    )
    (label,) = [event["weight_version"] for event in events if "weight_version" in event]
    theirs: dict[int, list[tuple[int, int, int]]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        if choice["weight_versions"]:
            theirs[choice["index"]] = [(s["start"], s["end"], int(s["version"])) for s in choice["weight_versions"]]
    assert [theirs[at] for at in range(n)] == spans_of(label), label
    return spans_of(label)


class Cached:
    """Whether vLLM finds a prompt's block in its prefix cache, by its own count of hits."""

    def __init__(self, fleet: Any, gateway: GatewayProcess) -> None:
        self._fleet, self._gateway = fleet, gateway

    def finds(self, *, path: str = "/v1/completions", session: str | None = None, **more: Any) -> bool:
        """Ask through the gateway; the answer says in which way its keys and values are kept apart."""
        before = self._hits
        text = {"messages": [{"role": "user", "content": "a" * 140}]} if "chat" in path else {"prompt": PROMPTS[-1]}
        headers = {} if session is None else {"x-syncline-session": session}
        body = {"model": "m", "max_tokens": 1, **text, **more}
        answer = httpx.post(f"{self._gateway.url}{path}", json=body, headers=headers, timeout=PATIENCE_S)
        assert 200 == answer.status_code, answer.text
        assert ("own" if session is None else "session") == answer.json()["weight_version"]["kv"]
        return self._hits > before

    def follow(self, version: int) -> None:
        """Wait until the gateway, too, has heard that this version is served."""
        self._fleet.wait_serving(version)
        status = f"{self._gateway.url}/status"
        self._fleet.wait(lambda: httpx.get(status).json()["applied"] == version or None, f"heard of {version}")

    @property
    def _hits(self) -> float:
        return self._fleet.server.metric("vllm:prefix_cache_hits_total")


@contextmanager
def ends_with(gateway: GatewayProcess) -> Iterator[None]:
    """A failure inside ends what streams through the gateway: nobody waits for it to come to its end."""
    try:
        yield
    except BaseException:
        gateway.stop()
        raise


class Endless:
    """A stream of OpenAI's that goes on until weights draw `ENDING`."""

    def __init__(self, create: Callable[..., Any], **asked: Any) -> None:
        self._events = create(model="m", max_tokens=ENDLESS, stream=True, extra_body=ENDS, temperature=0, **asked)
        self.begun = threading.Event()
        self.label: Any = None
        self.finish: str | None = None

    def read(self) -> Any:
        """To its end."""
        try:
            for event in self._events:
                told = event.to_dict()
                self.label = told.get("weight_version", self.label)
                for choice in told["choices"]:
                    self.finish = choice.get("finish_reason") or self.finish
                self.begun.set()
        finally:
            self.begun.set()
        return self


@pytest.mark.timeout(1200)
def test_the_gateway_says_what_vllm_says_and_what_it_does_not_say_itself(fleet: Any, gateway: GatewayProcess) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
    assert ["m"] == [model.id for model in client.models.list()]
    with pytest.raises(openai.NotFoundError):
        client.post("/../sleep", cast_to=object, body={})
    for path in ("/sleep", "/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weights", "/abort_requests"):
        assert 404 == httpx.post(f"{gateway.url}{path}", json={}).status_code
    assert 200 == httpx.get(f"{gateway.url}/health").status_code

    first = fleet.publish_next()
    fleet.follow(first)  # what a first delta compiles is compiled
    over = threading.Event()

    def keep_asking(number: int) -> None:
        with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S) as http:
            turn = 0
            while not over.is_set():
                turn += 1
                n, streamed = 1 + (turn + number) % 2, bool(turn % 2)
                generate(http, PROMPTS[number], tokens=20 + 30 * number, n=n, streamed=streamed)

    def ask_until_it_ends() -> list[int]:
        """The versions of an answer of vLLM's own route that crosses every commit."""
        drawn = {"temperature": 0.0, "stop_token_ids": [ENDING]}
        with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S) as http:
            (spans,) = generate(http, PROMPTS[1], tokens=ENDLESS, n=1, streamed=True, **drawn)
        return [version for _, _, version in spans]

    with ThreadPoolExecutor(8) as clients, ends_with(gateway):
        texts = Endless(client.completions.create, prompt=PROMPTS[0])
        chats = Endless(client.chat.completions.create, messages=[{"role": "user", "content": "abc"}])
        reading = [clients.submit(endless.read) for endless in (texts, chats)]
        assert texts.begun.wait(PATIENCE_S) and chats.begun.wait(PATIENCE_S)
        assert not any(future.done() and future.exception() for future in reading), reading
        crossing = clients.submit(ask_until_it_ends)
        fleet.wait(lambda: fleet.server.metric("vllm:num_requests_running") == 3 or None, "let it in")
        asking = [clients.submit(keep_asking, number) for number in range(3)]
        try:
            fleet.follow(fleet.publish_next())
            fleet.follow(fleet.publish_next())
        finally:
            over.set()
        for future in asking:
            future.result(PATIENCE_S)
        last = fleet.publish_next(ends=True)
        fleet.follow(last)
        for future in reading:
            ended = future.result(PATIENCE_S)
            (spans,) = spans_of(ended.label)
            assert ("stop", [first, first + 1, first + 2, last]) == (ended.finish, [version for _, _, version in spans])
            assert 1 == spans[-1][1] - spans[-1][0]  # the newest weights drew the ending, at once
            assert [0, *(end for _, end, _ in spans[:-1])] == [first for first, _, _ in spans]
            assert (last, fleet.digests[last][:12]) == (ended.label["end"], ended.label["digest"])
        assert [first, first + 1, first + 2, last] == crossing.result(PATIENCE_S)

    # Whole answers of several prompts and choices; of a version that is waited for
    with ThreadPoolExecutor(1) as clients:
        wanted = {"min": last + 1, "wait_seconds": PATIENCE_S}
        many = clients.submit(
            client.completions.create,
            model="m",
            prompt=PROMPTS[:2],
            n=2,
            max_tokens=5,
            extra_body={"ignore_eos": True, "weight_version": wanted},
        )
        assert last + 1 == fleet.publish_next()
        told: Any = many.result(PATIENCE_S).to_dict()
    assert [[(0, 5, last + 1)]] * 4 == spans_of(told["weight_version"])
    assert [None] * 4 == [choice["token_ids"] for choice in told["choices"]]
    chat = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "a"}], n=2, max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert [[(0, 5, last + 1)]] * 2 == spans_of(chat.to_dict()["weight_version"])

    # A client that hangs up ends its request in vLLM
    stream = client.completions.create(model="m", prompt=PROMPTS[0], max_tokens=ENDLESS, stream=True, extra_body=ENDS)
    next(iter(stream))
    assert 1 == fleet.server.metric("vllm:num_requests_running")
    stream.close()
    fleet.wait(lambda: fleet.server.metric("vllm:num_requests_running") == 0 or None, "ended what nobody reads")

    # Keys and values are found again within a version, after a commit by a session alone, and after an undo by none
    cached = Cached(fleet, gateway)
    mine = {"cache_salt": "mine/@"}
    assert [False, True] == [cached.finds() for _ in range(2)]
    assert [False, True] == [cached.finds(**mine) for _ in range(2)]
    assert [False, True] == [cached.finds(path="/v1/chat/completions") for _ in range(2)]
    assert [False, True] == [cached.finds(session="s") for _ in range(2)]
    assert [False, False] == [cached.finds(session="t"), cached.finds(session="s", **mine)]
    cached.follow(fleet.publish_next())
    assert [True, False, False] == [cached.finds(session="s"), cached.finds(), cached.finds(**mine)]
    fleet.target("Pinned", last + 1)
    cached.follow(last + 1)
    assert [False, True] == [cached.finds(session="s") for _ in range(2)]
    assert [False, True] == [cached.finds() for _ in range(2)]
