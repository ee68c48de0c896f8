"""Answers that cannot be read as they should: never a label that is wrong, and none taken for what was asked for."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from syncline_agent.gateway.events import MOST_EVENT_BYTES
from syncline_agent.testing.lanes import Lane, open_lane, run

ASK = {"model": "m", "prompt": "x", "stream": True}
EXACT = {"model": "m", "prompt": "x", "weight_version": {"exact": 7}}


def event(tokens: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": "a" * tokens, "token_ids": [7] * tokens, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "cmpl-1", "choices": [choice]}).encode() + b"\n\n"


async def asked(folder: Path, body: dict[str, Any], *parts: bytes, kind: str, **more: Any) -> tuple[int, bytes]:
    """What a client gets of an answer of these parts, with a commit after the first that came at its third token."""
    lanes: list[Lane] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind, **more.get("headers", {})})
        await response.prepare(request)
        await response.write(parts[0])
        if more.get("commit"):
            lanes[0].agent.commit(8, spans={f"cmpl-{request.headers['X-Request-Id']}-0": 3})
        for part in parts[1:]:
            await response.write(part)
        return response

    async with open_lane(folder, answer, most_answer_bytes=1 << 20) as lane:
        lanes.append(lane)
        async with lane.http.post("/v1/completions", json=body) as got:
            return got.status, await got.read()


@pytest.mark.parametrize("first", [b"\xef\xbb\xbf" + event(3), event(3).replace(b"}\n\n", b"\ndata: }\n\n")])
def test_tokens_in_an_event_that_cannot_be_read_are_not_left_out_of_the_count(tmp_path: Path, first: bytes) -> None:
    parts = first, event(2), event(1, "stop"), b"data: [DONE]\n\n"
    _, body = run(asked(tmp_path, ASK, *parts, kind="text/event-stream", commit=True))
    assert b"its tokens cannot be counted" in body


@pytest.mark.parametrize("last", [b"data: [DONE]", b"data: [DONE]\n", b": bye", event(1, "stop").rstrip()])
def test_a_label_is_an_event_of_its_own_after_one_that_was_not_ended(tmp_path: Path, last: bytes) -> None:
    _, body = run(asked(tmp_path, ASK, event(1), last, kind="text/event-stream"))
    labelled = [line for line in body.split(b"\n") if b"weight_version" in line]
    assert 1 == len(labelled)
    assert b"\n\n" + labelled[0] + b"\n\n" in body
    assert 7 == json.loads(labelled[0].removeprefix(b"data: "))["weight_version"]["start"]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("application/json", b'{"choices":[{"index":0,"text":"' + b"a" * (2 << 20) + b'","finish_reason":"stop"}]}'),
        ("application/octet-stream", b"\0\1\2"),
        ("text/plain", b"x" * (2 << 20)),
    ],
)
def test_who_asked_for_a_version_gets_no_answer_of_which_nobody_can_tell_it(
    tmp_path: Path, kind: str, sent: bytes
) -> None:
    status, body = run(asked(tmp_path, EXACT, sent[:1], sent[1:], kind=kind, commit=True))
    assert (409, "crossed") == (status, json.loads(body)["error"]["code"])


def test_who_asked_for_a_version_is_told_of_a_stream_that_could_not_be_read(tmp_path: Path) -> None:
    long = b"data: " + b"x" * (MOST_EVENT_BYTES + (1 << 20)) + b"\n\n"
    parts = event(1), long, event(1, "stop")
    _, body = run(asked(tmp_path, ASK | EXACT, *parts, kind="text/event-stream", commit=True))
    assert "crossed" == json.loads(body.rsplit(b"data: ", 1)[1])["error"]["code"]


def test_an_answer_that_has_one_version_is_passed_to_who_asked_for_it_whatever_it_is(tmp_path: Path) -> None:
    assert (200, b"\0\1\2") == run(asked(tmp_path, EXACT, b"\0", b"\1\2", kind="application/octet-stream"))


def test_a_stream_that_is_compressed_all_the_same_stays_whole(tmp_path: Path) -> None:
    sent = gzip.compress(event(1, "stop"))
    headers = {"Content-Encoding": "gzip"}
    assert (200, sent) == run(asked(tmp_path, ASK, sent[:5], sent[5:], kind="text/event-stream", headers=headers))


def test_a_body_that_stands_still_ends_a_request_that_is_passed_on_too(tmp_path: Path) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        raise AssertionError("no whole request came")

    async def go() -> bytes:
        async with open_lane(tmp_path, never, open_paths=["/upload"], body_seconds=0.5) as lane:
            host, port = lane.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
            got = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            return got

    assert run(go()).startswith(b"HTTP/1.1 408")


def test_clients_are_not_told_where_the_agent_s_socket_lies(tmp_path: Path) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        raise AssertionError("nothing was let in")

    async def go() -> list[str]:
        async with open_lane(tmp_path, never) as lane:
            await lane.agent.stop()
            said = [""]
            while "no agent answers" not in said[0]:
                said = [await (await lane.http.get(path)).text() for path in ("/readyz", "/status", "/metrics")]
            answer = await lane.http.post("/v1/completions", json=EXACT)
            return [*said, await answer.text()]

    for said in run(go()):
        assert str(tmp_path) not in said
