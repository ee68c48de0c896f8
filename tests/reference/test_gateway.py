"""A trainer's requests through the gateway to a reference engine that follows a run: official clients, real processes.

What the gateway says of each token is compared with what the engine stamped on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import openai
import pytest

from syncline_agent.testing.gateways import GatewayProcess

Start = Callable[..., GatewayProcess]
CLIENTS = 8
MODEL = "syncline-reference"
PATIENCE_S = 100.0
CUT_OFF = (httpx.TransportError, ConnectionError)
"""What a stream raises whose gateway was killed."""


@pytest.fixture
def start_gateway() -> Iterator[Callable[..., GatewayProcess]]:
    started: list[GatewayProcess] = []

    def start(engine: Any, node: Any, *flags: str) -> GatewayProcess:
        gateway = GatewayProcess(str(engine.http.base_url).rstrip("/"), "reference", node, *flags)
        started.append(gateway)
        gateway.wait_ready()
        return gateway

    yield start
    for gateway in started:
        gateway.stop()


def client_of(gateway: GatewayProcess, *, retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=retries, timeout=PATIENCE_S)


def ask(client: openai.OpenAI, *, seed: int, tokens: int, n: int = 1, wanted: dict[str, Any] | None = None) -> Any:
    """A whole answer."""
    extra = {"ignore_eos": True} | ({"weight_version": wanted} if wanted else {})
    return client.completions.create(
        model=MODEL, prompt="1+2=", max_tokens=tokens, seed=seed, n=n, extra_body=extra
    ).to_dict()


def stream(client: openai.OpenAI, *, seed: int, tokens: int, n: int = 1) -> Any:
    """The same, put together from its events; `weight_version` from the last of them that has one."""
    events = client.completions.create(
        model=MODEL, prompt="1+2=", max_tokens=tokens, seed=seed, n=n, stream=True, extra_body={"ignore_eos": True}
    )
    whole: dict[str, Any] = {"choices": [{"text": "", "index": at} for at in range(n)]}
    for event in (chunk.to_dict() for chunk in events):
        choices: Any = event["choices"]
        for choice in choices:
            kept = whole["choices"][choice["index"]]
            kept["text"] += choice["text"]
            kept |= {name: choice[name] for name in ("weight_version",) if name in choice}
        whole |= {name: event[name] for name in ("weight_version",) if name in event}
    return whole


def wait_until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not holds():
        pause.wait(0.02)


def wait_at_engine(gateway: GatewayProcess) -> None:
    """Until a request was let in."""
    wait_until(lambda: httpx.get(f"{gateway.url}/status").json()["requests"]["at_engine"] > 0)


def ask_until_gone(gateway: GatewayProcess, version: int) -> int:
    """Ask for this version alone until another is served; how many answers there were."""
    client = client_of(gateway)
    for turn in count():
        try:
            told = ask(client, seed=turn, tokens=480, wanted={"exact": version, "wait_seconds": PATIENCE_S})
        except openai.ConflictError as refused:
            body: Any = refused.body
            assert "gone_by" == body["code"], body
            return turn
        assert [[version]] == [[s["version"] for s in c["spans"]] for c in told["weight_version"]["choices"]]
        check_stamps(told)
    raise AssertionError


def check_stamps(told: Any) -> list[int]:
    """Every token of every choice is said to be of the version that the engine stamped on it; how many spans each has."""
    said = told["weight_version"]["choices"]
    assert len(said) == len(told["choices"])
    for ours, choice in zip(said, told["choices"], strict=True):
        stamped = [(s["first"], s["last"] + 1, s["version"]) for s in choice["weight_version"]["spans"]]
        assert stamped == [(s["first"], s["last"], s["version"]) for s in ours["spans"]]
        assert (choice["weight_version"]["start"], choice["weight_version"]["end"]) == (ours["start"], ours["end"])
    many = [len(ours["spans"]) for ours in said]
    known = told["weight_version"]["kv"]
    assert "in_flight" == known if max(many) > 1 else known in ("own", "in_flight")  # it may have crossed in its prompt
    return many


@pytest.mark.timeout(600)
def test_every_token_is_of_the_version_that_the_engine_stamped_while_versions_are_committed_under_load(
    fleet: Any, start_gateway: Start
) -> None:
    fleet.publish(1)
    fleet.start_agent()
    engine = fleet.start_engine("--slots", "6", ready=False)  # some wait for a slot while a version changes
    fleet.wait_serving(engine, 1)
    gateway = start_gateway(engine, fleet.node)
    over, restarting = threading.Event(), threading.Event()
    spans: list[int] = []
    lost: list[Exception] = []

    def keep_asking(number: int) -> None:
        client = client_of(gateway)
        seed = 0
        while not over.is_set():
            seed += 1
            how = (ask, stream)[(number + seed) % 2]
            try:
                told = how(client, seed=seed, tokens=20 + 19 * number, n=1 + (number + seed) % 3)
            except (openai.APIError, *CUT_OFF) as error:
                assert restarting.is_set(), f"failed while nothing was restarted: {error!r}"
                lost.append(error)
                continue
            spans.extend(check_stamps(told))

    with ThreadPoolExecutor(CLIENTS) as clients:
        asking = [clients.submit(keep_asking, number) for number in range(CLIENTS)]
        try:
            for version in range(2, 4):
                fleet.publish(version)
                fleet.wait_serving(engine, version)
            fleet.target("Pinned", 2)  # back, by undo
            fleet.wait_serving(engine, 2)
            fleet.target("Latest")
            fleet.wait_serving(engine, 3)
            restarting.set()
            gateway.restart(kill=True)
            gateway.wait_ready()
            again = len(spans)
            fleet.publish(4)
            fleet.wait_serving(engine, 4)
            wait_until(lambda: len(spans) > again + 2 * CLIENTS)
        finally:
            over.set()
        for future in asking:
            future.result(PATIENCE_S)
    assert lost, "no answer was in flight when the gateway was killed"
    assert max(spans) > 1, "no answer crossed a commit"
    assert min(spans) == 1


@pytest.mark.timeout(600)
def test_a_version_is_waited_for_pinned_refused_and_served_again_whatever_is_restarted(
    fleet: Any, start_gateway: Start
) -> None:
    fleet.publish(1)
    agent = fleet.start_agent()
    engine = fleet.start_engine(ready=False)
    fleet.wait_serving(engine, 1)
    gateway = start_gateway(engine, fleet.node, "--kv-reuse", "sessions", "--target", str(fleet.folder / "target.json"))
    client = client_of(gateway)
    kept = [ask(client, seed=1, tokens=8, wanted=wanted) for wanted in (None, {"session": "s"})]
    assert [(1, "own"), (1, "session")] == [tuple(t["weight_version"][n] for n in ("end", "kv")) for t in kept]
    with ThreadPoolExecutor(2) as clients:
        waiting = clients.submit(ask, client, seed=1, tokens=8, wanted={"min": 2, "wait_seconds": PATIENCE_S})
        exactly = clients.submit(ask, client, seed=1, tokens=8, wanted={"exact": 2, "wait_seconds": PATIENCE_S})
        fleet.publish(2)
        assert 2 == waiting.result(PATIENCE_S)["weight_version"]["start"]
        assert (2, 2) == tuple(exactly.result(PATIENCE_S)["weight_version"][name] for name in ("start", "end"))

    # Those that may see version 2 alone keep version 3 out until they have ended, and do not starve it
    with ThreadPoolExecutor(CLIENTS) as clients:
        asking = [clients.submit(ask_until_gone, gateway, 2) for _ in range(CLIENTS)]
        wait_at_engine(gateway)
        fleet.publish(3)
        assert all(future.result(PATIENCE_S) > 0 for future in asking)
    fleet.wait_serving(engine, 3)

    with pytest.raises(openai.ConflictError) as gone:
        ask(client, seed=1, tokens=8, wanted={"exact": 2})
    body: Any = gone.value.body
    assert ("gone_by", 3, 3, False) == tuple(body[name] for name in ("code", "applied", "target", "retry"))
    with pytest.raises(openai.ConflictError) as early:
        ask(client, seed=1, tokens=8, wanted={"min": 4, "wait_seconds": 0})
    assert ("not_yet", True) == (early.value.body["code"], early.value.body["retry"])  # type: ignore[index]

    # The pool's bound, by the file that agent and gateway both read, holds while head is read and not beyond
    fleet.target("Latest", maxLagSeconds=5, generation=2)
    wait_until(lambda: fleet.status()["generation"] == 2 == httpx.get(f"{gateway.url}/status").json()["generation"])
    assert 3 == ask(client, seed=1, tokens=8)["weight_version"]["end"]
    fleet.hide_store()
    wait_until(lambda: (httpx.get(f"{gateway.url}/status").json()["lag_seconds_most"] or 0.0) > 5.0)
    with pytest.raises(openai.ConflictError) as blind:
        ask(client, seed=1, tokens=8, wanted={"max_lag_seconds": 3600, "wait_seconds": 0})
    body = blind.value.body
    assert ("lag_unknown", 3, 0) == tuple(body[name] for name in ("code", "applied", "lag_versions"))
    assert 200 == httpx.get(f"{gateway.url}/readyz").status_code
    fleet.show_store()
    assert 3 == ask(client, seed=1, tokens=8, wanted={"min": 3, "wait_seconds": PATIENCE_S})["weight_version"]["end"]
    fleet.target("Latest", generation=3)
    wait_until(lambda: httpx.get(f"{gateway.url}/status").json()["generation"] == 3)

    # A gateway that is killed, or ended, comes back knowing what is served; a client that may try again has its answer
    persistent = client_of(gateway, retries=8)
    for kill in (True, False):
        gateway.restart(kill=kill)
        assert 3 == ask(persistent, seed=1, tokens=8, wanted={"min": 1})["weight_version"]["end"]

    # The engine serves on while its agent is away, and nobody can say what: an agent that comes again can
    agent.kill()
    agent.wait(10)
    told = ask(persistent, seed=1, tokens=8)
    assert (None, 3) == (told["weight_version"]["start"], told["choices"][0]["weight_version"]["start"])
    with pytest.raises(openai.InternalServerError):
        ask(client, seed=1, tokens=8, wanted={"min": 1})
    assert 503 == httpx.get(f"{gateway.url}/readyz").status_code
    fleet.start_agent()
    gateway.wait_ready()
    assert (3, 3) == tuple(ask(client, seed=1, tokens=8)["weight_version"][name] for name in ("start", "end"))

    # Another writer takes the run over: its first version, which changes nothing, is of the next epoch
    fleet.take_over()
    taken = [ask(client, seed=1, tokens=8, wanted={"min": 4, "wait_seconds": PATIENCE_S}), told, kept[0]]
    assert [(4, 2), (None, None), (1, 1)] == [
        (one["weight_version"]["end"], one["weight_version"]["epoch"]) for one in taken
    ]

    engine.kill()
    with pytest.raises(openai.InternalServerError) as dead:
        ask(client, seed=1, tokens=8)
    assert "1" == dead.value.response.headers["Retry-After"]
