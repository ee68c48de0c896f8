"""A trainer's requests over several real gateways: each goes where its version is served now, and nothing is asked twice that answered."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web

from syncline.clock import SystemClock
from syncline.errors import NoReplica
from syncline.logs import logger
from syncline.route import Fleet, FleetSettings, Listed, Wish
from syncline.route.replica import Member
from syncline.route.roster import RosterSettings

BODY = {"model": "m", "prompt": "x", "max_tokens": 4}
QUICK = FleetSettings(wait_seconds=60.0, roster=RosterSettings(members_seconds=0.1, look_seconds=0.05))
Open = Callable[..., Any]


def client_of(here: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=here.fleet.base_url, api_key="none", http_client=here.fleet.http, max_retries=0)


def text_of(told: Any) -> str:
    return told["choices"][0]["text"]


def events(*texts: str) -> list[bytes]:
    """A stream of completions, a token each; the last one ends it."""
    found: list[bytes] = []
    for at, text in enumerate(texts):
        choice = {"index": 0, "text": text, "token_ids": [at], "logprobs": None}
        choice["finish_reason"] = "length" if at == len(texts) - 1 else None
        told = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
        found.append(b"data: " + json.dumps(told).encode() + b"\n\n")
    return [*found, b"data: [DONE]\n\n"]


def free_url() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_an_official_client_is_answered_by_a_replica_that_serves_the_version(open_here: Open) -> None:
    async def go() -> None:
        async with open_here({"a": 6, "b": 7, "c": 5}) as here:
            asks: list[dict[str, Any]] = [
                {"extra_body": {"weight_version": {"min": 7}}},
                {"extra_headers": {"x-syncline-exact-version": "7"}},
            ]
            for ask in asks:
                told = await client_of(here).completions.create(model="m", prompt="x", max_tokens=4, **ask)
                assert ("b", 7) == (told.choices[0].text, told.to_dict()["weight_version"]["start"])
            assert "c" == text_of(await here.fleet.ask("/v1/completions", BODY, Wish(exact=5)))
            assert ["b", "b", "c"] == here.asked
            assert all(row["in_flight"] == 0 for row in here.fleet.table())

    asyncio.run(go())


def test_load_is_spread_and_an_affinity_stays_at_home(open_here: Open) -> None:
    async def go() -> None:
        async with open_here({"a": 7, "b": 7}) as here:
            told = [await here.fleet.ask("/v1/completions", BODY) for _ in range(30)]
            assert {"a", "b"} == {text_of(each) for each in told}
            for session in ("s", "t", "u"):
                told = [await here.fleet.ask("/v1/completions", BODY, Wish(affinity=session)) for _ in range(5)]
                assert 1 == len({text_of(each) for each in told})

    asyncio.run(go())


def test_a_version_that_nobody_serves_yet_is_waited_for_at_the_nearest(open_here: Open) -> None:
    async def go() -> None:
        async with open_here({"a": 6, "b": 4}) as here:
            waiting = asyncio.create_task(here.fleet.ask("/v1/completions", BODY, Wish(min=7, wait_seconds=50)))
            await here.until(lambda row: row["in_flight"] == (1 if row["applied"] == 6 else 0))
            assert not waiting.done()
            here.lanes["a"].agent.commit(7, spans={})
            assert "a" == text_of(await waiting)

    asyncio.run(go())


def test_who_waits_at_one_goes_to_another_where_the_version_comes_first(open_here: Open) -> None:
    async def go() -> None:
        async with open_here({"a": 6, "b": 4}, settings=replace(QUICK, hold_seconds=0.2)) as here:
            waiting = asyncio.create_task(here.fleet.ask("/v1/completions", BODY, Wish(min=7, wait_seconds=50)))
            await asyncio.sleep(0.1)
            here.lanes["b"].agent.commit(7, spans={})
            assert "b" == text_of(await waiting)

    asyncio.run(go())


def test_when_patience_ends_the_error_says_of_each_replica_why(open_here: Open) -> None:
    nobody = free_url()

    async def go() -> tuple[Any, Any]:
        async with open_here({"a": 6, "new": None}, more=(nobody,)) as here:
            with pytest.raises(openai.ConflictError) as late:
                await client_of(here).completions.create(
                    model="m", prompt="x", extra_body={"weight_version": {"min": 7, "wait_seconds": 0.3}}
                )
            with pytest.raises(NoReplica) as raised:
                await here.fleet.ask("/v1/completions", BODY, Wish(exact=3, wait_seconds=0))
            return late.value, raised.value

    late, raised = asyncio.run(go())
    assert ("no_replica", "weight_version_error", True) == tuple(late.body[k] for k in ("code", "type", "retry"))
    assert "false" == late.response.headers["x-should-retry"]
    whys = [row["why"] for row in late.body["replicas"]]
    assert "version 6 is served" in whys[0] or "it serves version 6, below 7" in whys[0]
    assert "nothing proven is served there" == whys[1]
    assert "no gateway answers" in whys[2] and nobody in whys[2]
    assert "3 is gone by" in str(raised)


def test_what_can_never_come_is_said_at_once(open_here: Open) -> None:
    async def go() -> None:
        async with open_here({"a": 6, "b": 9}) as here:
            with pytest.raises(NoReplica) as raised:
                await here.fleet.ask("/v1/completions", BODY, Wish(exact=3, wait_seconds=1000))
            assert (False, 409) == (raised.value.retry, raised.value.status)

    asyncio.run(go())


def test_with_no_proven_replica_the_answer_is_that_none_is_available(open_here: Open) -> None:
    async def go() -> None:
        async with open_here({"a": None}) as here:
            with pytest.raises(openai.InternalServerError) as raised:
                await client_of(here).completions.create(
                    model="m", prompt="x", extra_headers={"x-syncline-wait-seconds": "0.2"}
                )
            assert 503 == raised.value.status_code

    asyncio.run(go())


def test_a_replica_that_goes_away_loses_nothing_that_was_not_answered_yet(open_here: Open) -> None:
    async def go() -> Counter[str]:
        at_a: asyncio.Event = asyncio.Event()

        async def answer(_: web.Request) -> web.StreamResponse:
            at_a.set()
            await asyncio.sleep(1000)
            raise AssertionError

        async with open_here({"a": 8, "b": 7}, answers={"a": answer}) as here:
            asking = asyncio.create_task(here.fleet.ask("/v1/completions", BODY, Wish(min=7, affinity=None)))
            first = [asking] + [asyncio.create_task(here.fleet.ask("/v1/completions", BODY)) for _ in range(12)]
            await at_a.wait()
            await here.lanes["a"].engine.stop()  # its gateway says engine_lost, or engine_away
            told = await asyncio.gather(*first)
            return Counter(text_of(each) for each in told)

    assert Counter(b=13) == asyncio.run(go())


def test_a_lost_request_is_not_sent_again_where_that_is_not_wanted(open_here: Open) -> None:
    async def go() -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.abort()
            await asyncio.sleep(1000)
            raise AssertionError

        async with open_here({"a": 7}, answers={"a": answer}, settings=replace(QUICK, resend_lost=False)) as here:
            answered = await here.fleet.http.post("/v1/completions", json=BODY)
            assert (503, "engine_lost") == (answered.status_code, answered.json()["error"]["code"])
            assert ["a"] == here.asked

    asyncio.run(go())


def test_a_stream_comes_event_by_event_and_is_never_sent_twice_once_it_has_begun(open_here: Open) -> None:
    async def go() -> None:
        going = asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            told = events("x", "y")
            await response.write(told[0])
            await going.wait()
            assert request.transport is not None
            request.transport.abort()
            return response

        async with open_here({"a": 7, "b": 7}, answers={"a": answer, "b": answer}) as here:
            stream = await client_of(here).completions.create(model="m", prompt="x", stream=True)
            seen: list[str] = []
            with pytest.raises((openai.APIError, httpx.TransportError)):
                async for chunk in stream:
                    seen += [choice.text for choice in chunk.choices]
                    assert 1 == sum(row["in_flight"] for row in here.fleet.table())
                    going.set()
            assert ["x"] == seen
            assert 1 == len(here.asked)
            await stream.close()
            assert 0 == sum(row["in_flight"] for row in here.fleet.table())

    asyncio.run(go())


def test_a_caller_that_hangs_up_ends_its_request_at_the_engine(open_here: Open) -> None:
    async def go() -> None:
        here_too = asyncio.Event()

        async def answer(_: web.Request) -> web.StreamResponse:
            here_too.set()
            await asyncio.sleep(1000)
            raise AssertionError

        async with open_here({"a": 7}, answers={"a": answer}) as here:
            asking = asyncio.create_task(here.fleet.ask("/v1/completions", BODY))
            await here_too.wait()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await here.until(lambda row: row["in_flight"] == 0)
            while not here.lanes["a"].engine.left:
                await asyncio.sleep(0.01)

    asyncio.run(go())


def test_what_an_engine_refuses_goes_to_the_caller_as_it_is(open_here: Open) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such model", "code": 404}}, status=404)

    async def go() -> None:
        async with open_here({"a": 7, "b": 7}, answers={"a": answer, "b": answer}) as here:
            with pytest.raises(openai.NotFoundError):
                await client_of(here).completions.create(model="m", prompt="x")
            assert 1 == len(here.asked)
            with pytest.raises(openai.BadRequestError):
                await client_of(here).completions.create(
                    model="m", prompt="x", extra_body={"weight_version": {"min": 0}}
                )

    asyncio.run(go())


def test_a_machine_that_fell_silent_is_given_up_and_its_requests_go_elsewhere(open_here: Open) -> None:
    """A host that lost its power closes no connection."""

    async def go() -> str:
        asked, dark = asyncio.Event(), asyncio.Event()

        async def status(_: web.Request) -> web.Response:
            if dark.is_set():
                await asyncio.sleep(1000)
            return web.json_response({"ready": True, "applied": 9, "requests": {"waiting": 0, "at_engine": 0}})

        async def complete(_: web.Request) -> web.Response:
            asked.set()
            await asyncio.sleep(1000)
            raise AssertionError

        app = web.Application()
        app.router.add_get("/status", status)
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        roster = RosterSettings(members_seconds=0.1, look_seconds=0.05, look_timeout_seconds=0.5, silence_seconds=0.5)
        try:
            async with open_here({"a": 7}, settings=replace(QUICK, roster=roster), more=(url,)) as here:
                asking = asyncio.create_task(here.fleet.ask("/v1/completions", BODY, Wish(min=9)))
                await asked.wait()
                here.lanes["a"].agent.commit(9, spans={})
                dark.set()
                return text_of(await asking)
        finally:
            await runner.cleanup()

    assert "a" == asyncio.run(go())


def test_a_replica_that_is_named_no_more_is_asked_while_it_serves_and_then_answers_what_it_has(open_here: Open) -> None:
    class Named(Listed):
        gone = False

        async def members(self) -> Sequence[Member]:
            return [] if self.gone else await super().members()

    async def go() -> None:
        at_engine, go_on = asyncio.Event(), asyncio.Event()

        async def answer(_: web.Request) -> web.StreamResponse:
            at_engine.set()
            await go_on.wait()
            return web.json_response({"choices": [{"index": 0, "text": "late", "finish_reason": "length"}]})

        async with open_here({"a": 7}, answers={"a": answer}) as here:
            source = Named([here.lanes["a"].url])
            fleet = Fleet(source, QUICK, clock=SystemClock(), randomness=random.Random(1), log=logger("route"))
            async with fleet:
                source.gone = True
                asking = asyncio.create_task(fleet.ask("/v1/completions", BODY))
                await at_engine.wait()
                here.lanes["a"].agent.lose()  # what it has in flight goes on
                while fleet.table()[0]["proven"]:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.3)
                assert not asking.done()
                go_on.set()
                assert "late" == text_of(await asking)
                while fleet.table():
                    await asyncio.sleep(0.01)

    asyncio.run(go())
