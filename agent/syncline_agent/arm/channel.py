"""One connected Unix socket as a row of messages, for both ends.

Sending is safe from several threads and bounded in time; receiving belongs to one thread. Closing from anywhere ends a
receive that waits.
"""

from __future__ import annotations

import socket
import struct
import threading

from syncline.clock import Clock, SystemClock
from syncline.errors import EngineUnavailable
from syncline_agent.arm import framing
from syncline_agent.arm.messages import Message

_PEER = struct.Struct("3i")


class Channel:
    """Messages over a stream socket."""

    def __init__(self, connected: socket.socket, *, send_timeout_s: float = 10.0, clock: Clock | None = None) -> None:
        self._socket = connected
        self._clock = clock or SystemClock()
        self._sending = threading.Lock()
        seconds = int(send_timeout_s)
        timeout = struct.pack("ll", seconds, int((send_timeout_s - seconds) * 1e6))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    def send(self, message: Message) -> None:
        """EngineUnavailable when the peer is gone or does not read."""
        data = framing.encode(message)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise EngineUnavailable(f"sending {message.type} failed: {error}; the peer is gone or hangs") from error

    def greet(self, message: Message, *, timeout_s: float) -> Message:
        """Send the first message, and return the answer: also of a peer that answered and hung up without reading it."""
        data = framing.encode(message)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            try:
                return self.receive(timeout_s=timeout_s)
            except EngineUnavailable:
                raise EngineUnavailable(f"sending {message.type} failed: {error}; the peer is gone or hangs") from error
        return self.receive(timeout_s=timeout_s)

    def receive(self, *, timeout_s: float | None = None) -> Message:
        """The next message; EngineUnavailable when the peer closed or had not sent all of it within `timeout_s`."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        try:
            body = self._read(framing.body_length(self._read(framing.LENGTH.size, deadline)), deadline)
        except OSError as error:
            raise EngineUnavailable(f"the peer went away or is silent: {error}") from error
        return framing.decode(body)

    def _read(self, size: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < size:
            # Anew for each piece: a peer that sends a byte now and then must not hold on for ever.
            self._socket.settimeout(None if deadline is None else max(1e-3, deadline - self._clock.monotonic()))
            piece = self._socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise EngineUnavailable("the peer closed the connection")
            data += piece
        return bytes(data)

    def peer_uid(self) -> int:
        """User id of the process at the other end, as the kernel knows it."""
        return self._peer()[1]

    def peer_process(self) -> int:
        """Its process id; 0 where this process cannot see it, in another container."""
        return self._peer()[0]

    def _peer(self) -> tuple[int, int, int]:
        return _PEER.unpack(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # never connected, or closed already
        self._socket.close()
