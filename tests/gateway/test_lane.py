"""Requests through a real gateway: what the engine is asked, what the client is told, and what is never passed on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from syncline.clock import SystemClock
from syncline.logs import logger
from syncline_agent.engine import Crossing
from syncline_agent.gateway.agent import Agent, Entries, Entry, State
from syncline_agent.gateway.bounds import NO_BOUNDS
from syncline_agent.gateway.door import Door
from syncline_agent.gateway.measuring import GatewayMetrics
from syncline_agent.gateway.mirror import Mirror
from syncline_agent.gateway.pool import PoolPolicy
from syncline_agent.gateway.routes import Kind
from syncline_agent.gateway.settings import GatewaySettings
from syncline_agent.gateway.wanted import Wanted
from syncline_agent.testing.lanes import Lane, applied, open_lane, run

ASK = {"model": "m", "prompt": "x", "max_tokens": 4}


def completion(tokens: int = 4, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": "abcd", "finish_reason": "length"}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    } | more


async def answer_whole(_: web.Request) -> web.Response:
    return web.json_response(completion())


def test_an_answer_says_its_version_and_everything_else_passes_untouched(tmp_path: Path) -> None:
    said = completion(routed_experts="AA==", nested={"weight_version": 1, "x": [1.50, "é"]})

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(said, headers={"X-Engine": "here", "Connection": "x-hop", "X-Hop": "1"})

    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            body = ASK | {"weight_version": {"min": 7}, "unknown": {"weight_version": {"min": 9}}, "request_id": "mine"}
            status, got, headers = await lane.ask(body, x_custom="kept", x_syncline_max_lag="3")
            assert 200 == status
            label = got.pop("weight_version")
            assert said == got
            assert (7, 7, "lineage-1", applied(7).digest[:12], True, "demo") == tuple(
                label[name] for name in ("start", "end", "lineage", "digest", "proven", "run")
            )
            spans = [{"first": 0, "last": 4, "version": 7}]
            assert [{"index": 0, "start": 7, "end": 7, "spans": spans}] == label["choices"]
            assert ("7", "7", "here", None) == tuple(
                headers.get(name)
                for name in ("x-syncline-version-start", "x-syncline-version-end", "X-Engine", "X-Hop")
            )
            asked = lane.engine.asked[0]
            sent = json.loads(lane.engine.bodies[0])
            assert sent.pop("cache_salt").startswith("syncline-")
            assert ASK | {"unknown": {"weight_version": {"min": 9}}} == sent
            assert ("kept", None) == (asked.headers.get("x-custom"), asked.headers.get("x-syncline-max-lag"))
            assert asked.headers["X-Request-Id"].startswith("mine-")
            assert asked.headers["X-Request-Id"] == label["request_id"] == headers["X-Request-Id"]

    run(go())


def test_tokens_are_told_apart_by_what_the_engine_counted_at_the_commits_in_between(tmp_path: Path) -> None:
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.Response:
        name = f"cmpl-{request.headers['X-Request-Id']}-0"
        lanes[0].agent.commit(8, spans={name: 0})
        lanes[0].agent.commit(9, spans={name: 3, "another": 1}, ended=["others"])
        return web.json_response(completion())

    async def go() -> dict[str, Any]:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            return (await lane.ask(ASK))[1]["weight_version"]

    label = run(go())
    assert (8, 9, applied(9).digest[:12]) == (label["start"], label["end"], label["digest"])
    assert [(0, 3, 8), (3, 4, 9)] == [(s["first"], s["last"], s["version"]) for s in label["choices"][0]["spans"]]


def test_an_answer_says_the_writer_s_epoch_of_its_last_version_though_the_agent_learns_it_late(tmp_path: Path) -> None:
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.Response:
        agent = lanes[0].agent
        if agent.version == 7:
            agent.epochs.learn("lineage-1", "main", 8, 2)
            agent.commit(8, spans={f"cmpl-{request.headers['X-Request-Id']}-0": 2})
        return web.json_response(completion())

    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            _, got, headers = await lane.ask(ASK)
            assert (7, 8, 2, "2") == (
                *(got["weight_version"][name] for name in ("start", "end", "epoch")),
                headers["x-syncline-epoch"],
            )
            lane.agent.commit(9, spans={}, ended=[])
            _, got, headers = await lane.ask(ASK)
            assert (9, None, None) == (
                *(got["weight_version"][name] for name in ("end", "epoch")),
                headers.get("x-syncline-epoch"),
            )
            lane.agent.epochs.learn("lineage-1", "main", 9, 3)
            while (await (await lane.http.get("/status")).json())["epoch"] != 3:
                await asyncio.sleep(0.01)
            assert 3 == (await lane.ask(ASK))[1]["weight_version"]["epoch"]

    run(go())


@pytest.mark.parametrize("what", ["uncounted", "lost", "another agent", "no agent"])
def test_where_nobody_can_tell_no_version_is_named_and_who_asked_for_one_gets_no_answer(
    tmp_path: Path, what: str
) -> None:
    lanes: list[Lane] = []

    async def answer(_: web.Request) -> web.Response:
        agent = lanes[0].agent
        if what == "uncounted":
            agent.commit(8, spans=None, ended=None)
        elif what == "lost":
            agent.lose()
            agent.find(8)
        elif what == "no agent":
            await agent.stop()
        else:
            await agent.stop()
            other = type(agent)(agent.socket, "log-2")
            other.find(8)
            lanes[0].agent = other
            await other.start()
        return web.json_response(completion())

    async def go(body: dict[str, Any]) -> tuple[int, Any]:
        async with open_lane(tmp_path, answer) as lane:
            lanes[:] = [lane]
            status, got, _ = await lane.ask(body)
            await lane.agent.stop()
            return status, got

    status, got = run(go(ASK))
    assert (200, None, None) == (status, got["weight_version"]["start"], got["weight_version"]["end"])
    assert got["weight_version"]["unknown"]
    status, got = run(go(ASK | {"weight_version": {"min": 1}}))
    assert (409, "crossed", True) == (status, got["error"]["code"], got["error"]["retry"])


def test_an_answer_of_a_version_that_was_not_asked_for_is_not_handed_out(tmp_path: Path) -> None:
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.Response:
        lanes[0].agent.commit(6, spans={f"cmpl-{request.headers['X-Request-Id']}-0": 2})  # an undo
        return web.json_response(completion())

    async def go() -> tuple[int, Any, Any]:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            return await lane.ask(ASK | {"weight_version": {"min": 7}})

    status, got, headers = run(go())
    assert (409, "crossed", "true") == (status, got["error"]["code"], headers["x-should-retry"])
    assert (7, 6) == (got["error"]["weight_version"]["start"], got["error"]["weight_version"]["end"])


def test_a_request_waits_for_its_version_and_has_the_agent_look_at_once(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_lane(tmp_path, answer_whole) as lane:
            body = ASK | {"weight_version": {"min": 8, "wait_seconds": 60}}
            asking = asyncio.create_task(lane.ask(body))
            while not lane.agent.wakes:
                await asyncio.sleep(0.01)
            assert not lane.engine.asked
            lane.agent.commit(8, spans={})
            status, got, _ = await asking
            assert (200, 8) == (status, got["weight_version"]["start"])

    run(go())


def test_a_version_that_does_not_come_is_refused_with_what_is_there_and_whether_to_ask_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_lane(tmp_path, answer_whole) as lane:
            status, got, headers = await lane.ask(ASK | {"weight_version": {"min": 9, "wait_seconds": 0.05}})
            told = got["error"]
            assert (409, "not_yet", 7, 7, True) == (status, *(told[n] for n in ("code", "applied", "target", "retry")))
            assert ("5", "true", "7", "7") == tuple(
                headers[name] for name in ("Retry-After", "x-should-retry", "x-syncline-applied", "x-syncline-target")
            )
            status, got, headers = await lane.ask(ASK, x_syncline_exact_version="6")
            assert (409, "gone_by", False, None) == (
                status,
                *(got["error"][name] for name in ("code", "retry", "retry_after")),
            )
            assert ("false", None) == (headers["x-should-retry"], headers.get("Retry-After"))
            assert not lane.engine.asked

    run(go())


def test_nothing_is_let_in_before_anything_was_proven_nor_while_the_engine_is_out(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_lane(tmp_path, answer_whole, serves=None) as lane:
            status, got, headers = await lane.ask(ASK)
            assert (503, "never_proven", "1") == (status, got["error"]["code"], headers["Retry-After"])
            assert 503 == (await lane.http.get("/readyz")).status
            assert (503, 200) == ((await lane.http.get("/health")).status, (await lane.http.get("/livez")).status)
            lane.agent.find(7)
            while (await lane.http.get("/readyz")).status != 200:
                await asyncio.sleep(0.01)
            assert "proven: version 7\n" == await (await lane.http.get("/readyz")).text()
            assert 200 == (await lane.http.get("/health")).status
            lane.agent.lose()
            while (await lane.http.get("/readyz")).status == 200:
                await asyncio.sleep(0.01)
            status, got, _ = await lane.ask(ASK)
            assert (503, "out_of_service") == (status, got["error"]["code"])

    run(go())


def test_an_exact_request_keeps_commits_out_until_its_answer_is_there(tmp_path: Path) -> None:
    lanes: list[Lane] = []
    held: list[bool] = []

    async def answer(_: web.Request) -> web.Response:
        with lanes[0].agent.pins.commit() as may:
            held.append(not may)
        return web.json_response(completion())

    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            status, got, _ = await lane.ask(ASK | {"weight_version": {"exact": 7}})
            assert (200, 7, [True]) == (status, got["weight_version"]["end"], held)
            while lane.agent.pins.out:
                await asyncio.sleep(0.01)
            # A commit is wanted now: who asks for the version that goes waits, and is told when it is gone
            body = ASK | {"weight_version": {"exact": 7, "wait_seconds": 60}}
            asking = asyncio.create_task(lane.ask(body))
            while not lane.agent.wakes:
                with lane.agent.pins.commit():
                    await asyncio.sleep(0.01)
            lane.agent.commit(8, spans={})
            status, got, _ = await asking
            assert (409, "gone_by") == (status, got["error"]["code"])

    run(go())


def test_a_pin_that_is_granted_to_who_has_hung_up_is_given_back(tmp_path: Path) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()
    given_back: list[int] = []

    class SlowAgent(Agent):
        async def commits(self, after: int, *, wait: int = 0) -> Entries:
            if after:
                await asyncio.sleep(wait)
            crossing = Crossing(None, applied(7), None, None)
            return Entries("log-1", 1, 1, [Entry(1, crossing)] if after == 0 else [])

        async def state(self) -> State:
            return State("demo", "main", applied(7), True, 7, 7, False, False, None)

        async def pin(self, seconds: float) -> int | None:
            asked.set()
            await answered.wait()
            return 5

        async def give_back(self, pin: int) -> None:
            given_back.append(pin)

    async def go() -> None:
        agent = SlowAgent(tmp_path / "gateway.sock")
        settings = GatewaySettings("http://127.0.0.1:1", Kind.VLLM, tmp_path / "gateway.sock", state_seconds=0.05)
        mirror = Mirror(agent, clock=SystemClock(), state_seconds=0.05, log=logger("gateway"))
        door = Door(
            mirror,
            agent,
            PoolPolicy(None, NO_BOUNDS, log=logger("gateway")),
            settings,
            clock=SystemClock(),
            metrics=GatewayMetrics(),
        )
        following = asyncio.create_task(mirror.follow())
        while not door.ready:
            await mirror.news(60)
        entering = asyncio.create_task(door.enter(Wanted(exact=7)))
        await asked.wait()
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        answered.set()
        while not given_back:
            await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await agent.close()

    run(go())
    assert [5] == given_back


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/sleep"),
        ("POST", "/collective_rpc"),
        ("POST", "/update_weights"),
        ("POST", "/start_profile"),
        ("POST", "/pause"),
        ("POST", "/inference/v1/abort_requests"),
        ("GET", "/server_info"),
        ("POST", "/v1/completions/"),
        ("POST", "//v1/completions"),
        ("POST", "/v1/completions/../../sleep"),
        ("POST", "/V1/completions"),
        ("GET", "/v1/completions"),
        ("DELETE", "/v1/models"),
        ("POST", "/generate"),
        ("POST", "/a-route-of-tomorrow"),
        ("OPTIONS", "*"),
    ],
)
def test_whatever_is_not_open_is_closed(tmp_path: Path, method: str, path: str) -> None:
    async def go() -> tuple[bytes, int]:
        async with open_lane(tmp_path, answer_whole) as lane:
            host, port = lane.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode()
            )
            got = await reader.read()
            writer.close()
            return got, len(lane.engine.asked)

    got, asked = run(go())
    assert b"404" == got.split(b" ", 2)[1], got
    assert 0 == asked


def test_a_path_spelled_in_another_way_reaches_no_other_route(tmp_path: Path) -> None:
    async def go() -> list[str]:
        async with open_lane(tmp_path, answer_whole, open_paths=["/tokenize"]) as lane:
            host, port = lane.url.removeprefix("http://").split(":")
            for path in ("/v1/%63ompletions?a=%2F&b", "/tokenize", "/v1%2Fcompletions", "/%73leep"):
                reader, writer = await asyncio.open_connection(host, int(port))
                head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + b'{"prompt":"x"}')
                await reader.read()
                writer.close()
            return [request.raw_path for request in lane.engine.asked]

    assert ["/v1/completions?a=%2F&b", "/tokenize", "/v1/completions"] == run(go())


def test_models_and_embeddings_pass_and_embeddings_say_their_version(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"object": "list", "data": []}, headers={"X-Accel": "1"})
        return web.json_response({"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "usage": {}})

    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            async with lane.http.get("/v1/models?x=1", headers={"Authorization": "Bearer k"}) as got:
                assert {"object": "list", "data": []} == await got.json()
            asked = lane.engine.asked[0]
            assert ("/v1/models?x=1", "Bearer k", "1.1 syncline-gateway") == (
                asked.raw_path,
                asked.headers["Authorization"],
                asked.headers["Via"],
            )
            body = {"model": "m", "input": "x", "weight_version": {"max_lag": 0}}
            status, got, _ = await lane.ask(body, "/v1/embeddings")
            assert (200, 7, 7, []) == (status, *(got["weight_version"][n] for n in ("start", "end", "choices")))

    run(go())


def test_what_is_no_request_is_refused_and_never_asked(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_lane(tmp_path, answer_whole, most_body_bytes=1000) as lane:
            bodies: list[tuple[bytes, dict[str, str], int, str]] = [
                (b'{"prompt": "x"', {}, 400, "bad_request"),
                (b"", {}, 400, "bad_request"),
                (b"[]", {}, 400, "bad_request"),
                (b'{"weight_version": {"min": "x"}}', {}, 400, "bad_request"),
                (b"x" * 1001, {}, 413, "body_too_large"),
                (b"{}", {"Content-Encoding": "gzip"}, 415, "encoding"),
            ]
            for body, headers, status, code in bodies:
                async with lane.http.post("/v1/completions", data=body, headers=headers) as got:
                    assert (status, code) == (got.status, (await got.json())["error"]["code"])

            async def without_length() -> Any:
                for _ in range(20):
                    yield b"x" * 100

            async with lane.http.post("/v1/completions", data=without_length()) as got:
                assert 413 == got.status
            assert not lane.engine.asked

    run(go())


def test_what_the_engine_refuses_passes_as_it_is(tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "busy"}}, status=503, headers={"Retry-After": "9"})

    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            status, got, headers = await lane.ask(ASK)
            assert (503, {"error": {"message": "busy"}}, "9") == (status, got, headers["Retry-After"])

    run(go())


def test_an_engine_that_is_not_there_is_503_and_when_to_ask_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_lane(tmp_path, answer_whole) as lane:
            assert 200 == (await lane.ask(ASK))[0]
            await lane.engine.stop()
            status, got, headers = await lane.ask(ASK)
            assert (503, "engine_away", "1") == (status, got["error"]["code"], headers["Retry-After"])
            assert (503, "1") == ((r := await lane.http.get("/v1/models")).status, r.headers["Retry-After"])
            assert 503 == (await lane.http.get("/health")).status
            await lane.engine.start()
            assert 200 == (await lane.ask(ASK))[0]

    run(go())


def test_several_choices_are_counted_by_ids_that_only_who_asked_for_them_sees(tmp_path: Path) -> None:
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        assert body["return_token_ids"] is True
        name = request.headers["X-Request-Id"]
        lanes[0].agent.commit(
            lanes[0].agent.commits.since(0).last + 7, spans={f"1_cmpl-{name}-0": 2, f"0_cmpl-{name}-1": 1}
        )
        choices = [
            {
                "index": at,
                "text": '"token_ids":[1]',
                "token_ids": [5] * (at + 1),
                "prompt_token_ids": [1],
                "finish_reason": "stop",
            }
            for at in range(4)
        ]
        return web.json_response(completion() | {"choices": choices})

    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            for asked in (False, True):
                body = ASK | {"prompt": ["x", "y"], "n": 2} | ({"return_token_ids": True} if asked else {})
                _, got, _ = await lane.ask(body)
                said = got["weight_version"]["choices"]
                versions = [[(s["first"], s["last"], s["version"] - said[0]["end"]) for s in c["spans"]] for c in said]
                assert [[(0, 1, 0)], [(0, 2, -1)], [(0, 1, -1), (1, 3, 0)], [(0, 4, 0)]] == versions
                choice = got["choices"][1]
                assert '"token_ids":[1]' == choice["text"]
                assert (([5, 5], [1]) if asked else (None, None)) == (choice["token_ids"], choice["prompt_token_ids"])

    run(go())


def test_the_reference_engine_s_names_and_routes_are_its_own(tmp_path: Path) -> None:
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.Response:
        lanes[0].agent.commit(8, spans={f"{request.headers['X-Request-Id']}-0": 1})
        return web.json_response(completion())

    async def go() -> None:
        async with open_lane(tmp_path, answer, kind=Kind.REFERENCE) as lane:
            lanes.append(lane)
            _, got, _ = await lane.ask(ASK)
            spans = got["weight_version"]["choices"][0]["spans"]
            assert [(0, 1, 7), (1, 4, 8)] == [(s["first"], s["last"], s["version"]) for s in spans]
            assert 404 == (await lane.http.post("/v1/chat/completions", json={})).status

    run(go())
