"""`/v1/completions` as an OpenAI client knows it, on one engine that nobody follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def engine(engine_here: Callable[..., Any]) -> Any:
    return engine_here(slots=4)


def test_a_seed_gives_the_same_answer_alone_and_in_a_crowd(engine: Any) -> None:
    alone = engine.complete(seed=6)["choices"][0]
    crowd = engine.complete(seed=3, n=8, prompt=["1+2=", "abc"])["choices"]
    assert list(range(16)) == [c["index"] for c in crowd]
    assert alone["token_ids"] == crowd[3]["token_ids"]  # seed 3 + choice 3
    assert alone["token_ids"] != crowd[11]["token_ids"]


def test_prompts_and_choices_are_numbered_prompt_by_prompt(engine: Any) -> None:
    answer = engine.complete(prompt=["1", "22"], n=2, max_tokens=2)
    prompts = [len(c["prompt_token_ids"]) for c in answer["choices"]]
    assert [2, 2, 3, 3] == prompts
    assert {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13} == answer["usage"]


def test_greedy_answers_are_equal_and_take_the_likeliest_token(engine: Any) -> None:
    first, second = engine.complete(temperature=0, n=2, logprobs=3)["choices"]
    assert first["token_ids"] == second["token_ids"]
    for logprob, top in zip(first["logprobs"]["token_logprobs"], first["logprobs"]["top_logprobs"], strict=True):
        assert 3 == len(top)
        assert logprob == pytest.approx(max(top.values()), abs=1e-6)


def test_a_stop_string_ends_the_text_before_it(engine: Any) -> None:
    free = engine.complete(seed=2, max_tokens=60)["choices"][0]
    stop = free["text"][20:22]
    choice = engine.complete(seed=2, max_tokens=60, stop=[stop, "never said"])["choices"][0]
    assert free["text"][: free["text"].index(stop)] == choice["text"]
    assert "stop" == choice["finish_reason"]
    streamed = [e["choices"][0] for e in engine.stream(seed=2, max_tokens=60, stop=stop)]
    assert choice["text"] == "".join(c["text"] for c in streamed)
    assert choice["token_ids"] == [t for c in streamed for t in c["token_ids"]]


def test_the_end_token_ends_an_answer_and_stands_in_its_tokens(engine: Any) -> None:
    ended = engine.complete(n=64, max_tokens=60, ignore_eos=False, seed=1)["choices"]
    stopped = [c for c in ended if c["finish_reason"] == "stop"]
    assert stopped
    assert all(2 == c["token_ids"][-1] and 2 not in c["token_ids"][:-1] for c in stopped)
    assert all(len(c["token_ids"]) == c["weight_version"]["spans"][-1]["last"] + 1 for c in ended)


def test_logprobs_and_token_ids_come_only_when_asked_for(engine: Any) -> None:
    answer = engine.http.post("/v1/completions", json={"prompt": "1", "max_tokens": 3}).json()
    choice = answer["choices"][0]
    assert choice["logprobs"] is None
    assert "token_ids" not in choice
    assert 1 == choice["weight_version"]["start"]


def test_text_offsets_point_at_the_text_of_each_token(engine: Any) -> None:
    choice = engine.complete(seed=8)["choices"][0]
    pieces = choice["logprobs"]["tokens"]
    for piece, at in zip(pieces, choice["logprobs"]["text_offset"], strict=True):
        assert piece.startswith("<") or choice["text"][at : at + 1] == piece


def test_a_request_id_of_the_gateway_is_kept(engine: Any) -> None:
    body = {"prompt": "1", "max_tokens": 1}
    assert "cmpl-g7" == engine.http.post("/v1/completions", json=body, headers={"X-Request-Id": "g7"}).json()["id"]
    assert "cmpl-b8" == engine.http.post("/v1/completions", json=body | {"request_id": "b8"}).json()["id"]
    first, second = (engine.http.post("/v1/completions", json=body).json()["id"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b'{"prompt": "1", "n": 0}', 400, "n"),
        (b'{"prompt": "1", "model": "other"}', 404, "model"),
        (b'{"prompt": "\xff"}', 400, None),
    ],
)
def test_a_bad_request_is_answered_in_openai_s_shape(engine: Any, body: bytes, status: int, param: str | None) -> None:
    answer = engine.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert status == answer.status_code
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} == set(error)
    assert param == error["param"]
    assert 'outcome="refused"' in engine.metrics()


def test_what_is_not_there_is_said_in_the_same_shape(engine: Any) -> None:
    assert "error" in engine.http.get("/v1/chat").json()
    answer = engine.http.get("/v1/completions")
    assert (405, "POST") == (answer.status_code, answer.headers["Allow"])


def test_a_full_queue_refuses_for_now(engine: Any) -> None:
    answer = engine.http.post("/v1/completions", json={"prompt": ["1"] * 1000, "max_tokens": 1})
    assert 200 == answer.status_code
    scheduler = engine.engine.running.scheduler
    scheduler._waiting_max = 3
    answer = engine.http.post("/v1/completions", json={"prompt": ["1"] * 4, "max_tokens": 1})
    assert (503, "1") == (answer.status_code, answer.headers["Retry-After"])
    assert "at most 3" in answer.json()["error"]["message"]


def test_the_models_and_the_status_name_what_is_served(engine: Any) -> None:
    assert ["syncline-reference"] == [m["id"] for m in engine.http.get("/v1/models").json()["data"]]
    status = engine.status()
    assert (None, "connecting", {"active": 0, "waiting": 0}) == (
        status["unready"],
        status["arm"].partition(":")[0],
        status["requests"],
    )


def test_an_id_that_is_in_flight_is_not_taken_twice(engine: Any) -> None:
    events = engine.stream(request_id="same", max_tokens=400)
    next(events)
    answer = engine.http.post("/v1/completions", json={"prompt": "1", "request_id": "same"})
    assert (409, "request_id") == (answer.status_code, answer.json()["error"]["param"])
    assert 400 == sum(len(e["choices"][0]["token_ids"]) for e in events) + 1
    assert "cmpl-same" == engine.complete(request_id="same", max_tokens=1)["id"]


@pytest.mark.parametrize("given", [b"\xff\xfe", b"x" * 257])
def test_an_id_in_the_header_that_no_span_table_could_name_is_refused(engine: Any, given: bytes) -> None:
    answer = engine.http.post("/v1/completions", json={"prompt": "1"}, headers={"X-Request-Id": given})
    assert (400, "request_id") == (answer.status_code, answer.json()["error"]["param"])


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"[" * 100_000, "application/json"),
        (b"{}", "application/json; charset=klingon"),
        (b"\xff", "application/json"),
    ],
    ids=["too deep", "an unknown charset", "not UTF-8"],
)
def test_a_body_that_is_no_json_is_refused_in_openai_s_shape(engine: Any, body: bytes, kind: str) -> None:
    answer = engine.http.post("/v1/completions", content=body, headers={"Content-Type": kind})
    assert 400 == answer.status_code
    assert "the body is not JSON" in answer.json()["error"]["message"]
