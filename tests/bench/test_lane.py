"""What the gateway's benchmark reads out of bytes: every token, with the moment of its last byte."""

from __future__ import annotations

import pytest
from bench.lane.answers import tokens_of
from bench.lane.upstream import DONE, EVENT, STREAM_HEAD, chunk

EVENTS = [EVENT % (float(at), at + 0.5, b"null") for at in range(3)]


def test_a_token_is_here_with_the_piece_that_has_its_last_byte() -> None:
    first, second, third = (chunk(event) for event in EVENTS)
    end = chunk(DONE) + chunk(b"")
    half = len(second) // 2
    pieces = [
        (10.0, STREAM_HEAD + first),
        (11.0, second[:half]),
        (12.0, second[half:-3]),  # all but a line's end of the event, and the chunk's own
        (13.0, second[-3:] + third + end),
    ]
    assert [(0.0, 0.5, 10.0), (1.0, 1.5, 13.0), (2.0, 2.5, 13.0)] == tokens_of(pieces)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunks_may_be_cut_anywhere(size: int) -> None:
    body = b"".join([*EVENTS, DONE])
    raw = STREAM_HEAD + b"".join(chunk(body[at : at + size]) for at in range(0, len(body), size)) + chunk(b"")
    told = tokens_of([(float(at), raw[at : at + 50]) for at in range(0, len(raw), 50)])
    assert [(float(at), at + 0.5) for at in range(3)] == [token[:2] for token in told]
    assert sorted(token[2] for token in told) == [token[2] for token in told]
