"""How the benchmark tells its processes what to do next: one JSON question and one JSON answer at a time, over a Unix socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

Handler = Callable[..., Any]


def answer_orders(path: Path, handlers: Mapping[str, Handler]) -> None:
    """Answer whoever connects at `path`, for ever: `handlers[name](**arguments)`."""
    with Listener(str(path), family="AF_UNIX") as listener:
        while True:
            with listener.accept() as connection:
                _answer(connection, handlers)


def answer_in_thread(path: Path, handlers: Mapping[str, Handler]) -> None:
    """The same beside whatever else the process does."""
    threading.Thread(target=answer_orders, args=(path, handlers), name="orders", daemon=True).start()


def _answer(connection: Connection, handlers: Mapping[str, Handler]) -> None:
    while True:
        try:
            order = json.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            answer = {"answer": handlers[order["name"]](**order["arguments"])}
        except Exception as error:  # said to who asked, and the next order may work
            answer = {"error": f"{type(error).__name__}: {error}"}
        connection.send_bytes(json.dumps(answer).encode())


class Orders:
    """The other end."""

    def __init__(self, path: Path) -> None:
        self._connection: Connection = Client(str(path), family="AF_UNIX")

    def __call__(self, name: str, *, timeout_s: float = 120.0, **arguments: Any) -> Any:
        """The answer. SystemExit when there is none in time, or when it is an error."""
        self._connection.send_bytes(json.dumps({"name": name, "arguments": arguments}).encode())
        if not self._connection.poll(timeout_s):
            raise SystemExit(f"no answer to {name} within {timeout_s:g} s")
        answer = json.loads(self._connection.recv_bytes())
        if "error" in answer:
            raise SystemExit(f"{name}: {answer['error']}")
        return answer["answer"]
