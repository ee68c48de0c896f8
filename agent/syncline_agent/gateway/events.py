"""Server-sent events out of a stream of bytes, each with the very bytes that it came in.

Bytes in, events out; knows nothing of what is in them.
"""

from __future__ import annotations

import re

MOST_EVENT_BYTES = 16 << 20
_ENDS = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class TooLong(ValueError):
    """An event that is not at its end after `MOST_EVENT_BYTES`."""


class Events:
    """Cuts a stream into its events."""

    def __init__(self) -> None:
        self._kept = b""
        self._at = 0
        self._looked = 0
        self._plain = True
        """Nothing but line feeds ends a line in what is kept: nearly always, and much faster to look through."""

    def feed(self, data: bytes) -> None:
        """More of the stream."""
        rest = self._kept[self._at :]
        self._plain = b"\r" not in data and (self._plain or not rest)
        self._kept = rest + data if rest else data
        self._looked -= self._at
        self._at = 0

    def next(self) -> bytes | None:
        """The next event that is whole by now, its blank line included. TooLong when one does not end."""
        kept, at = self._kept, self._at
        if at == len(kept):
            return None
        look = max(at, self._looked - 3)
        if self._plain:
            found = kept.find(b"\n\n", look)
            end = found + 2 if found >= 0 else 0
        else:
            match = _ENDS.search(kept, look)
            end = match.end() if match else 0
        if not end:
            self._looked = len(kept)
            if len(kept) - at > MOST_EVENT_BYTES:
                raise TooLong(f"an event of more than {MOST_EVENT_BYTES} bytes")
            return None
        self._at = self._looked = end
        return kept[at:end]

    @property
    def rest(self) -> bytes:
        """What came after the last whole event."""
        return self._kept[self._at :]


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
