"""What a request wishes, read on its way: from body or headers, and nothing of it lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from syncline.route.wishes import Wish, read_asked

BODY = {"model": "m", "prompt": "é", "temperature": 0.5, "seed": 12345678901234567890}


@pytest.mark.parametrize(
    ("field", "headers", "wish"),
    [
        (None, {}, Wish()),
        ({"min": 7, "wait_seconds": 30}, {}, Wish(min=7, wait_seconds=30)),
        ({"exact": 7}, {"x-syncline-wait-seconds": "2.5"}, Wish(exact=7, wait_seconds=2.5)),
        (None, {"x-syncline-min-version": "7", "x-syncline-max-lag": "0"}, Wish(min=7, max_lag=0)),
        ({"min": 7, "session": "s"}, {}, Wish(min=7, affinity="s")),
        ({"session": "s"}, {"x-syncline-affinity": "home"}, Wish(affinity="home")),
        # what is no wish is the gateway's to refuse
        ({"min": "seven"}, {"x-syncline-max-lag": "-1"}, Wish()),
        ({"min": True, "wait_seconds": -1}, {"x-syncline-exact-version": "1e3"}, Wish()),
        (7, {}, Wish()),
    ],
)
def test_a_wish_is_read_from_body_and_headers(field: Any, headers: dict[str, str], wish: Wish) -> None:
    body = BODY if field is None else BODY | {"weight_version": field}
    assert wish == read_asked(headers, json.dumps(body).encode()).wish


def test_only_the_wait_is_taken_out_and_all_else_stays() -> None:
    asked = read_asked({}, json.dumps(BODY | {"weight_version": {"min": 7, "wait_seconds": 3, "new": [1]}}).encode())
    assert BODY | {"weight_version": {"min": 7, "new": [1]}} == json.loads(asked.body)
    for body in (
        b'{"weight_version": {"min": 7}, "x": 1.50}',
        b'{"weight_version": {"wait_seconds": "soon"}}',
        b'{"prompt": "weight_version"}',
        b'["weight_version"',
        b"\xff\x00",
        b"",
    ):
        assert body == read_asked({}, body).body


def test_a_wait_that_body_and_header_contradict_each_other_about_goes_on_to_be_refused() -> None:
    body = b'{"weight_version":{"wait_seconds":3}}'
    assert body == read_asked({"x-syncline-wait-seconds": "4"}, body).body


def test_a_wish_is_said_as_it_is_read() -> None:
    wish = Wish(min=7, max_lag=2, affinity="s", wait_seconds=1.5)
    assert wish == read_asked(wish.headers(), b"").wish
