"""The engine's side of the gateway, against engines that speak HTTP in every way that is allowed, and in some that are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from syncline_agent.gateway.engine import Engine, EngineAway
from syncline_agent.gateway.exchange import MOST_KEPT_BYTES, EngineLost, Exchange
from syncline_agent.gateway.routes import Kind
from syncline_agent.gateway.settings import GatewaySettings
from syncline_agent.testing.lanes import run

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


async def asked(serve: Serve, take: Callable[[Exchange], Any], method: str = "POST", **more: Any) -> Any:
    """What `take` makes of the answer of an engine that is a function."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the gateway hung up, or all is over
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    engine = Engine(GatewaySettings(f"http://127.0.0.1:{port}", Kind.VLLM, Path("none")))
    try:
        async with asyncio.timeout(60), engine.ask(method, "/v1/models", "a=%20b", **more) as exchange:
            return await take(exchange)
    finally:
        server.close()


def says(*parts: bytes) -> Serve:
    """An engine that reads a head and says this, a part at a time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)

    return serve


async def whole(exchange: Exchange) -> tuple[int, str, bytes]:
    parts: list[bytes] = []
    while piece := await exchange.piece():
        parts.append(piece)
    return exchange.status, exchange.reason, b"".join(parts)


async def poured(exchange: Exchange) -> tuple[int, str, bytes]:
    """The same, by a taker that wants to be waited for at every second piece."""
    parts: list[bytes] = []

    def take(piece: bytes) -> bool:
        parts.append(piece)
        return len(parts) % 2 == 0

    while not exchange.over:
        await exchange.pour(take)
    return exchange.status, exchange.reason, b"".join(parts)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("take", [whole, poured])
@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd",), b"abcd"),
        ((b"HTTP/1.1 200 OK\r\nContent-", b"Length: 4\r\n\r", b"\nab", b"cd"), b"abcd"),
        ((CHUNKED, b"2\r\nab\r\n2\r", b"\ncd\r\n", b"0\r\n\r\n"), b"abcd"),
        ((CHUNKED + b"4;x=y\r\nabcd\r\n0\r\nX-Last: 1\r\n\r\n",), b"abcd"),
        ((CHUNKED + b"4\r\nabcd\r\n0\r\n\r\nHTTP/1.1 201 No\r\nX: y\r\nContent-Length: 2\r\n\r\nef",), b"abcd"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd"), b"abcd"),
        ((b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd",), b"abcd"),
        ((b"HTTP/1.0 200 OK\r\n\r\nab", b"cd"), b"abcd"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",), b""),
    ],
)
def test_an_answer_is_whole_however_it_is_framed_and_cut(parts: tuple[bytes, ...], body: bytes, take: Any) -> None:
    assert (200, "OK", body) == run(asked(says(*parts), take))


@pytest.mark.parametrize("take", [whole, poured])
@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"HTTP/1.1 200 OK\r\n",),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcd",),
        (CHUNKED, b"4\r\nabcd\r\n"),
        (CHUNKED, b"4\r\nabcd\r\n", b"zz\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", b"abcd"),
        (b"SSH-2.0-x\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\n", *[b"X-More: " + b"x" * 4000 + b"\r\n"] * 20),
    ],
)
def test_an_answer_that_breaks_off_or_is_none_is_lost_and_never_whole(parts: tuple[bytes, ...], take: Any) -> None:
    with pytest.raises(EngineLost):
        run(asked(says(*parts), take))


@pytest.mark.parametrize(
    ("method", "head"), [("HEAD", b"200 OK\r\nContent-Length: 4"), ("GET", b"204 No Content"), ("GET", b"304 Found")]
)
def test_an_answer_without_a_body_is_over_with_its_head(method: str, head: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(b"HTTP/1.1 " + head + b"\r\n\r\n")(reader, writer)
        await reader.read()  # the connection stays until the other side ends it

    assert b"" == run(asked(serve, whole, method))[2]


def test_a_request_says_what_was_asked_and_that_its_connection_ends_with_it() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def go() -> None:
        await asked(serve, whole, body=b"{}", headers={"X-Name": "é"})
        await asked(serve, whole)
        await asked(serve, whole, "GET")

    run(go())
    first, second, third = ([line for line in head.split(b"\r\n") if not line.startswith(b"Host:")] for head in heads)
    assert [b"POST /v1/models?a=%20b HTTP/1.1", "X-Name: é".encode(), b"Content-Length: 2"] == first[:3]
    assert [b"Content-Length: 0", b"Connection: close"] == second[1:3]
    assert [b"GET /v1/models?a=%20b HTTP/1.1", b"Connection: close", b"", b""] == third
    assert all(head.count(b"\r\nHost: 127.0.0.1:") == 1 for head in heads)


def test_a_body_of_pieces_goes_in_chunks_and_an_answer_may_come_before_its_end() -> None:
    got: list[bytes] = []
    made = 0

    async def pieces(number: int) -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(number):
            made += 1
            yield b"x" * (1 << 16)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got.append(await reader.readexactly(7))
        still, before = 0, 0
        while still < 20:  # until nothing more fits between the two
            still, before = (still + 1 if made == before else 0), made
            await asyncio.sleep(0.02)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        with pytest.raises(ConnectionError):  # the rest is never read, and the connection ends all the same
            for _ in range(1000):
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        got.append(b"ended")

    async def go() -> Any:
        told = await asked(serve, whole, body=pieces(10_000))
        while len(got) < 2:
            await asyncio.sleep(0.01)
        return told

    assert (413, "Too Large", b"") == run(go())
    assert [b"10000\r\n", b"ended"] == got


def test_a_body_that_does_not_come_whole_is_no_request() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"
        raise ConnectionResetError

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(EngineLost, match="body"):
        run(asked(serve, whole, body=pieces()))


def test_what_nobody_takes_is_not_read() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(2000):
            writer.write(b"x" * MOST_KEPT_BYTES)
            await writer.drain()
            sent += MOST_KEPT_BYTES

    async def take(exchange: Exchange) -> int:
        still, before = 0, -1
        while still < 20:
            still, before = (still + 1 if sent == before else 0), sent
            await asyncio.sleep(0.02)
        held = sent
        assert (200, "OK", 2000 * MOST_KEPT_BYTES) == (*(told := await whole(exchange))[:2], len(told[2]))
        return held

    assert run(asked(serve, take)) < 40 << 20  # what the kernel's buffers hold, of 131 MB


def test_what_a_taker_raises_comes_out_where_it_was_waited_for() -> None:
    def take(_: bytes) -> bool:
        raise ZeroDivisionError

    async def fail(exchange: Exchange) -> None:
        await exchange.pour(take)

    with pytest.raises(ZeroDivisionError):
        run(asked(says(CHUNKED, b"4\r\nabcd\r\n", b"4\r\nabcd\r\n"), fail))


def test_nobody_at_the_engine_s_address_is_told_as_such() -> None:
    async def go() -> bool:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        engine = Engine(GatewaySettings(f"http://127.0.0.1:{port}", Kind.VLLM, Path("none")))
        with pytest.raises(EngineAway, match=rf"127\.0\.0\.1:{port}: .*onnect"):
            async with engine.ask("GET", "/v1/models", ""):
                pass
        return await engine.answers("/health")

    assert False is run(go())
