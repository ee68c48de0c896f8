"""Server-sent events out of a stream of bytes, each with the very bytes that it came in.

Bytes in, events out; knows nothing of what is in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_EVENT_BYTES = 16 << 20
_ENDS = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class TooLong(ValueError):
    """An event that is not at its end after `MOST_EVENT_BYTES`."""


class Events:
    """Cuts a stream into its events."""

    def __init__(self) -> None:
        self._kept = b""
        self._looked = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The events that are whole by now, in order, their blank line included. TooLong when one does not end."""
        if not self._kept and data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2 and b"\r" not in data:
            yield data  # one event as it was sent: nearly always
            return
        kept = self._kept + data if self._kept else data
        start, look = 0, max(0, self._looked - 3)
        while found := _ENDS.search(kept, look):
            yield kept[start : found.end()]
            start = look = found.end()
        self._kept, self._looked = kept[start:], len(kept) - start
        if self._looked > MOST_EVENT_BYTES:
            raise TooLong(f"an event of more than {MOST_EVENT_BYTES} bytes")

    @property
    def rest(self) -> bytes:
        """What came after the last whole event."""
        return self._kept


def payload(event: bytes) -> bytes | None:
    """What an event carries when that stands on one line; None for a comment, or for several lines."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2].strip()
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    return lines[0][5:].strip() if len(lines) == 1 else None


def with_payload(event: bytes, old: bytes, new: bytes) -> bytes:
    """The event with what it carries replaced."""
    before, _, after = event.rpartition(old)
    return before + new + after


def make_event(data: bytes) -> bytes:
    """An event that carries one line."""
    return b"data: " + data + b"\n\n"
