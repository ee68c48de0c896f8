"""Stands between a client and a real API server, sees what is asked, and fails as networks do: silence, refusal, an end.

Takes plain HTTP on loopback and speaks TLS to the server, so that it sees requests as they were sent. Answers nothing by itself but what
`answer_next` was told, as a load balancer in front of an API server does.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import yaml

from syncline_operator.testing.control_plane import Cluster

AUTHORIZATION = re.compile(rb"(?i)^authorization: (.*?)\r?$", re.MULTILINE)
LENGTH = re.compile(rb"(?i)^content-length: (\d+)\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was sent."""

    method: str
    target: str
    authorization: str | None

    @property
    def watches(self) -> bool:
        return "watch=true" in self.target

    @property
    def writes(self) -> bool:
        return self.method != "GET"


class Relay:
    """One port in front of one API server, with a thread of its own."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        config = yaml.safe_load(cluster.kubeconfig.read_text(encoding="utf-8"))
        there: dict[str, Any] = config["clusters"][0]["cluster"]
        self.token: str = config["users"][0]["user"]["token"]
        address = urlsplit(there["server"])
        self._server = (address.hostname or "127.0.0.1", address.port or 443)
        self._tls = ssl.create_default_context(cafile=there.get("certificate-authority"))
        self._open = threading.Event()
        self._open.set()
        self.asked: list[Asked] = []
        self.expired = 0
        """How often the server said that a version is too old to go on from."""
        self._watches_open = threading.Event()
        self._watches_open.set()
        self._watching: set[asyncio.StreamWriter] = set()
        self._lost: set[asyncio.StreamWriter] = set()
        self._answers: deque[bytes] = deque()
        self._pipes: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()
        self._listening = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        self.kubeconfig = folder / "relayed.kubeconfig"
        self.kubeconfig.write_text(kubeconfig(self.url, token=self.token), encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def freeze(self) -> None:
        """Let connections stand, and carry no byte any more."""
        self._open.clear()

    def freeze_watches(self) -> None:
        """The same of connections that watch, and of those that begin to; the others go on."""
        self._watches_open.clear()

    def forget_watches(self) -> None:
        """Carry no byte any more of the connections that watch now, as a firewall that lost its table; later ones are well."""
        self._lost |= self._watching

    def thaw(self) -> None:
        self._open.set()
        self._watches_open.set()

    def cut(self) -> None:
        """End every connection."""
        self._call(self._cut())

    def answer_next(self, code: int, *, retry_after: int | None = None, times: int = 1) -> None:
        """Answer the next requests in the server's place."""
        later = f"Retry-After: {retry_after}\r\n" if retry_after is not None else ""
        body = '{"kind":"Status","message":"the relay was told to"}'
        answer = f"HTTP/1.1 {code} Told\r\nContent-Type: application/json\r\n{later}Content-Length: {len(body)}\r\n\r\n{body}"
        self._answers.extend([answer.encode()] * times)

    def _call(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(timeout=30)

    async def _cut(self) -> None:
        for writer in list(self._pipes):
            writer.transport.abort()

    async def _stop(self) -> None:
        self.thaw()
        self._lost.clear()
        self._listening.close()
        await self._cut()
        mine = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not mine:
                task.cancel()
        await asyncio.sleep(0.05)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pipes.add(writer)
        try:
            await self._opened(writer)
            try:
                back_reader, back_writer = await asyncio.open_connection(*self._server, ssl=self._tls)
            except OSError:
                return
            self._pipes.add(back_writer)
            try:
                there = asyncio.create_task(self._carry_requests(reader, writer, back_writer))
                back = asyncio.create_task(self._carry(back_reader, writer))
                done, rest = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                for task in rest:
                    task.cancel()
                await asyncio.gather(*done, *rest, return_exceptions=True)
            finally:
                self._pipes.discard(back_writer)
                back_writer.transport.abort()
        finally:
            self._pipes.discard(writer)
            self._watching.discard(writer)
            writer.transport.abort()

    async def _opened(self, client: asyncio.StreamWriter) -> None:
        while (
            client in self._lost
            or not self._open.is_set()
            or (client in self._watching and not self._watches_open.is_set())
        ):
            await asyncio.sleep(0.02)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._opened(writer)
            self.expired += data.count(b'"code":410')
            writer.write(data)
            await writer.drain()

    async def _carry_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        """Request by request: a head and as many bytes as it announces."""
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                length = LENGTH.search(head)
                content = await reader.readexactly(int(length[1])) if length else b""
            except asyncio.IncompleteReadError:
                return
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
            said = AUTHORIZATION.search(head)
            asked = Asked(method, target, said[1].decode() if said else None)
            (self._watching.add if asked.watches else self._watching.discard)(writer)
            await self._opened(writer)
            self.asked.append(asked)
            if self._answers:
                writer.write(self._answers.popleft())
                await writer.drain()
                continue
            back.write(head + content)
            await back.drain()


def kubeconfig(url: str, *, token: str = "", token_file: Path | None = None) -> str:
    """For a plain address: what authenticates goes along as it would over TLS."""
    user = f"{{tokenFile: {token_file}}}" if token_file is not None else f"{{token: {token}}}"
    return (
        "apiVersion: v1\nkind: Config\ncurrent-context: relayed\n"
        "contexts: [{name: relayed, context: {cluster: relayed, user: relayed}}]\n"
        f'clusters: [{{name: relayed, cluster: {{server: "{url}"}}}}]\n'
        f"users: [{{name: relayed, user: {user}}}]\n"
    )
