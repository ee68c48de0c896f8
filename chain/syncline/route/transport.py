"""An httpx transport whose every request goes to a replica of a fleet: whatever client uses it works unchanged.

Streams pass as they come. What no replica takes is answered in OpenAI's error shape, so that official clients raise their usual
errors, and do not ask again by themselves: the caller's patience was spent here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import httpx

from syncline.errors import NoReplica
from syncline.route.asking import MOST_REFUSAL_BYTES, Answer, Lost, Unreached
from syncline.route.wishes import AFFINITY, WAIT, read_asked

if TYPE_CHECKING:
    from syncline.route.fleet import Carried, Fleet

_NOT_ON = frozenset({"host", "content-length", "transfer-encoding", WAIT, AFFINITY})


class FleetTransport(httpx.AsyncBaseTransport):
    """Over another transport, which sends."""

    def __init__(self, fleet: Fleet, inner: httpx.AsyncBaseTransport) -> None:
        self._fleet = fleet
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = read_asked(request.headers, await request.aread())
        path = request.url.raw_path.decode("ascii")
        headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _NOT_ON]

        async def ask(url: str, more: Mapping[str, str]) -> Answer:
            sent = httpx.Request(
                request.method,
                url + path,
                headers=[*headers, *more.items()],
                content=asked.body or None,
                extensions=request.extensions,
            )
            try:
                return _Answer(await self._inner.handle_async_request(sent))
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                raise Unreached(f"no gateway answers at {url} ({type(error).__name__})") from error
            except (httpx.ReadTimeout, httpx.WriteTimeout):
                raise  # the caller's own patience
            except httpx.TransportError as error:
                raise Lost(f"the gateway at {url} went away before it answered ({type(error).__name__})") from error

        try:
            carried = await self._fleet.send(asked.wish, ask)
        except NoReplica as error:
            return refused(error)
        except Lost as error:
            raise httpx.RemoteProtocolError(str(error), request=request) from error
        answer = carried.answer
        assert isinstance(answer, _Answer)
        return httpx.Response(
            answer.status,
            headers=answer.response.headers.raw,
            stream=_Stream(answer, carried),
            extensions=answer.response.extensions,
        )

    async def aclose(self) -> None:
        """The inner transport is the fleet's."""


def refused(error: NoReplica) -> httpx.Response:
    """What a client is told when no replica took its request."""
    return httpx.Response(error.status, json=error.body(), headers={"x-should-retry": "false", "Retry-After": "1"})


class _Answer:
    """An answer of httpx."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.read_body: bytes | None = None

    @property
    def status(self) -> int:
        return self.response.status_code

    def header(self, name: str) -> str | None:
        return self.response.headers.get(name)

    async def read(self) -> bytes:
        parts: list[bytes] = []
        try:
            async for part in self.stream():
                parts.append(part)
                if sum(map(len, parts)) > MOST_REFUSAL_BYTES:
                    raise Lost("a refusal of more than 64 KiB")
        except httpx.TransportError as error:
            raise Lost(f"a refusal broke off ({type(error).__name__})") from error
        self.read_body = b"".join(parts)
        return self.read_body

    async def stream(self) -> AsyncIterator[bytes]:
        """As it came over the wire."""
        if self.read_body is not None:
            yield self.read_body
            return
        assert isinstance(self.response.stream, httpx.AsyncByteStream)
        async for part in self.response.stream:
            yield part

    async def close(self) -> None:
        await self.response.aclose()


class _Stream(httpx.AsyncByteStream):
    """The body of an answer; its replica has one request less when it is over."""

    def __init__(self, answer: _Answer, carried: Carried) -> None:
        self._answer = answer
        self._carried = carried

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._answer.stream():
            yield part

    async def aclose(self) -> None:
        self._carried.done()
        await self._answer.close()
