"""A proxy on loopback that records what a client sends, and can answer instead of the service or break the connection.

It stands between the S3 adapter and a real service, so a test reads headers as they were on the wire and meets faults where they happen.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, Literal
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    """With the query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    size: int


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer given in the service's place."""

    status: int
    body: bytes = b""
    content_type: str = "application/xml"

    @classmethod
    def s3_error(cls, status: int, code: str) -> Answer:
        """An error as S3 words it."""
        return cls(
            status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()
        )


Break = Literal["before", "after", "half"]
"""The connection breaks before the service hears of the request, after it carried it out, or in the middle of its answer."""


class RecordingProxy:
    """Forwards to `upstream` (http://host:port) until it is stopped."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream).netloc
        self._lock = Lock()
        self._requests: list[Request] = []
        self._script: list[tuple[str, str, Answer | Break]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy._handle(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="proxy")
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[Request]:
        """Everything recorded so far, in the order of arrival."""
        with self._lock:
            return list(self._requests)

    def script(self, method: str, part: str, does: Answer | Break, *, times: int = 1) -> None:
        """The next `times` requests of `method` whose path holds `part` meet this."""
        with self._lock:
            self._script.extend((method, part, does) for _ in range(times))

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            self._requests.append(Request(handler.command, handler.path, headers, len(body)))
            does = self._next(handler.command, handler.path)
        if isinstance(does, Answer):
            _answer(handler, does.status, {"Content-Type": does.content_type}, does.body)
        elif does == "before":
            _break(handler)
        else:
            self._forward(handler, body, does)

    def _next(self, method: str, path: str) -> Answer | Break | None:
        for index, (wanted, part, does) in enumerate(self._script):
            if wanted == method and part in path:
                del self._script[index]
                return does
        return None

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes, does: Break | None) -> None:
        upstream = HTTPConnection(self._upstream, timeout=30)
        try:
            upstream.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in handler.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            headers = {
                n: v for n, v in answer.getheaders() if n.lower() not in ("connection", "transfer-encoding", "date")
            }
            data = answer.read()
        finally:
            upstream.close()
        if does == "after":
            _break(handler)
        elif does == "half":
            _answer(handler, answer.status, headers, data[: len(data) // 2])
            _break(handler)
        else:
            _answer(handler, answer.status, headers, data)


def _answer(handler: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str], body: bytes) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    if "content-length" not in {name.lower() for name in headers}:
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def _break(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
