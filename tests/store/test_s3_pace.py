"""A service that drips, on a real socket: no request outlives its pace, whatever part of it drips."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest

from syncline.clock import ManualClock
from syncline.errors import NotFound, StoreUnavailable
from syncline.store.retrying import RetryingStore
from syncline.store.s3 import S3Store
from syncline.store.s3_connections import Pace, TooSlow
from syncline.store.s3_location import S3Credentials, S3Location

DRIP_S = 0.01
GRACE_S = 0.2
HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "a"\r\nLast-Modified: Mon, 30 Nov 2026 09:00:00 GMT\r\n\r\n'
GONE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Service:
    """Gives each request the next answer: so much of it at once, the rest a byte at a time, for ever."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.answers: list[tuple[bytes, bool]] = []
        self.requests = 0
        self.reads_after_s = 0.0
        self._stop = Event()
        self._threads = [Thread(target=self._accept, name="drip")]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._threads.append(Thread(target=self._serve, args=(connection,), name="drip"))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(5.0)
            try:
                while self._read(connection):
                    self.requests += 1
                    at_once, drips = self.answers.pop(0)
                    connection.sendall(at_once)
                    while drips and not self._stop.wait(DRIP_S):
                        connection.sendall(b"a")
            except OSError:
                pass  # the client went away, as it should

    def _read(self, connection: socket.socket) -> bool:
        """One request, whole."""
        self._stop.wait(self.reads_after_s)
        came = b""
        while b"\r\n\r\n" not in came:
            more = connection.recv(1 << 16)
            if not more:
                return False
            came += more
        head, _, body = came.partition(b"\r\n\r\n")
        size = next((int(h.split(b":")[1]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length")), 0)
        left = size - len(body)
        while left > 0:
            more = connection.recv(1 << 16)
            if not more:
                return False
            left -= len(more)
        return True

    def stop(self) -> None:
        self._stop.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.stop()


@pytest.fixture
def store(service: Service) -> Iterator[S3Store]:
    store = store_of(service, read_timeout_s=GRACE_S)
    yield store
    store.close()


def store_of(service: Service, **settings: float) -> S3Store:
    location = S3Location.parse(f"s3://bucket/prefix?endpoint=http://127.0.0.1:{service.port}", {})
    return S3Store(location, S3Credentials("key", "secret"), **settings)  # type: ignore[arg-type]


CALLS: dict[str, Callable[[S3Store], object]] = {
    "get": lambda store: store.get("key", max_bytes=1 << 20),
    "range": lambda store: store.get_range_into("key", 0, bytearray(1 << 20)),
    "head": lambda store: store.head("key"),
    "put": lambda store: store.put("key", b"data"),
    "list": lambda store: list(store.list_after("")),
    "delete": lambda store: store.delete("key"),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_answers_head_that_drips_is_unavailable(service: Service, store: S3Store, call: str) -> None:
    service.answers.append((b"HTTP/1.1 200 OK\r\nX-Long: ", True))
    with pytest.raises(StoreUnavailable, match=r"bytes in 0\.\d s are less than 32768 a second"):
        CALLS[call](store)


@pytest.mark.parametrize("call", ["get", "range", "list"])
def test_an_answers_body_that_drips_is_unavailable(service: Service, store: S3Store, call: str) -> None:
    service.answers.append((HEAD % (1 << 20), True))
    with pytest.raises(StoreUnavailable, match=r"bytes in 0\.\d s are less than 32768 a second"):
        CALLS[call](store)


def test_a_service_that_drips_once_is_asked_again(service: Service, store: S3Store) -> None:
    service.answers += [(b"HTTP/1.1 200", True), (HEAD % 4 + b"data", False)]
    retrying = RetryingStore(store, clock=ManualClock(), rng=random.Random(1))
    found = retrying.get("key", max_bytes=100)
    assert found is not None
    assert (b"data", 2) == (found.data, service.requests)


def test_a_connection_is_used_again(service: Service, store: S3Store) -> None:
    service.answers += [(HEAD % 4 + b"data", False), (HEAD % 0, False), (GONE, False)]
    assert store.get("key", max_bytes=100) is not None
    assert "a" == store.put("key", b"more")
    with pytest.raises(NotFound):
        store.head("key")
    assert 3 == service.requests


def test_a_service_that_takes_an_upload_slowly_has_more_time_than_a_connect(service: Service) -> None:
    # One limit for all of a large body would be the connection's: slow uplinks could never send one.
    service.reads_after_s = 0.5
    service.answers.append((HEAD % 0, False))
    store = store_of(service, connect_timeout_s=0.2, read_timeout_s=5.0)
    assert "a" == store.put("key", bytes(16 << 20))
    store.close()


def test_a_service_that_takes_no_upload_is_unavailable(service: Service, store: S3Store) -> None:
    service.reads_after_s = 60.0
    with pytest.raises(StoreUnavailable):
        store.put("key", bytes(16 << 20))


def test_the_pace_counts_what_came_and_never_waits_longer_than_the_grace() -> None:
    clock = ManualClock()
    pace = Pace(clock, 60.0, 1000.0)
    began = clock.monotonic()
    assert 60.0 == pace.left_s(began, 0)
    clock.advance(59.0)
    assert 1.0 == pace.left_s(began, 0)
    assert 60.0 == pace.left_s(began, 1_000_000)
    assert 542.0 == pace.left_s(began, 1000, times=10.0)
    clock.advance(1.0)
    with pytest.raises(TooSlow, match="0 bytes in 60"):
        pace.left_s(began, 0)
    assert 10.0 == pace.left_s(began, 10_000)
