"""Connections that a service cannot hold open by sending a byte now and then.

A time limit for each read never ends a request whose answer drips. So every request has a pace: a time of grace, and
from then on so many bytes a second on average, sent and received together, answer's head included. A connection that
falls behind raises TooSlow, which the adapter reports as any other broken connection. Reads no payload, retries
nothing, knows no S3.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPResponse
from typing import Any, ClassVar, cast

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from syncline.clock import Clock
from syncline.store.buffers import flat_view

SEND_BYTES = 1 << 18
"""What is handed to the socket at a time: its time limit counts for all of it."""
PATIENT_METHODS = {"POST": 10.0}
"""Times the grace: a service may put together a large upload for minutes before it answers."""


class TooSlow(OSError):
    """A request fell behind its pace."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The least that a request must get on."""

    clock: Clock
    grace_s: float
    """Also the longest silence."""
    bytes_per_s: float

    def left_s(self, began: float, moved: int, *, times: float = 1.0) -> float:
        """How long the next byte may take. TooSlow when that time is over."""
        left = self.grace_s * times + moved / self.bytes_per_s - (self.clock.monotonic() - began)
        if left <= 0:
            raise self.too_slow(began, moved)
        return min(left, self.grace_s * times)

    def too_slow(self, began: float, moved: int) -> TooSlow:
        """What to raise when no byte came in the time left."""
        spent = self.clock.monotonic() - began
        return TooSlow(f"{moved} bytes in {spent:.1f} s are less than {self.bytes_per_s:.0f} a second")


class _Request:
    """How far one request has come."""

    def __init__(self, pace: Pace, method: str) -> None:
        self._pace = pace
        self._times = PATIENT_METHODS.get(method, 1.0)
        self._began = pace.clock.monotonic()
        self._moved = 0

    def move(self, sock: socket.socket, transfer: Callable[[], int]) -> int:
        """Let bytes through in the time that is left for them."""
        sock.settimeout(self._pace.left_s(self._began, self._moved, times=self._times))
        try:
            count = transfer()
        except TimeoutError as error:
            raise self._pace.too_slow(self._began, self._moved) from error
        self._moved += count
        return count


class _PacedReader(io.RawIOBase):
    """A socket's answer."""

    def __init__(self, sock: socket.socket, request: _Request) -> None:
        super().__init__()
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open for as long as the answer is read
        self._request = request

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        return self._request.move(self._sock, lambda: self._raw.readinto(buffer) or 0)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedSocket:
    """What the answer's parser asks of a socket."""

    def __init__(self, sock: socket.socket, request: _Request) -> None:
        self._reader = _PacedReader(sock, request)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


class _PacedConnection(HTTPConnection):
    pace: ClassVar[Pace]
    _request: _Request

    def request(self, method: str, url: str, *args: Any, **named: Any) -> None:
        self._request = _Request(self.pace, method)
        self.response_class = cast(Any, partial(_answer, self._request))
        super().request(method, url, *args, **named)

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        assert self.sock is not None
        view = flat_view(data)  # the client sends nothing but bytes
        for at in range(0, max(1, view.nbytes), SEND_BYTES):
            self._request.move(self.sock, partial(self._send_piece, view[at : at + SEND_BYTES]))

    def _send_piece(self, piece: memoryview) -> int:
        super().send(piece)
        return piece.nbytes


def _answer(request: _Request, sock: socket.socket, *args: Any, **named: Any) -> HTTPResponse:
    return HTTPResponse(cast(Any, _PacedSocket(sock, request)), *args, **named)


def paced_pools(pace: Pace, **settings: Any) -> urllib3.PoolManager:
    """A pool manager whose connections all keep `pace`; `settings` are PoolManager's."""

    class Plain(_PacedConnection):
        pass

    class Secure(_PacedConnection, HTTPSConnection):
        pass

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = cast(Any, Plain)

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = cast(Any, Secure)

    Plain.pace = Secure.pace = pace
    manager = urllib3.PoolManager(**settings)
    manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
    return manager
