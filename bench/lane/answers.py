"""Tokens and their moments out of the bytes of a chunked answer, read when it is over. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

Piece = tuple[float, bytes]
"""When it was here, and what."""
Token = tuple[float, float, float]
"""When it was due, sent, and here."""
_STAMPS = re.compile(rb'"due":([\d.]+),"sent":([\d.]+)')


def tokens_of(pieces: Sequence[Piece]) -> list[Token]:
    """Every token of one stream. A token is here with the last byte of its event."""
    raw = b"".join(data for _, data in pieces)
    here = list(accumulate(len(data) for _, data in pieces))
    body, ends, starts = _unchunked(raw)
    found: list[Token] = []
    at = 0
    while (end := body.find(b"\n\n", at)) >= 0:
        stamps = _STAMPS.search(body, at, end)
        if stamps is not None:
            chunk = bisect_left(ends, end + 2)
            last_byte = starts[chunk] + (end + 2 - (ends[chunk - 1] if chunk else 0))
            found.append((float(stamps[1]), float(stamps[2]), pieces[bisect_left(here, last_byte)][0]))
        at = end + 2
    return found


def _unchunked(raw: bytes) -> tuple[bytes, list[int], list[int]]:
    """The body; where each chunk ends in it; where each begins in the raw bytes."""
    at = raw.index(b"\r\n\r\n") + 4
    parts: list[bytes] = []
    starts: list[int] = []
    while size := int(raw[at : (line := raw.index(b"\r\n", at))], 16):
        starts.append(line + 2)
        parts.append(raw[line + 2 : line + 2 + size])
        at = line + 2 + size + 2
    return b"".join(parts), list(accumulate(map(len, parts))), starts
