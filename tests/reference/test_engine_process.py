"""Real engine processes behind a real arm socket: commits under load, and what is killed and comes back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from syncline import faults
from syncline.errors import EngineUncertain
from syncline.versions import Policy
from syncline_agent.arm.server import ArmServer
from syncline_agent.testing.islands import wait_until

Start = Callable[..., Any]


def test_an_engine_proves_its_weights_and_answers_with_their_version(tiny: Any, start_engine: Start) -> None:
    engine = start_engine()
    answer = engine.complete(n=2, seed=4)
    assert "text_completion" == answer["object"]
    assert {"prompt_tokens": 5, "completion_tokens": 80, "total_tokens": 85} == answer["usage"]
    for choice in answer["choices"]:
        assert {"start": 1, "end": 1, "spans": [{"first": 0, "last": 39, "version": 1}]} == choice["weight_version"]
        tiny.check_replay(choice)
    assert answer["choices"][0]["text"] != answer["choices"][1]["text"]
    status = engine.status()
    assert (1, tiny.run.digest(1), True) == tuple(status["applied"][k] for k in ("version", "digest", "proven"))
    assert 200 == engine.http.get("/livez").status_code
    assert "syncline_generated_tokens_total 80.0" in engine.metrics()


def test_every_token_of_every_answer_came_from_the_version_stamped_on_it_while_versions_change(
    tiny: Any, agent: ArmServer, start_engine: Start
) -> None:
    engine = start_engine("--slots", "6")
    assert agent.wait_connected(10)
    for _ in range(5):
        tiny.step()
    going = threading.Event()
    answers: list[dict[str, Any]] = []

    def ask(seed: int) -> None:
        while not going.is_set():
            answers.append(engine.complete(seed=seed, max_tokens=80, n=2))

    with ThreadPoolExecutor(4) as clients:
        asking = [clients.submit(ask, seed) for seed in range(4)]
        try:
            for version in range(2, 9):
                agent.stage(tiny.request(version - 1, version))
                done = agent.commit(version, Policy.KEEP)
                assert tiny.run.digest(version) == done.digest
                threading.Event().wait(0.15)
        finally:
            going.set()
        for future in asking:
            future.result(60)
    choices = [c for answer in answers for c in answer["choices"]]
    mixed = [c for c in choices if len(c["weight_version"]["spans"]) > 1]
    assert mixed, "no request was in flight while a version changed"
    assert {8} == {c["weight_version"]["end"] for c in answers[-1]["choices"]} or len(answers) > 8
    for choice in [*mixed[:8], *choices[:4]]:
        spans = choice["weight_version"]["spans"]
        assert [0, *(s["last"] + 1 for s in spans[:-1])] == [s["first"] for s in spans]
        assert 79 == spans[-1]["last"]
        assert (spans[0]["version"], spans[-1]["version"]) == (
            choice["weight_version"]["start"],
            choice["weight_version"]["end"],
        )
        tiny.check_replay(choice)
    assert agent.sweep().proven


INSIDE = [p for p in faults.APPLY_POINTS if faults.APPLY_POINTS[p].startswith("inside the engine")]


@pytest.mark.parametrize("point", INSIDE)
def test_an_engine_killed_in_its_write_comes_back_proven_and_follows(
    tiny: Any, agent: ArmServer, start_engine: Start, point: str
) -> None:
    engine = start_engine(kill_at=point)
    assert agent.wait_connected(10)
    agent.stage(tiny.request(1, 2))
    with pytest.raises(EngineUncertain):
        agent.commit(2, Policy.KEEP)
    assert -signal.SIGKILL == engine.process.wait(10)
    again = start_engine()
    assert agent.wait_connected(10)
    described = agent.describe()
    assert described.applied is not None
    assert (1, True) == (described.applied.version, described.applied.proven)
    agent.stage(tiny.request(1, 3))
    assert 3 == agent.commit(3, Policy.KEEP).version
    assert agent.sweep().proven
    tiny.check_replay(again.complete()["choices"][0])


def test_a_second_engine_on_one_socket_is_turned_away_and_takes_over_when_the_first_is_gone(
    tiny: Any, agent: ArmServer, start_engine: Start
) -> None:
    first = start_engine()
    assert agent.wait_connected(10)
    second = start_engine(ready=False)
    refused = (
        f"pod pod-0 has two engines on this socket; end the older one (process {first.process.pid} and its children)"
    )
    wait_until(lambda: second.status()["applied"] is not None)  # it has loaded
    wait_until(lambda: second.status()["arm"] == f"refused: {refused}")
    assert (refused, None) == (agent.describe().second, agent.describe().error)
    agent.stage(tiny.request(1, 2))
    assert 2 == agent.commit(2, Policy.KEEP).version
    assert (2, 1) == (first.status()["applied"]["version"], second.status()["applied"]["version"])
    first.kill()
    second.wait_ready()
    agent.stage(tiny.request(1, 3))
    assert 3 == agent.commit(3, Policy.KEEP).version


def test_the_kill_points_inside_the_engine_are_two() -> None:
    assert ["apply.scattering", "apply.scattered"] == INSIDE


def test_an_engine_told_to_end_ends_cleanly_with_requests_in_flight(start_engine: Start) -> None:
    engine = start_engine()
    events = engine.stream(max_tokens=450)
    next(events)
    engine.process.terminate()
    try:
        rest = list(events)
    except httpx.RemoteProtocolError:
        rest = []
    assert not rest or rest[-1]["choices"][0]["finish_reason"] in ("abort", "length")
    assert 0 == engine.process.wait(15)
