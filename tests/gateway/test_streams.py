"""Streams through a real gateway: event by event, labelled at their end, broken off honestly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientPayloadError, web

from syncline_agent.gateway.events import MOST_EVENT_BYTES
from syncline_agent.gateway.routes import Kind
from syncline_agent.testing.lanes import Lane, open_lane, run

ASK = {"model": "m", "prompt": "x", "max_tokens": 4, "stream": True}


def chunk(tokens: int, *, index: int = 0, finish: str | None = None, text: str = "a", **more: Any) -> dict[str, Any]:
    choice = {"index": index, "text": text * tokens, "token_ids": [7] * tokens, "finish_reason": finish}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]} | more


async def begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    return response


async def send(response: web.StreamResponse, *events: dict[str, Any] | str) -> None:
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        await response.write(f"data: {data}\n\n".encode())


async def events_of(lane: Lane, body: dict[str, Any], path: str = "/v1/completions") -> AsyncIterator[Any]:
    async with lane.http.post(path, json=body) as answer:
        assert 200 == answer.status
        assert "chunked" == answer.headers["Transfer-Encoding"]
        async for line in answer.content:
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ").strip()
                yield "[DONE]" if data == b"[DONE]" else json.loads(data)


def spans(told: Any) -> list[Any]:
    choices = told["weight_version"]["choices"]
    return [[(s["first"], s["last"], s["version"]) for s in choice["spans"]] for choice in choices]


def test_each_event_passes_as_it_comes_and_the_last_says_which_versions_drew_which_tokens(tmp_path: Path) -> None:
    lanes: list[Lane] = []
    going = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await send(response, chunk(1), chunk(2))
        await going.wait()
        lanes[0].agent.commit(8, spans={f"cmpl-{request.headers['X-Request-Id']}-0": 3})
        await send(
            response, chunk(1, finish="length"), {"id": "cmpl-1", "choices": [], "usage": {"total_tokens": 5}}, "[DONE]"
        )
        return response

    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            told: list[Any] = []
            async for event in events_of(lane, ASK):
                told.append(event)
                if len(told) == 2:
                    going.set()  # nothing of what came was kept back
            assert (5, "[DONE]") == (len(told), told[-1])
            assert [[(0, 3, 7), (3, 4, 8)]] == spans(told[2])
            assert ["a", "aa", "a"] == [event["choices"][0]["text"] for event in told[:3]]
            assert all(event["choices"][0]["token_ids"] is None for event in told[:3])
            assert {"total_tokens": 5} == told[3]["usage"]
            assert True is json.loads(lane.engine.bodies[0])["return_token_ids"]

    run(go())


def test_the_label_waits_for_the_last_of_several_choices(tmp_path: Path) -> None:
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await send(response, chunk(1, index=1), chunk(1, index=0, finish="stop"))
        lanes[0].agent.commit(
            8,
            spans={f"1_cmpl-{request.headers['X-Request-Id']}-0": 1},
            ended=[f"0_cmpl-{request.headers['X-Request-Id']}-0"],
        )
        await send(response, chunk(2, index=1), chunk(0, index=1, finish="stop"), "[DONE]")
        return response

    async def go() -> list[Any]:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            return [event async for event in events_of(lane, ASK | {"n": 2, "return_token_ids": True})]

    told = run(go())
    assert [False, False, False, True] == ["weight_version" in event for event in told[:4]]
    assert [[(0, 1, 7)], [(0, 1, 7), (1, 3, 8)]] == spans(told[3])
    assert [7, 7] == told[2]["choices"][0]["token_ids"]


@pytest.mark.parametrize("done", [True, False])
def test_a_stream_that_ends_without_a_last_choice_is_labelled_by_an_event_of_its_own(
    tmp_path: Path, done: bool
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await send(response, chunk(1), *(["[DONE]"] if done else []))
        return response

    async def go() -> list[Any]:
        async with open_lane(tmp_path, answer) as lane:
            return [event async for event in events_of(lane, ASK)]

    told = run(go())
    assert ("cmpl-1", "text_completion", [], 7) == (
        *(told[1][name] for name in ("id", "object", "choices")),
        told[1]["weight_version"]["start"],
    )
    assert (["[DONE]"] if done else []) == told[2:]


def test_tokens_that_an_engine_hides_are_not_taken_for_none(tmp_path: Path) -> None:
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        lanes[0].agent.commit(8, spans={f"chatcmpl-{request.headers['X-Request-Id']}": 0})
        for delta, finish in (({"role": "assistant", "content": ""}, None), ({"content": "x"}, None), ({}, "stop")):
            await send(response, {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        await send(response, "[DONE]")
        return response

    async def go() -> list[Any]:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            body = {"model": "m", "messages": [], "stream": True}
            return [event async for event in events_of(lane, body, "/v1/chat/completions")]

    told = run(go())
    assert None is told[2]["weight_version"]["start"]
    assert "cannot be counted" in told[2]["weight_version"]["unknown"]


def test_a_stream_of_another_version_than_was_asked_for_ends_with_an_error(tmp_path: Path) -> None:
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await send(response, chunk(1))
        lanes[0].agent.commit(6, spans={f"cmpl-{request.headers['X-Request-Id']}-0": 1})
        await send(response, chunk(1, finish="stop"), "[DONE]")
        return response

    async def go() -> list[Any]:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            return [event async for event in events_of(lane, ASK | {"weight_version": {"min": 7}})]

    told = run(go())
    assert ("crossed", 7, 6) == (
        told[2]["error"]["code"],
        *(told[2]["error"]["weight_version"][name] for name in ("start", "end")),
    )


def test_an_engine_that_dies_within_a_stream_is_told_as_an_error_and_labels_nothing(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await send(response, chunk(1))
        await response.write(b'data: {"id": "half')
        assert request.transport is not None
        request.transport.abort()
        return response

    async def go() -> tuple[list[Any], str]:
        async with open_lane(tmp_path, answer) as lane:
            told = [event async for event in events_of(lane, ASK)]
            return told, await (await lane.http.get("/metrics")).text()

    told, metrics = run(go())
    assert (2, "engine_lost") == (len(told), told[1]["error"]["code"])
    assert 'outcome="failed",reason="engine_lost"} 1.0' in metrics


def test_an_engine_that_dies_within_a_whole_answer_is_503_and_within_a_passed_one_cut_off(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"object": "list"')
        assert request.transport is not None
        request.transport.abort()
        return response

    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            status, got, _ = await lane.ask(ASK | {"stream": False})
            assert (503, "engine_lost") == (status, got["error"]["code"])
            with pytest.raises(ClientPayloadError):
                async with lane.http.get("/v1/models") as cut:
                    await cut.read()

    run(go())


def test_an_error_that_the_engine_streams_passes_and_is_not_labelled(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await send(response, {"error": {"message": "out of service"}}, "[DONE]")
        return response

    async def go() -> list[Any]:
        async with open_lane(tmp_path, answer) as lane:
            return [event async for event in events_of(lane, ASK)]

    assert [{"error": {"message": "out of service"}}, "[DONE]"] == run(go())


@pytest.mark.parametrize("when", ["before its answer", "within it"])
def test_a_client_that_hangs_up_ends_its_request_at_the_engine(tmp_path: Path, when: str) -> None:
    lanes: list[Lane] = []
    pinned: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        pinned.append(lanes[0].agent.pins.out)
        if when == "before its answer":
            await asyncio.Event().wait()
        response = await begin(request)
        while True:
            await send(response, chunk(1))
            await asyncio.sleep(0.01)

    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)

            async def ask() -> None:
                async for _ in events_of(lane, ASK | {"weight_version": {"exact": 7}}):
                    return

            asking = asyncio.create_task(ask())
            while not pinned:
                await asyncio.sleep(0.01)
            if when == "before its answer":
                asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            while not lane.engine.left or lane.agent.pins.out:
                await asyncio.sleep(0.01)
            assert [1] == pinned
            told = await (await lane.http.get("/metrics")).text()
            assert 'syncline_gateway_requests_total{outcome="left",reason=""} 1.0' in told
            assert 'syncline_gateway_in_flight{begun="applied"} 0.0' in told

    run(go())


def test_a_client_that_does_not_read_holds_the_engine_back_and_not_the_gateway_s_memory(tmp_path: Path) -> None:
    sent = 0
    piece = b"data: " + json.dumps(chunk(1, text="x" * 60_000)).encode() + b"\n\n"

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = await begin(request)
        for _ in range(2000):
            await response.write(piece)
            sent += len(piece)
        return response

    async def go() -> None:
        async with open_lane(tmp_path, answer, stall_seconds=2.0) as lane:
            host, port = lane.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 10)
            body = json.dumps(ASK).encode()
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await reader.readuntil(b"data: ")
            while not lane.engine.left:
                await asyncio.sleep(0.02)
            assert sent < 40 << 20  # what the kernel's buffers of four sockets hold, of 120 MB
            writer.close()

    run(go())


def test_an_event_of_many_lines_or_none_passes_and_so_does_a_comment(tmp_path: Path) -> None:
    odd = b": keep-alive\r\n\r\nevent: x\ndata: 1\ndata: 2\n\ndata: 17\n\ndata:{\n\n\n\nretry: 3\n\n"

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        for at in range(len(odd)):
            await response.write(odd[at : at + 1])
        await send(response, chunk(1, finish="stop"))
        await response.write(b"data: [DONE]\n\nrest")
        return response

    async def go() -> bytes:
        async with open_lane(tmp_path, answer) as lane, lane.http.post("/v1/completions", json=ASK) as got:
            return await got.read()

    got = run(go())
    assert got.startswith(odd)
    assert got.endswith(b"data: [DONE]\n\nrest")


def test_a_stream_with_an_event_that_is_too_long_goes_on_byte_for_byte_and_unlabelled(tmp_path: Path) -> None:
    sent = b"data: 1\n\ndata: " + b"x" * (MOST_EVENT_BYTES + (1 << 20)) + b"\n\ndata: [DONE]\n\n"

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await response.write(sent)
        return response

    async def go() -> tuple[bytes, str]:
        async with open_lane(tmp_path, answer) as lane, lane.http.post("/v1/completions", json=ASK) as got:
            body = await got.read()
            return body, await (await lane.http.get("/metrics")).text()

    body, metrics = run(go())
    assert sent == body
    assert 'outcome="answered",reason="unlabelled"} 1.0' in metrics


def test_vllm_s_own_route_is_labelled_beside_what_it_says_itself(tmp_path: Path) -> None:
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert "return_token_ids" not in await request.json()
        response = await begin(request)
        name = request.headers["X-Request-Id"]
        lanes[0].agent.commit(8, spans={f"generate-tokens-{name}": 1})
        own = [{"version": "7", "start": 0, "end": 1}]
        last = {"index": 0, "token_ids": [5, 6], "finish_reason": "stop", "weight_versions": own}
        await send(response, {"request_id": "r", "choices": [last]}, "[DONE]")
        return response

    async def go() -> list[Any]:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            body = {"model": "m", "token_ids": [1], "sampling_params": {"max_tokens": 2}, "stream": True}
            return [event async for event in events_of(lane, body, "/inference/v1/generate")]

    told = run(go())
    assert [[(0, 1, 7), (1, 2, 8)]] == spans(told[0])
    assert ([5, 6], "7") == (told[0]["choices"][0]["token_ids"], told[0]["choices"][0]["weight_versions"][0]["version"])


@pytest.mark.parametrize(
    ("stamps", "label"),
    [
        ([("7", 0, 2), ("8", 2, 5)], [(0, 2, 7), (2, 5, 8)]),
        ([("main@7.90ab12cd", 0, 2), ("main@8.0123abcd", 2, 5)], [(0, 2, 7), (2, 5, 8)]),
        ([("8", 0, 5)], [(0, 5, 8)]),
        ([("7", 0, 0)], []),
        ([("default", 0, 5)], None),
        ([("6", 0, 2), ("8", 2, 5)], None),
        ([("7", 0, 2), ("8", 3, 5)], None),
        ([("7", "0", 2)], None),
        (None, None),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_sglang_s_own_stamps_are_taken_where_they_are_of_versions_that_were_applied_meanwhile(
    tmp_path: Path, stamps: Any, label: Any, streamed: bool
) -> None:
    lanes: list[Lane] = []
    told = None if stamps is None else [{"version": v, "start": start, "end": end} for v, start, end in stamps]
    last = {"text": "ab", "meta_info": {"finish_reason": {"type": "stop"}, "weight_versions": told}}

    async def answer(request: web.Request) -> web.StreamResponse:
        lanes[0].agent.commit(8, spans=None, ended=None)
        if not streamed:
            return web.json_response(last)
        response = await begin(request)
        await send(response, {"text": "a", "meta_info": {"finish_reason": None, "weight_versions": []}}, last, "[DONE]")
        return response

    async def go() -> Any:
        async with open_lane(tmp_path, answer, kind=Kind.SGLANG) as lane:
            lanes.append(lane)
            if streamed:
                events = [event async for event in events_of(lane, {"text": "x", "stream": True}, "/generate")]
                return next(event for event in events if "weight_version" in event)
            return (await lane.ask({"text": "x"}, "/generate"))[1]

    said = run(go())
    assert last["meta_info"] == said["meta_info"]
    if label is None:
        assert None is said["weight_version"]["start"]
        assert said["weight_version"]["unknown"]
    else:
        assert [label] == spans(said)


def test_sglang_s_own_route_is_labelled_while_no_commit_comes(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await send(response, {"text": "a", "meta_info": {"finish_reason": None}})
        await send(response, {"text": "ab", "meta_info": {"finish_reason": {"type": "stop"}, "weight_version": "7"}})
        await send(response, "[DONE]")
        return response

    async def go() -> list[Any]:
        async with open_lane(tmp_path, answer, kind=Kind.SGLANG) as lane:
            body = {"text": "x", "rid": "mine", "stream": True, "weight_version": {"min": 7}}
            told = [event async for event in events_of(lane, body, "/generate")]
            sent = json.loads(lane.engine.bodies[0])
            assert sent.pop("extra_key").startswith("syncline-")
            assert {"text": "x", "rid": "mine", "stream": True} == sent
            return told

    told = run(go())
    assert ("ab", "7", 7, 7) == (
        told[1]["text"],
        told[1]["meta_info"]["weight_version"],
        *(told[1]["weight_version"][name] for name in ("start", "end")),
    )
