"""Counting in a stream at the least cost: the short ways say what the long ones say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from syncline_agent.gateway.counting import without_ids
from syncline_agent.gateway.events import Events
from syncline_agent.gateway.streaming import read_event


@pytest.mark.parametrize("spaces", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize(
    "choices",
    [
        [{"token_ids": [17]}],
        [{"token_ids": []}],
        [{"token_ids": None, "text": '"token_ids":[3]'}],
        [{"text": '"token_ids":[3]', "token_ids": [17]}],
        [{"prompt_token_ids": None, "token_ids": [17, 18], "text": "a]"}],
        [{"prompt_token_ids": [1, 2], "token_ids": [17]}],
        [{"token_ids": [17], "prompt_token_ids": [1]}],
        [{"token_ids": [17]}, {"token_ids": [18]}],
        [{"token_ids": [17], "text": '"prompt_token_ids":null'}, {"token_ids": [18]}],
        [{"text": "a"}],
    ],
)
def test_ids_that_were_not_asked_for_are_taken_out_and_nothing_else(
    choices: list[Any], spaces: tuple[str, str]
) -> None:
    names = ("token_ids", "prompt_token_ids")
    shown = [{n: None if n in names else value for n, value in choice.items()} for choice in choices]
    data = json.dumps({"choices": choices}, separators=spaces).encode()
    assert json.dumps({"choices": shown}, separators=spaces).encode() == without_ids(data)


@pytest.mark.parametrize("text", ["NaN", "Infinity", '"\\ud800"', "1" * 400])
def test_an_event_that_is_no_json_by_the_letter_is_counted_all_the_same(text: str) -> None:
    told = read_event(b'{"logprob": %b, "choices": [{"token_ids": [1, 2]}]}' % text.encode())
    assert told is not None
    assert [{"token_ids": [1, 2]}] == told["choices"]


@pytest.mark.parametrize("data", [b"{", b"[]", b"17", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_read_as_none(data: bytes) -> None:
    assert read_event(data) is None


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
def test_events_are_the_same_whatever_the_pieces_are(size: int) -> None:
    whole = [b"data: 1\n\n", b"data: 2\r\n\r\n", b"\n\n", b": c\ndata: 3\n\n", b"data: 4\r\r", b"data: 5\n\n"]
    stream = b"".join(whole) + b"data: rest"
    events = Events()
    got: list[bytes] = []
    for at in range(0, len(stream), size):
        events.feed(stream[at : at + size])
        while (event := events.next()) is not None:
            got.append(event)
    assert (whole, b"data: rest") == (got, events.rest)
