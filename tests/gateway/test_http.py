"""HTTP as clients really speak it: old, kept alive, dripping, huge, and in hundreds at once."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path
from typing import Any

from aiohttp import web

from syncline_agent.testing.lanes import Lane, open_lane, run

BODY = json.dumps({"model": "m", "prompt": "x"}).encode()
ANSWER = {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}


async def answer_whole(_: web.Request) -> web.Response:
    return web.json_response(ANSWER)


async def connect(lane: Lane) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = lane.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def post(body: bytes = BODY, version: str = "1.1", **headers: str) -> bytes:
    named = {"Host": "x", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
    return f"POST /v1/completions HTTP/{version}\r\n{lines}\r\n".encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """One answer of a connection that may go on."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split(" ")[1]), headers, body


def test_http_1_0_is_answered_whole_and_streamed_and_then_closed(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            return web.json_response(ANSWER)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(
            b'data: {"choices":[{"index":0,"token_ids":[1],"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        )
        return response

    async def go() -> list[bytes]:
        async with open_lane(tmp_path, answer) as lane:
            got: list[bytes] = []
            for body in (BODY, json.dumps({"prompt": "x", "stream": True}).encode()):
                reader, writer = await connect(lane)
                writer.write(post(body, version="1.0"))
                got.append(await reader.read())
                writer.close()
            return got

    for answer_got in run(go()):
        head, _, body = answer_got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 200")
        assert b"chunked" not in head.lower()
        assert b'"weight_version":{"start":7,"end":7' in body


def test_a_connection_is_used_again_whatever_was_answered_on_it(tmp_path: Path) -> None:
    async def go() -> list[int]:
        async with open_lane(tmp_path, answer_whole) as lane:
            reader, writer = await connect(lane)
            codes: list[int] = []
            for request in (post(), post(b"{"), post(x_syncline_exact_version="6"), post()):
                writer.write(request)
                codes.append((await read_answer(reader))[0])
            writer.write(post() + post())  # one behind the other, unasked
            codes += [(await read_answer(reader))[0], (await read_answer(reader))[0]]
            writer.close()
            return codes

    assert [200, 400, 409, 200, 200, 200] == run(go())


def test_a_connection_to_the_engine_that_it_closed_meanwhile_is_not_used_again(tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.Response:
        response = web.json_response(ANSWER)
        response.force_close()
        return response

    async def go() -> list[int]:
        async with open_lane(tmp_path, answer) as lane:
            return [(await lane.ask({"prompt": "x"}))[0] for _ in range(20)]

    assert [200] * 20 == run(go())


def test_a_head_or_a_body_that_drips_does_not_hold_a_connection_for_ever(tmp_path: Path) -> None:
    async def ended(reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""

    async def go() -> tuple[bytes, int]:
        async with open_lane(tmp_path, answer_whole, head_seconds=0.5, body_seconds=0.5) as lane:
            reader, writer = await connect(lane)
            dripping = asyncio.create_task(ended(reader))
            writer.write(b"POST /v1/completions HTTP/1.1\r\nX-Drip: ")
            while not dripping.done():
                writer.write(b"x")
                await asyncio.sleep(0.02)
            head = await dripping
            writer.close()
            reader, writer = await connect(lane)
            writer.write(post()[:-3])
            status, _, _ = await read_answer(reader)
            writer.close()
            return head, status

    assert (b"", 408) == run(go())


def test_a_body_that_needs_no_reading_goes_through_in_bounded_memory(tmp_path: Path) -> None:
    size, piece = 200 << 20, b"x" * (1 << 20)
    seen = 0

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        await reader.readuntil(b"\r\n\r\n")
        while seen < size:
            seen += len(await reader.read(1 << 16))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def body() -> Any:
        for _ in range(size // len(piece)):
            yield piece

    async def go() -> tuple[int, int]:
        async with open_lane(tmp_path, answer_whole, open_paths=["/upload"]) as lane:
            await lane.engine.stop()
            server = await asyncio.start_server(engine, "127.0.0.1", lane.engine.port)
            tracemalloc.start()
            headers = {"Content-Length": str(size)}
            async with lane.http.post("/upload", data=body(), headers=headers) as got:
                status = got.status
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            server.close()
            return status, most

    status, most = run(go())
    assert (200, size) == (status, seen)
    assert most < 20 << 20


def test_two_hundred_streams_at_once_are_each_their_own(tmp_path: Path) -> None:
    streams, events = 200, 20

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for at in range(events):
            choice = {"index": 0, "text": f"{asked['prompt']} ", "token_ids": [at]}
            choice |= {"finish_reason": "length" if at == events - 1 else None}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            await asyncio.sleep(0)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def one(lane: Lane, number: int) -> tuple[str, Any]:
        text, label = "", None
        async with lane.http.post("/v1/completions", json={"prompt": str(number), "stream": True}) as got:
            async for line in got.content:
                if line.startswith(b"data: {"):
                    told = json.loads(line[6:])
                    text += "".join(choice["text"] for choice in told["choices"])
                    label = told.get("weight_version", label)
        return text, label

    async def go() -> list[tuple[str, Any]]:
        async with open_lane(tmp_path, answer) as lane:
            return await asyncio.gather(*(one(lane, number) for number in range(streams)))

    told = run(go())
    assert [f"{number} " * events for number in range(streams)] == [text for text, _ in told]
    assert [[{"first": 0, "last": events, "version": 7}]] * streams == [
        label["choices"][0]["spans"] for _, label in told
    ]
    assert streams == len({label["request_id"] for _, label in told})


def test_a_request_that_ends_in_two_places_reaches_no_engine(tmp_path: Path) -> None:
    heads = [
        "Content-Length: 2\r\nTransfer-Encoding: chunked",
        "Content-Length: 2\r\nContent-Length: 40",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding : chunked",
    ]

    async def go() -> tuple[list[bytes], int]:
        async with open_lane(tmp_path, answer_whole) as lane:
            got: list[bytes] = []
            for head in heads:
                reader, writer = await connect(lane)
                smuggled = "0\r\n\r\nPOST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
                writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n{smuggled}".encode())
                got.append((await reader.read(12))[9:])
                writer.close()
            return got, len(lane.engine.asked)

    assert ([b"400"] * len(heads), 0) == run(go())


def test_requests_that_wait_are_bounded_in_number(tmp_path: Path) -> None:
    async def go() -> tuple[int, str]:
        async with open_lane(tmp_path, answer_whole, most_waiting=2) as lane:
            body = {"prompt": "x", "weight_version": {"min": 8, "wait_seconds": 60}}
            waiting = [asyncio.create_task(lane.ask(body)) for _ in range(2)]
            while (await (await lane.http.get("/status")).json())["requests"]["waiting"] < 2:
                await asyncio.sleep(0.01)
            status, got, _ = await lane.ask(body)
            lane.agent.commit(8, spans={})
            assert [200, 200] == [(await one)[0] for one in waiting]
            return status, got["error"]["code"]

    assert (503, "busy") == run(go())


def test_each_request_has_a_connection_to_the_engine_of_its_own(tmp_path: Path) -> None:
    # A kept one may be closed by the engine as a request goes out on it: that looks like an engine that died.
    came_from: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        came_from.append(request.transport.get_extra_info("peername"))
        return web.json_response(ANSWER)

    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            reader, writer = await connect(lane)  # the client's own is kept
            for _ in range(3):
                writer.write(post())
                assert 200 == (await read_answer(reader))[0]
            writer.close()

    run(go())
    assert 3 == len(came_from) == len(set(came_from))
