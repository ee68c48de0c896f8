"""The engine's HTTP, seen from here: who is asked, and how a request is written. Reads no body and decides nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from multidict import CIMultiDict
from yarl import URL

from syncline_agent.gateway.exchange import EngineLost, Exchange
from syncline_agent.gateway.settings import GatewaySettings

_WITH_BODY = ("POST", "PUT", "PATCH")


class EngineAway(Exception):
    """Nobody listens where the engine should."""


class Engine:
    """One engine. A connection a request: one that is kept may be closed by the engine as a request goes out on it, which cannot be told
    from an engine that died, and must not be asked twice."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._base = URL(settings.engine_url)
        self._address = self._base.host or "", self._base.port or 0
        self._connect_seconds = settings.connect_seconds
        self._tls = ssl.create_default_context() if self._base.scheme == "https" else None

    @asynccontextmanager
    async def ask(
        self,
        method: str,
        path: str,
        query: str,
        *,
        body: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Exchange]:
        """The engine's answer, of which the head has come. To leave before its end closes the connection: the engine stops.

        `query` is as it came. EngineAway, EngineLost.
        """
        exchange = await self._connect(bodiless=method == "HEAD")
        try:
            target = self._base.with_path(path).raw_path + (f"?{query}" if query else "")
            head, chunked = self._head(method, target, body, CIMultiDict(headers or {}))
            exchange.send(head, body, chunked=chunked)
            await exchange.head()
            yield exchange
        finally:
            exchange.close()

    async def answers(self, path: str) -> bool:
        """Whether it says 200 there."""
        try:
            async with asyncio.timeout(self._connect_seconds), self.ask("GET", path, "") as exchange:
                return exchange.status == 200
        except (EngineAway, EngineLost, TimeoutError):
            return False

    async def _connect(self, *, bodiless: bool) -> Exchange:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, exchange = await loop.create_connection(
                    lambda: Exchange(bodiless=bodiless), *self._address, ssl=self._tls
                )
        except TimeoutError as error:
            waited = f"no connection within {self._connect_seconds:g} s"
            raise EngineAway(f"the engine does not answer at {self._base}: {waited}") from error
        except OSError as error:
            raise EngineAway(f"the engine does not answer at {self._base}: {error.strerror or error}") from error
        return exchange

    def _head(
        self, method: str, target: str, body: bytes | AsyncIterator[bytes] | None, headers: CIMultiDict[str]
    ) -> tuple[bytes, bool]:
        """The request's head, and whether its body goes in chunks."""
        chunked = False
        if isinstance(body, bytes):
            headers["Content-Length"] = str(len(body))
        elif body is not None:
            chunked = "Content-Length" not in headers
            if chunked:
                headers["Transfer-Encoding"] = "chunked"
        elif method in _WITH_BODY:
            headers["Content-Length"] = "0"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {target} HTTP/1.1\r\nHost: {self._base.host_port_subcomponent}\r\n{lines}Connection: close\r\n\r\n"
        return head.encode(errors="surrogateescape"), chunked
