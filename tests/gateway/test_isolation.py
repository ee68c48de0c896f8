"""Which keys and values a request may find in its engine's cache, and what its answer says of that."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from syncline_agent.engine import Crossing
from syncline_agent.gateway.isolation import (
    MOST_GIVEN,
    BadName,
    Kv,
    KvReuse,
    Named,
    kv_of,
    name_body,
    name_of,
    read_named,
)
from syncline_agent.gateway.members import read_object
from syncline_agent.gateway.mirror import Place
from syncline_agent.gateway.routes import Kind, Shape
from syncline_agent.lane.sessions import is_session
from syncline_agent.testing.lanes import Lane, applied, open_lane

HERE = Place("log", 3, applied(7))
LATER = Place("log", 4, applied(8))
UNDONE = Place("log", 5, applied(7))
NOWHERE = Place("", 0, None)
ASK = {"model": "m", "prompt": "x", "max_tokens": 4}
PLAIN = re.compile(r"syncline-(session-)?[0-9a-f]{32}")
"""What every engine takes: vLLM at most 128 characters, and none of @, /, \\ and NUL."""


def name(place: Place = HERE, given: str | None = None, session: str | None = None, request_id: str = "r") -> str:
    return name_of(place, given, session=session, request_id=request_id)


def test_requests_of_one_place_share_a_name_and_no_other_place_has_it_not_even_after_an_undo() -> None:
    assert name() == name(request_id="another")
    other_run = Place("log", 3, applied(7).__class__("lineage-2", "main", 7, applied(7).digest, True))
    places = [HERE, LATER, UNDONE, Place("another log", 3, applied(7)), other_run]
    assert len(places) == len({name(place) for place in places})


def test_while_nobody_knows_what_is_served_a_request_shares_its_name_with_none() -> None:
    for place in (NOWHERE, Place("log", 3, None), Place("", 0, applied(7))):
        assert name(place) != name(place, request_id="another")
        assert name(place, session="s") != name(place, session="s", request_id="another")


def test_a_session_keeps_its_name_across_commits_in_its_own_run() -> None:
    again = Place("log of another agent", 1, applied(9))
    assert {name(session="s")} == {name(place, session="s") for place in (LATER, UNDONE, again)}
    other_run = Place("log", 3, applied(7).__class__("lineage-2", "main", 7, applied(7).digest, True))
    assert name(session="s") != name(other_run, session="s")
    assert is_session(name(session="s"))
    assert not any(map(is_session, (name(), name(given=name(session="s")), name(NOWHERE, session="s"), None)))


def test_no_caller_meets_another_s_name_by_choosing_its_own() -> None:
    given: list[str | None] = [None, "a", "b", "-", "1:a", "é", "e\u0301", "\ud800", "\udc80", "x" * 1_000_000, name()]
    names = [name(given=one) for one in given]
    names += [name(given=one, session=session) for one in given for session in ("s", "a", "\ud800", "lineage-1", "é")]
    names += [name(Place("log", 34, applied(7))), name(Place("log3", 4, applied(7))), name(given="s", session="b")]
    assert len(names) == len(set(names))
    assert all(PLAIN.fullmatch(one) for one in names)


@pytest.mark.parametrize(
    ("kind", "shape", "fields", "named"),
    [
        (Kind.VLLM, Shape.COMPLETIONS, {}, Named("cache_salt")),
        (Kind.VLLM, Shape.EMBEDDINGS, {"cache_salt": None}, Named("cache_salt")),
        (Kind.VLLM, Shape.CHAT, {"cache_salt": "mine", "extra_key": 7}, Named("cache_salt", "mine")),
        (Kind.VLLM, Shape.TOKENS, {"kv_transfer_params": {}}, Named("cache_salt", apart=False)),
        (Kind.VLLM, Shape.TOKENS, {"sampling_params": {"extra_args": {}}}, Named("cache_salt", apart=False)),
        (Kind.VLLM, Shape.TOKENS, {"sampling_params": {"n": 2}}, Named("cache_salt")),
        (Kind.SGLANG, Shape.NATIVE, {"sampling_params": [{}]}, Named("extra_key")),
        (Kind.SGLANG, Shape.NATIVE, {"extra_key": ["a", ""], "cache_salt": "b"}, Named("extra_key", ["a", ""])),
        (Kind.SGLANG, Shape.CHAT, {"extra_key": ""}, Named("extra_key")),
        (Kind.SGLANG, Shape.CHAT, {"bootstrap_room": 0}, Named("extra_key", apart=False)),
        (Kind.SGLANG, Shape.EMBEDDINGS, {}, Named(apart=False)),
        (Kind.REFERENCE, Shape.COMPLETIONS, {"cache_salt": 7}, Named()),
    ],
)
def test_each_engine_is_told_the_name_in_the_field_that_its_route_knows(
    kind: Kind, shape: Shape, fields: Mapping[str, Any], named: Named
) -> None:
    assert named == read_named(fields, kind, shape)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.VLLM, {"cache_salt": ""}),
        (Kind.VLLM, {"cache_salt": 7}),
        (Kind.VLLM, {"cache_salt": ["a"]}),
        (Kind.VLLM, {"cache_salt": False}),
        (Kind.SGLANG, {"extra_key": 7}),
        (Kind.SGLANG, {"extra_key": {}}),
        (Kind.SGLANG, {"extra_key": ["a", None]}),
        (Kind.SGLANG, {"extra_key": [["a"]]}),
        (Kind.SGLANG, {"extra_key": [""] * (MOST_GIVEN + 1)}),
    ],
)
def test_a_name_that_is_none_is_refused_and_never_taken_for_a_shared_one(kind: Kind, fields: Mapping[str, Any]) -> None:
    (field,) = fields
    with pytest.raises(BadName, match=f"^{field} must be ") as refused:
        read_named(fields, kind, Shape.COMPLETIONS)
    assert field == refused.value.param


def test_the_name_stands_alone_in_what_is_sent_and_every_other_byte_stays() -> None:
    text = b'{"a": 1.50, "extra_key": "mine", "b":"\xc3\xa9", "extra\\u005fkey": ["p", "q", ""]}'
    body = read_object(text)
    named = read_named(body.fields, Kind.SGLANG, Shape.NATIVE)
    sent = name_body(body.edited(without=["extra_key"]), named, HERE, session=None, request_id="r")
    names = [name(given="p"), name(given="q"), name()]
    assert b'{"a": 1.50,"b":"\xc3\xa9","extra_key":' + json.dumps(names, separators=(",", ":")).encode() + b"}" == sent
    assert b'{"cache_salt":"%s"}' % name().encode() == name_body(
        b"{}", Named("cache_salt"), HERE, session=None, request_id="r"
    )
    assert b'{"a":1}' == name_body(b'{"a":1}', Named(), HERE, session="s", request_id="r")


def commit(*begun: str, counts: bool = True) -> Crossing:
    return Crossing(applied(7), applied(8), dict.fromkeys(begun, 0) if counts else None, ())


@pytest.mark.parametrize(
    ("named", "session", "names", "crossed", "kv"),
    [
        (Named(), None, ["r"], [], Kv.OWN),
        (Named(), None, None, [], Kv.OWN),
        (Named(), None, ["r"], None, None),
        (Named(), None, ["r"], [commit("q"), commit()], Kv.OWN),  # it had not begun, or was over
        (Named(), None, ["q", "r"], [commit(), commit("r")], Kv.IN_FLIGHT),
        (Named(), None, ["r"], [commit(counts=False)], Kv.IN_FLIGHT),
        (Named(), None, None, [commit()], Kv.IN_FLIGHT),
        (Named(apart=False), None, ["r"], [], None),
        (Named(apart=False), "s", ["r"], None, Kv.SESSION),
        (Named(), "s", ["r"], [], Kv.SESSION),
    ],
)
def test_an_answer_says_over_whose_keys_and_values_it_was_drawn(
    named: Named, session: str | None, names: Sequence[str] | None, crossed: Sequence[Crossing] | None, kv: Kv | None
) -> None:
    assert kv == kv_of(named, session, names, crossed)


async def answer_whole(_: web.Request) -> web.Response:
    choice = {"index": 0, "text": "abcd", "finish_reason": "length"}
    return web.json_response({"id": "cmpl-1", "choices": [choice], "usage": {"completion_tokens": 4}})


async def commit_to(lane: Lane, version: int) -> None:
    """A commit that the gateway has heard of."""
    lane.agent.commit(version, spans={})
    while True:
        async with lane.http.get("/status") as answer:
            said = await answer.json()
        if (version, version) == (said["applied"], said["target"]):
            return


def test_a_request_is_named_by_where_it_was_let_in_and_not_by_its_version(tmp_path: Path) -> None:
    async def go() -> list[str]:
        async with open_lane(tmp_path, answer_whole) as lane:
            said: list[Any] = [await lane.ask(ASK), await lane.ask(ASK)]
            await commit_to(lane, 8)
            said.append(await lane.ask(ASK | {"weight_version": {"exact": 8}}))
            await commit_to(lane, 7)
            said.append(await lane.ask(ASK | {"weight_version": {"exact": 7}}))
            said.append(await lane.ask(ASK | {"cache_salt": "mine", "weight_version": {"exact": 7}}))
            assert [(7, "own"), (7, "own"), (8, "own"), (7, "own"), (7, "own")] == [
                (told["weight_version"]["start"], told["weight_version"]["kv"]) for _, told, _ in said
            ]
            assert "own" == said[0][2]["x-syncline-kv"]
            return [json.loads(body)["cache_salt"] for body in lane.engine.bodies]

    first, again, later, undone, own = asyncio.run(go())
    assert first == again
    assert 4 == len({first, later, undone, own})
    assert "mine" not in own


def test_a_request_that_began_before_a_commit_says_that_it_went_on_over_older_keys_and_values(tmp_path: Path) -> None:
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.Response:
        spans = {f"cmpl-{request.headers['X-Request-Id']}-0": 0}
        lanes[0].agent.commit(8, spans=spans if len(lanes[0].engine.bodies) == 1 else {"another": 3})
        return await answer_whole(request)

    async def go() -> list[tuple[int, str]]:
        async with open_lane(tmp_path, answer) as lane:
            lanes.append(lane)
            told = [(await lane.ask(ASK))[1]["weight_version"] for _ in range(2)]
            return [(label["start"], label["kv"]) for label in told]

    assert [(8, "in_flight"), (8, "own")] == asyncio.run(go())


def test_a_session_is_one_name_across_commits_where_the_pool_has_sessions(tmp_path: Path) -> None:
    async def go() -> list[str]:
        async with open_lane(tmp_path, answer_whole, kv_reuse=KvReuse.SESSIONS) as lane:
            asked = [ASK | {"weight_version": {"session": "s"}}, ASK | {"weight_version": {"session": "t"}}]
            said: list[Any] = [await lane.ask(body) for body in asked]
            await commit_to(lane, 8)
            said.append(await lane.ask(ASK | {"weight_version": {"min": 8}}, x_syncline_session="s"))
            assert ["session"] * 3 == [told["weight_version"]["kv"] for _, told, _ in said]
            status, told, _ = await lane.ask(ASK | {"weight_version": {"exact": 8}}, x_syncline_session="s")
            assert (400, "weight_version.exact has no session") == (status, told["error"]["message"].partition(":")[0])
            assert "x-syncline-session" not in lane.engine.asked[-1].headers
            return [json.loads(body)["cache_salt"] for body in lane.engine.bodies]

    first, other, later = asyncio.run(go())
    assert first == later != other
    assert is_session(first)


def test_a_salt_of_any_size_is_sent_as_a_short_name_and_one_that_is_none_is_the_caller_s_fault(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_lane(tmp_path, answer_whole) as lane:
            for salt in ("x" * 1_000_000, "@/\\\0", "\ud800"):
                assert 200 == (await lane.ask(ASK | {"cache_salt": salt}))[0]
            names = [json.loads(body)["cache_salt"] for body in lane.engine.bodies]
            assert 3 == len(set(names)) == len([one for one in names if PLAIN.fullmatch(one)])
            for salt in ("", 7, ["a"]):
                status, told, _ = await lane.ask(ASK | {"cache_salt": salt})
                error = told["error"]
                assert (400, "bad_request", "cache_salt") == (status, error["code"], error["param"])
            assert 3 == len(lane.engine.bodies)

    asyncio.run(go())


def test_a_pool_without_sessions_refuses_who_asks_for_one_by_name(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_lane(tmp_path, answer_whole) as lane:
            status, told, headers = await lane.ask(ASK, x_syncline_session="s")
            error = told["error"]
            assert (400, "no_sessions", "weight_version") == (status, error["code"], error["param"])
            assert "false" == headers["x-should-retry"]
            for wrong in ("", "x" * 1_000_000, 7, ["s"], True):
                status, told, _ = await lane.ask(ASK | {"weight_version": {"session": wrong}})
                assert (400, "bad_request") == (status, told["error"]["code"])
            assert [] == lane.engine.bodies

    asyncio.run(go())
