"""Bytes between a client and the engine, in bounded memory: a body goes up, an answer comes down as it is made.

A client that hangs up ends the request at the engine (its connection is closed), one that does not read makes the engine's
socket fill, and an engine that dies in the middle of an answer is told, never smoothed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from syncline_agent.gateway.headers import forwarded
from syncline_agent.gateway.settings import GatewaySettings

_NOT_UP = ("host", "content-length", "expect", "x-request-id")


class EngineAway(Exception):
    """Nobody listens where the engine should."""


class EngineLost(Exception):
    """The engine went away after the request had reached it."""


class ClientGone(Exception):
    """The client hung up, or does not read."""


class TooLarge(Exception):
    """A body that must be read whole has more bytes than may be."""


class Engine:
    """The engine's HTTP, seen from here."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Within a running loop; `close` in the end."""
        self._settings = settings
        self._base = URL(settings.engine_url)
        # A connection a request: one that is kept may be closed by the engine as a request goes out on it, which cannot be told from an
        # engine that died, and must not be asked twice.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._http = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_seconds),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def close(self) -> None:
        await self._http.close()

    @asynccontextmanager
    async def ask(
        self, request: web.BaseRequest, path: str, body: bytes | AsyncIterator[bytes] | None, headers: CIMultiDict[str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The engine's answer, of which the head has come. To leave before its end closes the connection: the engine stops.

        EngineAway, EngineLost.
        """
        url = self._base.with_path(path)
        query = request.rel_url.raw_query_string
        if query:
            url = URL(f"{url}?{query}", encoded=True)
        try:
            answer = await self._http.request(request.method, url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EngineAway(f"the engine does not answer at {self._base}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineLost(f"the engine went away before it answered ({type(error).__name__})") from error
        try:
            yield answer
        finally:
            answer.close() if not answer.content.at_eof() else answer.release()

    async def answers(self, path: str) -> bool:
        """Whether it says 200 there."""
        try:
            timeout = aiohttp.ClientTimeout(total=self._settings.connect_seconds)
            async with self._http.get(self._base.with_path(path), timeout=timeout) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


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
    """The way of one answer to its client, from when it is entered until it is left."""

    def __init__(self, request: web.BaseRequest, stall_seconds: float) -> None:
        self._request = request
        self._stall_seconds = stall_seconds
        self._kept: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._writing_since: float | None = None
        self._watch: asyncio.TimerHandle | None = None
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
        self, answer: aiohttp.ClientResponse, more: dict[str, str] | None = None, *, same_length: bool = False
    ) -> web.StreamResponse:
        """Send the answer's head. `same_length`: its body goes on byte for byte."""
        headers = forwarded(answer.headers, without=() if same_length else ("content-length",))
        headers.update(more or {})
        self.response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        try:
            await self.response.prepare(self._request)
        except OSError as error:
            raise ClientGone("the client hung up") from error
        return self.response

    async def write(self, data: bytes) -> None:
        """ClientGone when there is nobody any more, or nothing is read for too long."""
        assert self.response is not None
        self._writing_since = self._loop.time()
        try:
            await self.response.write(data)
        except OSError as error:
            raise ClientGone(f"the client does not read ({type(error).__name__})") from error
        finally:
            self._writing_since = None

    def keep(self, data: bytes) -> None:
        """Send this with the next `flush`."""
        if data:
            self._kept.append(data)

    async def flush(self) -> None:
        """Send what was kept, if anything."""
        if self._kept:
            data, self._kept = b"".join(self._kept), []
            await self.write(data)

    async def end(self) -> None:
        assert self.response is not None
        self._writing_since = self._loop.time()
        try:
            await self.response.write_eof()
        except OSError as error:
            raise ClientGone("the client hung up") from error

    def _look(self) -> None:
        """Cut off who has read nothing for too long; one timer an answer, not one a write."""
        now, since = self._loop.time(), self._writing_since
        if since is not None and now - since >= self._stall_seconds:
            self.cut()
            return
        self._watch = self._loop.call_later(self._stall_seconds / 4, self._look)

    def cut(self) -> None:
        """Break the connection: the client must not take what it has for the whole answer."""
        if self._request.transport is not None:
            self._request.transport.abort()


async def next_piece(answer: aiohttp.ClientResponse) -> bytes:
    """Bytes of the answer as they come; none at its end. EngineLost when it breaks off."""
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise EngineLost(f"the engine went away within an answer ({type(error).__name__})") from error
