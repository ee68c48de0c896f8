"""A stand-in for an engine's HTTP server: it loads checkpoints from disk, answers and refuses as the real routes do, and can
be made to fail at any of them. `VllmStandIn` and `SglangStandIn` know one engine's routes each; nothing here generates.

For tests of whoever drives an engine from outside. Traffic stays on loopback.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import parse_qsl, urlsplit

HEADER_LENGTH_BYTES = 8


def weights_in(folder: Path) -> dict[str, bytes]:
    """Every tensor's bytes in a folder of safetensors, read plainly."""
    found: dict[str, bytes] = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        start = HEADER_LENGTH_BYTES + int.from_bytes(data[:HEADER_LENGTH_BYTES], "little")
        header = cast(dict[str, Any], json.loads(data[HEADER_LENGTH_BYTES:start]))
        for name, place in header.items():
            if name != "__metadata__":
                low, high = place["data_offsets"]
                found[name] = data[start + low : start + high]
    if not found:
        raise FileNotFoundError(f"no weights in {folder}")
    return found


@dataclass(frozen=True, slots=True)
class Call:
    """One request that a server got."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """Its answer."""

    status: int
    body: Any = field(default_factory=dict[str, Any])


Route = Callable[[Call], "Reply | None"]
"""None hangs up without an answer."""


class RouteServer:
    """Serves routes on a free port of loopback. Requests are answered one at a time."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Route] = {}
        self.calls: list[Call] = []
        self.breaks: dict[str, Route] = {}
        """In place of a route, by path; each is used once."""
        self.token: str | None = None
        """What requests must bear; None: nothing."""
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def paths(self) -> list[str]:
        """What was called, in order, without looks at the state."""
        return [call.path for call in self.calls if call.method == "POST"]

    def start(self) -> Self:
        """Listen; at the same port as before, if there was one."""
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def do_POST(self) -> None:
                answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = urlsplit(handler.path)
        data = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        call = Call(
            handler.command, asked.path, dict(parse_qsl(asked.query)), cast(dict[str, Any], json.loads(data or b"{}"))
        )
        with self._lock:
            self.calls.append(call)
            reply = self._reply(call, handler.headers.get("Authorization"))
        handler.close_connection = True
        if reply is None:
            return
        body = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
        handler.send_response(reply.status)
        handler.send_header("Content-Length", str(len(body.encode())))
        handler.end_headers()
        handler.wfile.write(body.encode())

    def _reply(self, call: Call, authorization: str | None) -> Reply | None:
        if self.token is not None and authorization != f"Bearer {self.token}":
            return Reply(401, {"error": "Unauthorized"})
        if call.path in self.breaks:
            return self.breaks.pop(call.path)(call)
        route = self.routes.get((call.method, call.path))
        if route is None:
            known = any(path == call.path for _, path in self.routes)
            return Reply(405 if known else 404, {"detail": "Method Not Allowed" if known else "Not Found"})
        return route(call)


class EngineStandIn(RouteServer):
    """What both engines have: weights from a folder, under a version that somebody gave them."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self.weights: dict[str, bytes] = {}
        self.weight_version = "default"
        self.paused = False
        self.loads = 0
        self.stale_cache = False
        """KV of older weights is there."""
        self.while_loading: Callable[[], None] = lambda: None
        if folder is not None:
            self.restart(folder)

    def restart(self, folder: Path) -> None:
        """What a new process holds that was started on a folder."""
        self.weights = weights_in(folder)
        self.weight_version, self.paused, self.stale_cache = "default", False, False

    def _load(self, folder: str) -> None:
        if not self.paused:
            raise AssertionError("weights were loaded while steps may run")
        self.while_loading()
        self.weights = weights_in(Path(folder))
        self.loads += 1
        self.stale_cache = True
