"""What a request may say of versions."""

from __future__ import annotations

from typing import Any

import pytest

from syncline_agent.gateway.wanted import BadWish, Wanted, read_wanted


@pytest.mark.parametrize(
    ("field", "headers", "wanted"),
    [
        (None, {}, Wanted()),
        ({}, {}, Wanted()),
        ({"min": 7}, {}, Wanted(min=7)),
        ({"exact": 7, "wait_seconds": 0}, {}, Wanted(exact=7, wait_seconds=0.0)),
        ({"min": 7, "max_lag": 0}, {}, Wanted(min=7, max_lag=0)),
        (None, {"x-syncline-min-version": "7", "x-syncline-wait-seconds": "2.5"}, Wanted(min=7, wait_seconds=2.5)),
        ({"min": 7}, {"x-syncline-max-lag": "1", "x-syncline-min-version": "7"}, Wanted(min=7, max_lag=1)),
        ({"max_lag_seconds": 60}, {"x-syncline-max-lag-seconds": "60"}, Wanted(max_lag_seconds=60.0)),
        (None, {"x-syncline-max-lag-seconds": "0.5"}, Wanted(max_lag_seconds=0.5)),
        ({"session": "s", "min": 7}, {}, Wanted(min=7, session="s")),
        ({"session": "7"}, {"x-syncline-session": "7"}, Wanted(session="7")),
        (None, {"x-syncline-session": "é" * 256}, Wanted(session="é" * 256)),
        ({"min": None}, {"x-syncline-exact-version": "3"}, Wanted(exact=3)),
    ],
)
def test_body_and_headers_say_it_alike(field: Any, headers: dict[str, str], wanted: Wanted) -> None:
    assert wanted == read_wanted(field, headers)


@pytest.mark.parametrize(
    ("field", "headers", "says"),
    [
        (7, {}, "must be an object"),
        ({"minimum": 7}, {}, "no 'minimum'; there are min, exact, max_lag"),
        ({"min": 0}, {}, "min must be a whole number, 1 or more"),
        ({"min": True}, {}, "min must be"),
        ({"min": 1.0}, {}, "min must be"),
        ({"exact": "7"}, {}, "exact must be"),
        ({"exact": 10**12}, {}, "exact must be"),
        ({"max_lag": -1}, {}, "max_lag must be a whole number, 0 or more"),
        ({"max_lag_seconds": 0}, {}, "max_lag_seconds must be a number of seconds above 0"),
        ({"max_lag_seconds": True}, {}, "max_lag_seconds must be"),
        ({"max_lag_seconds": "60"}, {}, "max_lag_seconds must be"),
        ({"max_lag_seconds": float("nan")}, {}, "max_lag_seconds must be"),
        ({"max_lag_seconds": 10**400}, {}, "max_lag_seconds must be"),
        ({"exact": 7, "max_lag_seconds": 1}, {}, "exact goes alone"),
        ({"wait_seconds": -1}, {}, "wait_seconds must be"),
        ({"wait_seconds": "soon"}, {}, "wait_seconds must be"),
        ({"exact": 7, "min": 7}, {}, "exact goes alone"),
        ({"exact": 7, "session": "s"}, {}, "exact has no session"),
        ({"session": ""}, {}, "session must be a name of 1 to 256 characters"),
        ({"session": 7}, {}, "session must be"),
        ({"session": "s" * 257}, {}, "session must be"),
        (None, {"x-syncline-session": ""}, "session must be"),
        ({"session": "s"}, {"x-syncline-session": "t"}, "say different things"),
        ({"exact": 7}, {"x-syncline-max-lag": "1"}, "exact goes alone"),
        ({"min": 7}, {"x-syncline-min-version": "8"}, "say different things"),
        (None, {"x-syncline-min-version": "seven"}, "x-syncline-min-version must be a number"),
        (None, {"x-syncline-wait-seconds": "nan"}, "x-syncline-wait-seconds must be a number"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(field: Any, headers: dict[str, str], says: str) -> None:
    with pytest.raises(BadWish, match=says):
        read_wanted(field, headers)


def test_tokens_are_bound_by_min_and_exact_and_not_by_lag() -> None:
    assert [False, True, True] == [Wanted(min=7).accepts(version) for version in (6, 7, 8)]
    assert [False, True, False] == [Wanted(exact=7).accepts(version) for version in (6, 7, 8)]
    assert (False, True, True) == tuple(w.binds_tokens for w in (Wanted(max_lag=1), Wanted(min=1), Wanted(exact=1)))
