"""Bytes between a client and the engine, in bounded memory: a body goes up, an answer comes down as it is made.

A client that hangs up ends the request at the engine (its connection is closed), one that does not read makes the engine's
socket fill, and an engine that dies in the middle of an answer is told, never smoothed over.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from aiohttp import web
from multidict import CIMultiDict

from syncline_agent.gateway.exchange import Exchange
from syncline_agent.gateway.headers import forwarded
from syncline_agent.gateway.settings import GatewaySettings

_NOT_UP = ("host", "content-length", "expect", "x-request-id")
MOST_UNREAD_BYTES = 1 << 16
"""Sent and not yet taken by the client's socket; beyond it the engine waits."""


class ClientGone(Exception):
    """The client hung up, or does not read."""


class TooLarge(Exception):
    """A body that must be read whole has more bytes than may be."""


async def read_body(request: web.BaseRequest, settings: GatewaySettings) -> bytes:
    """All of it. TooLarge beyond the bound; TimeoutError when it stands still."""
    most = settings.most_body_bytes
    if (request.content_length or 0) > most:
        raise TooLarge
    parts: list[bytes] = []
    size = 0
    while True:
        async with asyncio.timeout(settings.body_seconds):
            part = await request.content.readany()
        if not part:
            return b"".join(parts)
        size += len(part)
        if size > most:
            raise TooLarge
        parts.append(part)


def headers_up(request: web.BaseRequest, *, request_id: str | None = None, read: bool = False) -> CIMultiDict[str]:
    """Headers of the request to the engine. `read`: the answer is to be read here, so it must not be compressed."""
    without = (*_NOT_UP, "accept-encoding") if read else _NOT_UP
    headers = forwarded(request.headers, without=without)
    if not read and request.content_length is not None:
        headers["Content-Length"] = str(request.content_length)
    if request_id is not None:
        headers["X-Request-Id"] = request_id
    elif "X-Request-Id" in request.headers:
        headers["X-Request-Id"] = request.headers["X-Request-Id"]
    headers["Via"] = f"{request.version.major}.{request.version.minor} syncline-gateway"
    return headers


class Down:
    """The way of one answer to its client, from when it is entered until it is left.

    aiohttp writes the head and the end. What is between goes to the transport at once: a coroutine an event would cost more than all
    else that is done with it.
    """

    def __init__(self, request: web.BaseRequest, stall_seconds: float) -> None:
        self._request = request
        self._stall_seconds = stall_seconds
        self._kept: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._chunked = False
        self.response: web.StreamResponse | None = None

    def __enter__(self) -> Self:
        self._look()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def begin(
        self, answer: Exchange, more: dict[str, str] | None = None, *, same_length: bool = False
    ) -> web.StreamResponse:
        """Send the answer's head. `same_length`: its body goes on byte for byte."""
        headers = _headers_down(answer, more, same_length=same_length)
        self.response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        try:
            await self.response.prepare(self._request)
        except OSError as error:
            raise ClientGone("the client hung up") from error
        self._chunked = self.response.headers.get("Transfer-Encoding") == "chunked"
        return self.response

    async def whole(self, answer: Exchange, body: bytes, more: dict[str, str]) -> web.StreamResponse:
        """Send an answer of which all is there: head and body leave together."""
        headers = _headers_down(answer, more, same_length=False)
        response = web.Response(status=answer.status, reason=answer.reason, headers=headers, body=body)
        self._waiting_since = self._loop.time()
        try:
            await response.prepare(self._request)
            await response.write_eof()
        except OSError as error:
            raise ClientGone("the client hung up") from error
        return response

    def keep(self, data: bytes) -> None:
        """Send this with the next `send`."""
        if data:
            self._kept.append(data)

    def send(self) -> bool:
        """Send what was kept, if anything. False when the client must be waited for, or is gone: `flush` does, and says."""
        if not self._kept:
            return True
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return False
        data = self._kept[0] if len(self._kept) == 1 else b"".join(self._kept)
        self._kept.clear()
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return transport.get_write_buffer_size() <= MOST_UNREAD_BYTES

    async def flush(self) -> None:
        """Send what was kept, if anything, and wait for a client that reads slowly. ClientGone when there is nobody any more, or nothing
        is read for too long."""
        self.send()
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ClientGone("the client hung up")
        if transport.get_write_buffer_size() <= MOST_UNREAD_BYTES:
            return
        self._waiting_since = self._loop.time()
        try:
            await self._request.writer.drain()
        except OSError as error:
            raise ClientGone(f"the client does not read ({type(error).__name__})") from error
        finally:
            self._waiting_since = None

    async def end(self) -> None:
        await self.flush()
        assert self.response is not None
        self._waiting_since = self._loop.time()
        try:
            await self.response.write_eof()
        except OSError as error:
            raise ClientGone("the client hung up") from error

    def _look(self) -> None:
        """Cut off who has read nothing for too long; one timer an answer, not one a write."""
        now, since = self._loop.time(), self._waiting_since
        if since is not None and now - since >= self._stall_seconds:
            self.cut()
            return
        self._watch = self._loop.call_later(self._stall_seconds / 4, self._look)

    def cut(self) -> None:
        """Break the connection: the client must not take what it has for the whole answer."""
        if self._request.transport is not None:
            self._request.transport.abort()


def _headers_down(answer: Exchange, more: dict[str, str] | None, *, same_length: bool) -> CIMultiDict[str]:
    headers = forwarded(answer.headers, without=() if same_length else ("content-length",))
    headers.update(more or {})
    return headers
