"""Clients of one engine or gateway, as a process: `python -m bench.lane.clients ORDER.json ANSWER.json`.

Bare sockets in one loop, which only notes when which bytes came; they are read when all is over (`answers.py`), so that what is
measured is not the clients' own work. A piece counts as here when the loop woke for it, whichever socket it then reads first.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, process_time

from bench.lane.answers import Piece, Token, tokens_of

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Order:
    """What to ask for. `streams` of `tokens` each, begun one after another within `begin_s`; or, without tokens, `requests` for whole
    answers on so many connections."""

    port: int
    streams: int
    pace: float = 0.0
    tokens: int = 0
    begin_s: float = 0.0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Got:
    """What came."""

    seconds: float
    """From the first request to the last byte."""
    processor_s: float
    """This process's own, of those."""
    tokens: list[Token] = field(default_factory=list[Token])


def ask(body: dict[str, object]) -> bytes:
    """A request, as bytes."""
    data = json.dumps({"model": "m", "prompt": "x", **body}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)


def connect(port: int) -> socket.socket:
    """Non-blocking from then on."""
    held = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    held.setblocking(False)
    return held


def stream(order: Order) -> Got:
    """All tokens of all streams."""
    poll = select.epoll()
    request = ask({"stream": True, "pace": order.pace, "max_tokens": order.tokens})
    held: list[socket.socket] = []
    pieces: dict[int, list[Piece]] = {}
    read: dict[int, Callable[[int], bytes]] = {}
    began, spent = monotonic(), process_time()
    apart = order.begin_s / order.streams
    ended = 0
    while ended < order.streams:
        now = monotonic()
        while len(held) < order.streams and now >= began + len(held) * apart:
            one = connect(order.port)
            held.append(one)
            pieces[one.fileno()] = []
            read[one.fileno()] = one.recv
            poll.register(one.fileno(), select.EPOLLIN)
            one.send(request)
        events = poll.poll(0.001 if len(held) < order.streams else PATIENCE_S)
        now = monotonic()
        if not events and len(held) == order.streams:
            raise SystemExit(f"{order.streams - ended} streams stand still")
        for number, _ in events:
            data = read[number](1 << 18)
            pieces[number].append((now, data))
            if data.endswith(b"0\r\n\r\n"):
                ended += 1
                poll.unregister(number)
            elif not data:
                raise SystemExit(f"a stream broke off after {sum(len(piece) for _, piece in pieces[number])} bytes")
    got = Got(monotonic() - began, process_time() - spent)
    return Got(got.seconds, got.processor_s, [token for came in pieces.values() for token in tokens_of(came)])


def whole(order: Order) -> Got:
    """Whole answers, one after another on each connection."""
    poll = select.epoll()
    request = ask({})
    held = {one.fileno(): one for one in (connect(order.port) for _ in range(order.streams))}
    began, spent = monotonic(), process_time()
    for number, one in held.items():
        poll.register(number, select.EPOLLIN)
        one.send(request)
    begun: dict[int, bytes] = {}
    asked, answered = order.streams, 0
    while answered < asked:
        events = poll.poll(PATIENCE_S)
        if not events:
            raise SystemExit(f"{asked - answered} requests stand still")
        for number, _ in events:
            data = begun.pop(number, b"") + held[number].recv(1 << 16)
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"not an answer: {data[:200]!r}")
            if not data.endswith(b"}"):
                begun[number] = data
                continue
            answered += 1
            if asked < order.requests:
                held[number].send(request)
                asked += 1
    return Got(monotonic() - began, process_time() - spent)


if __name__ == "__main__":
    gc.disable()  # its stops would be taken for the gateway's
    wanted = Order(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    came = stream(wanted) if wanted.tokens else whole(wanted)
    Path(sys.argv[2]).write_text(json.dumps(asdict(came)), encoding="utf-8")
