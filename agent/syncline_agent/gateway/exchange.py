"""One request to the engine and its answer, on a connection of their own: bytes out, bytes in, in bounded memory.

What comes is handed on within the very call that brings it, as long as whoever takes it need not wait: an event of a stream costs no
task's turn. Knows HTTP's framing (llhttp reads it) and nothing of what is in a body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httptools
from multidict import CIMultiDict

MOST_HEAD_BYTES = 1 << 16
MOST_KEPT_BYTES = 1 << 16
"""Of an answer that nobody takes: no more is read then."""

Sink = Callable[[bytes], bool]
"""Takes what came; False when no more can be taken without waiting."""


class EngineLost(Exception):
    """The engine went away after the request had reached it."""


class Exchange(asyncio.Protocol):
    """Of one request. `send`, `head`, then `piece` or `pour` until `over`; `close` in the end, wherever that is."""

    def __init__(self, *, bodiless: bool) -> None:
        """`bodiless`: the answer has a head alone, whatever that says."""
        self.status = 0
        self.reason = ""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self._loop = asyncio.get_running_loop()
        self._bodiless = bodiless
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._head_bytes = 0
        self._headed = False
        self._interim = False
        self._until_close = False
        self._complete = False
        self._lost: Exception | None = None
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._reading = True
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def content_type(self) -> str:
        """In lower case, without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def over(self) -> bool:
        """Whether all of the answer was taken."""
        return self._complete and not self._kept

    def send(self, head: bytes, body: bytes | AsyncIterator[bytes] | None, *, chunked: bool) -> None:
        """The request; a body of pieces goes out as the engine takes it. Once."""
        assert self._transport is not None
        if body is None or isinstance(body, bytes):
            self._transport.write(head + (body or b""))
            return
        self._transport.write(head)
        self._sending = self._loop.create_task(self._send(body, chunked=chunked))

    async def head(self) -> None:
        """Return when the answer's head has come. EngineLost, and TimeoutError of a body that stood still, as from whatever waits here."""
        while not self._headed:
            await self._wait()

    async def piece(self) -> bytes:
        """What came; nothing at the answer's end. EngineLost."""
        while not self._kept:
            if self._complete:
                return b""
            self._read_on()
            await self._wait()
        return self._take()

    async def pour(self, sink: Sink) -> None:
        """Hand `sink` what comes, as it comes, until it takes no more or the answer is `over`. EngineLost, and what `sink` raises."""
        if self._kept and not sink(self._take()):
            return
        if self._complete:
            return
        self._sink = sink
        self._read_on()
        try:
            await self._wait()
        finally:
            self._sink = None

    def close(self) -> None:
        """The connection: an engine whose answer is not over stops."""
        if self._sending is not None:
            self._sending.cancel()
        if self._transport is not None:
            # What is still unsent would keep the connection for as long as the engine does not read it.
            whole = self._complete and not self._transport.get_write_buffer_size()
            self._transport.close() if whole else self._transport.abort()
        # A circle each: the parser knows this exchange, and so does the trace of what was lost.
        self._parser = None
        self._lost = None

    # --- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._complete or self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._lose(EngineLost(f"what the engine answers is no HTTP ({type(error).__name__})"))
                return
        if not self._headed:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._lose(EngineLost(f"the engine's answer has a head of more than {MOST_HEAD_BYTES} bytes"))
        if self._kept:
            self._hand_on()
        if self._complete:
            self._wake()

    def eof_received(self) -> None:
        if self._until_close and self._headed:
            self._complete = True
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self._lost is None:
            self.eof_received()
        if not self._complete:
            why = "closed its connection" if exc is None else type(exc).__name__
            self._lose(EngineLost(f"the engine went away within an exchange ({why})"))
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = self._writable or self._loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # --- the parser's side ------------------------------------------------------------------------------------------

    def on_status(self, status: bytes) -> None:
        if not self._headed:
            self.reason += status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:
            self.headers.add(name.decode("latin-1"), _decode(value))

    def on_headers_complete(self) -> None:
        if self._headed:
            return  # of what follows the answer; it is nobody's
        self.status = self._parser.get_status_code()
        if self.status == 101:
            self._lose(EngineLost("the engine wants to speak another protocol"))
            return
        if self.status < 200:
            self._interim = True
            self.headers.clear()
            self.reason = ""
            return
        self._headed = True
        if self._bodiless:
            self._complete = True
        chunked = self.headers.get("Transfer-Encoding", "").lower().endswith("chunked")
        self._until_close = not chunked and "Content-Length" not in self.headers
        self._wake()

    def on_body(self, data: bytes) -> None:
        if not self._complete:
            self._kept.append(data)
            self._kept_bytes += len(data)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif self._headed:
            self._complete = True

    # --- between ----------------------------------------------------------------------------------------------------

    async def _send(self, body: AsyncIterator[bytes], *, chunked: bool) -> None:
        try:
            async for piece in body:
                if self._transport is None or self._transport.is_closing():
                    return
                if piece:
                    self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                if self._writable is not None:
                    await self._writable
            if chunked and self._transport is not None and not self._transport.is_closing():
                self._transport.write(b"0\r\n\r\n")
        except TimeoutError as error:
            self._lose(error)
        except Exception as error:  # whatever keeps a client's body from coming ends the request
            self._lose(EngineLost(f"the request's body did not come whole ({type(error).__name__})"))

    def _take(self) -> bytes:
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        return kept[0] if len(kept) == 1 else b"".join(kept)

    def _hand_on(self) -> None:
        if self._sink is None:
            if self._kept_bytes > MOST_KEPT_BYTES:
                self._stop_reading()
            self._wake()
            return
        try:
            if self._sink(self._take()):
                return
        except Exception as error:
            self._lost = error
        self._sink = None
        self._stop_reading()
        self._wake()

    def _stop_reading(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def _lose(self, error: Exception) -> None:
        self._lost = self._lost or error
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    async def _wait(self) -> None:
        """For whatever comes next; raises what was lost."""
        if self._lost is None:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._lost is not None and not self._kept:
            raise self._lost

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
