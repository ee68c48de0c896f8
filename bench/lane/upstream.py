"""An engine that streams tokens at a pace and says in each when it was due and when it was sent.

Run as a process: `python -m bench.lane.upstream PORT`. A request's `max_tokens` events come at `pace` a second, or as fast as they are
taken where that is 0; without `stream` the answer is one token. Bare sockets in one loop, so that what is measured through it is not
this engine's own work: each event is one call that sends it, as an engine's is.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import sys
from collections import deque
from heapq import heappop, heappush
from time import monotonic

HEAD_END = b"\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","due":%.6f,"sent":%.6f,"choices":[{"index":0,'
    b'"text":"a","logprobs":null,"finish_reason":%s,"token_ids":[17]}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
WHOLE = b'{"id":"cmpl-1","choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"completion_tokens":1}}'


def chunk(data: bytes) -> bytes:
    """As chunked encoding frames it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Answering:
    """One connection, and the answer that is under way on it."""

    def __init__(self, held: socket.socket) -> None:
        self.held = held
        self.asked = b""
        self.unsent = b""
        self.began = 0.0
        self.pace = 0.0
        self.tokens = 0
        self.at = 0
        self.open = True

    def due(self) -> float:
        return self.began + self.at / self.pace if self.pace else 0.0

    def next_event(self) -> bytes:
        """A token's; what ends the stream is sent with its last."""
        last = self.at == self.tokens - 1
        now = monotonic()
        event = chunk(EVENT % (self.due() or now, now, b'"length"' if last else b"null"))
        self.at += 1
        return event + chunk(DONE) + chunk(b"") if last else event


class Upstream:
    """All connections of one engine."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._listener.setblocking(False)
        self._poll = select.epoll()
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        self._all: dict[int, Answering] = {}
        self._paced: list[tuple[float, int, Answering]] = []
        self._unpaced: deque[Answering] = deque()

    def run(self) -> None:
        """For ever. An epoll's own wait counts in milliseconds; `select` on it does in microseconds."""
        while True:
            wait = None if not self._paced else max(0.0, self._paced[0][0] - monotonic())
            select.select([self._poll], [], [], 0.0 if self._unpaced else wait)
            for number, event in self._poll.poll(0):
                if number == self._listener.fileno():
                    self._accept()
                elif event & select.EPOLLIN:
                    self._read(self._all[number])
                elif event & select.EPOLLOUT:
                    self._send(self._all[number], b"")
                else:
                    self._close(self._all[number])
            while self._paced and self._paced[0][0] <= monotonic():
                self._step(heappop(self._paced)[2])
            for _ in range(len(self._unpaced)):
                self._step(self._unpaced.popleft())

    def _accept(self) -> None:
        while True:
            try:
                held, _ = self._listener.accept()
            except BlockingIOError:
                return
            held.setblocking(False)
            held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._all[held.fileno()] = Answering(held)
            self._poll.register(held.fileno(), select.EPOLLIN)

    def _read(self, answering: Answering) -> None:
        try:
            data = answering.held.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._close(answering)
            return
        answering.asked += data
        head, end, body = answering.asked.partition(HEAD_END)
        size = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        if end and len(body) >= size:
            answering.asked = b""
            self._answer(answering, json.loads(body))

    def _answer(self, answering: Answering, asked: dict[str, object]) -> None:
        if not asked.get("stream"):
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(WHOLE)
            self._send(answering, head + WHOLE)
            return
        answering.pace, answering.tokens = float(str(asked["pace"])), int(str(asked["max_tokens"]))
        answering.at, answering.began = 0, monotonic()
        self._send(answering, STREAM_HEAD)
        self._plan(answering)

    def _plan(self, answering: Answering) -> None:
        if answering.pace:
            heappush(self._paced, (answering.due(), id(answering), answering))
        else:
            self._unpaced.append(answering)

    def _step(self, answering: Answering) -> None:
        if not answering.open:
            return
        if answering.unsent and not answering.pace:
            return  # goes on when what it has is taken
        self._send(answering, answering.next_event())
        if answering.at < answering.tokens and (answering.pace or not answering.unsent):
            self._plan(answering)

    def _send(self, answering: Answering, data: bytes) -> None:
        waited = bool(answering.unsent)
        data = answering.unsent + data
        try:
            sent = answering.held.send(data)
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            self._close(answering)
            return
        answering.unsent = data[sent:]
        if answering.unsent and not waited:
            self._poll.modify(answering.held.fileno(), select.EPOLLIN | select.EPOLLOUT)
        elif waited and not answering.unsent:
            self._poll.modify(answering.held.fileno(), select.EPOLLIN)
            if answering.at < answering.tokens and not answering.pace:
                self._plan(answering)

    def _close(self, answering: Answering) -> None:
        answering.open = False
        del self._all[answering.held.fileno()]
        answering.held.close()


if __name__ == "__main__":
    gc.disable()  # its stops would be taken for the gateway's
    Upstream(int(sys.argv[1])).run()
