"""Who is let in, by what is served: the whole table."""

from __future__ import annotations

import pytest

from syncline_agent.gateway.admission import ADMITTED, Reason, Refused, Seen, judge
from syncline_agent.gateway.agent import State
from syncline_agent.gateway.bounds import Bounds, lag_of
from syncline_agent.gateway.wanted import Wanted
from syncline_agent.testing.lanes import applied


def seen(
    version: int | None = 7,
    *,
    target: int | None = 7,
    head: int | None = None,
    in_service: bool = True,
    pinned: bool = False,
    suspended: bool = False,
    silence: str | None = None,
    was_proven: bool = True,
    pace: float | None = None,
    most: float | None = 0.0,
    age: float | None = 0.0,
    passed: float = 0.0,
    known: int | None = None,
    newest: int | None = None,
) -> Seen:
    """`known` is the version that the state speaks of where the log is ahead of it."""
    held = None if version is None else applied(version)
    told = held if known is None else applied(known)
    state = State(
        "demo", "main", told, in_service, target, head or target, pinned, suspended, None, most, age, None, newest
    )
    return Seen(state, held, silence, was_proven, pace, lag_of(state, held, passed))


@pytest.mark.parametrize(
    "wanted", [Wanted(), Wanted(min=7), Wanted(min=3), Wanted(exact=7), Wanted(max_lag=0), Wanted(min=7, max_lag=2)]
)
def test_what_is_served_is_let_in(wanted: Wanted) -> None:
    assert ADMITTED == judge(wanted, seen())


# (what is asked, what is seen, status, reason, whether retrying helps, after how long, whether waiting here does)
REFUSALS = [
    (Wanted(), seen(was_proven=False, in_service=False), 503, Reason.NEVER_PROVEN, True, 1.0, False),
    (Wanted(), Seen(None, None, "no agent", False, None), 503, Reason.NEVER_PROVEN, True, 1.0, False),
    (Wanted(), seen(None, in_service=False), 503, Reason.OUT_OF_SERVICE, True, 1.0, False),
    (Wanted(), seen(None), 503, Reason.OUT_OF_SERVICE, True, 1.0, False),
    (Wanted(min=1), seen(in_service=False), 503, Reason.OUT_OF_SERVICE, True, 1.0, False),
    (Wanted(min=1), seen(silence="no agent"), 503, Reason.AGENT_AWAY, True, 1.0, False),
    (Wanted(), seen(silence="no agent", in_service=False), 503, Reason.AGENT_AWAY, True, 1.0, False),
    (Wanted(min=8), seen(target=9), 409, Reason.NOT_YET, True, 1.0, True),
    (Wanted(min=8), seen(), 409, Reason.NOT_YET, True, 5.0, True),
    (Wanted(min=10), seen(pace=4.0), 409, Reason.NOT_YET, True, 12.0, True),
    (Wanted(min=8), seen(pace=0.01), 409, Reason.NOT_YET, True, 1.0, True),
    (Wanted(min=900), seen(pace=4.0), 409, Reason.NOT_YET, True, 60.0, True),
    (Wanted(min=8), seen(pinned=True), 409, Reason.NOT_YET, False, 0.0, False),
    (Wanted(min=8), seen(target=9, suspended=True), 409, Reason.NOT_YET, True, 5.0, False),
    (Wanted(exact=8), seen(target=9), 409, Reason.NOT_YET, True, 1.0, True),
    (Wanted(exact=6), seen(), 409, Reason.GONE_BY, False, 0.0, False),
    (Wanted(exact=6), seen(target=6, pinned=True), 409, Reason.NOT_YET, True, 1.0, True),
    (Wanted(exact=6), seen(target=6, pinned=True, suspended=True), 409, Reason.GONE_BY, False, 0.0, False),
    (Wanted(max_lag=1), seen(target=9), 409, Reason.LAG_VERSIONS, True, 1.0, True),
    (Wanted(max_lag=1), seen(target=4, pinned=True), 409, Reason.LAG_VERSIONS, True, 1.0, True),
    (Wanted(max_lag=1), seen(target=9, suspended=True), 409, Reason.LAG_VERSIONS, True, 5.0, False),
    (Wanted(min=8, max_lag=0), seen(target=9), 409, Reason.NOT_YET, True, 1.0, True),
    (Wanted(max_lag=9), seen(age=31.0), 409, Reason.LAG_UNKNOWN, True, 5.0, True),
    (Wanted(max_lag=9), seen(age=20.0, passed=11.0), 409, Reason.LAG_UNKNOWN, True, 5.0, True),
    (Wanted(max_lag=9), seen(age=None), 409, Reason.LAG_UNKNOWN, True, 5.0, True),
    (Wanted(max_lag=9), seen(target=None), 409, Reason.LAG_UNKNOWN, True, 1.0, True),
    (Wanted(max_lag_seconds=5), seen(target=8, most=5.1), 409, Reason.LAG_SECONDS, True, 1.0, True),
    (Wanted(max_lag_seconds=5), seen(target=8, most=4.0, passed=1.1), 409, Reason.LAG_SECONDS, True, 1.0, True),
    (Wanted(max_lag_seconds=5), seen(target=8, most=6.0, suspended=True), 409, Reason.LAG_SECONDS, True, 5.0, False),
    (Wanted(max_lag_seconds=5), seen(target=8, most=None), 409, Reason.LAG_UNKNOWN, True, 1.0, True),
    (Wanted(max_lag_seconds=5), seen(target=8, most=1.0, known=6), 409, Reason.LAG_UNKNOWN, True, 1.0, True),
    (Wanted(max_lag_seconds=0.5), seen(most=1.0, age=1.0), 409, Reason.LAG_UNKNOWN, True, 1.0, True),
    (Wanted(max_lag_seconds=5), seen(most=70.0, age=70.0), 409, Reason.LAG_UNKNOWN, True, 5.0, True),
    (Wanted(max_lag_seconds=5), seen(target=None), 409, Reason.LAG_UNKNOWN, True, 1.0, True),
    (Wanted(max_lag_seconds=5), seen(silence="no agent"), 503, Reason.AGENT_AWAY, True, 1.0, False),
]


@pytest.mark.parametrize("row", REFUSALS, ids=[f"{n}-{row[3].value}" for n, row in enumerate(REFUSALS)])
def test_what_is_not_served_is_refused_with_what_to_do(
    row: tuple[Wanted, Seen, int, Reason, bool, float, bool],
) -> None:
    wanted, moment, *expected = row
    verdict = judge(wanted, moment)
    assert isinstance(verdict, Refused)
    assert expected == [verdict.status, verdict.reason, verdict.retry, verdict.after_s, verdict.waiting_helps]


def test_an_engine_serves_on_while_its_agent_is_away_for_who_asks_for_no_version() -> None:
    assert ADMITTED == judge(Wanted(), seen(silence="no agent"))


# (what is asked, the pool's bounds, what is seen, reason or None, whether retrying helps)
POOLS: list[tuple[Wanted, Bounds | None, Seen, Reason | None, bool]] = [
    (Wanted(), Bounds(2), seen(target=9), None, True),
    (Wanted(), Bounds(1), seen(target=9), Reason.LAG_VERSIONS, True),
    (Wanted(), Bounds(1), seen(target=8, newest=9), Reason.LAG_VERSIONS, True),
    (Wanted(), Bounds(1), seen(target=8, newest=8), None, True),
    (Wanted(), Bounds(1), seen(newest=6), None, True),
    (Wanted(), Bounds(1), seen(pinned=True, newest=9), None, True),
    (Wanted(max_lag=9), Bounds(1), seen(target=9), Reason.LAG_VERSIONS, True),
    (Wanted(max_lag=1), Bounds(9), seen(target=9), Reason.LAG_VERSIONS, True),
    (Wanted(max_lag_seconds=60.0), Bounds(None, 5.0), seen(target=9, most=6.0), Reason.LAG_SECONDS, True),
    (Wanted(max_lag=2), Bounds(None, 5.0), seen(target=9, most=6.0), Reason.LAG_SECONDS, True),
    (Wanted(max_lag=2), Bounds(None, 5.0), seen(target=9, most=4.0), None, True),
    (Wanted(min=7), Bounds(1), seen(target=9), Reason.LAG_VERSIONS, True),
    (Wanted(exact=7), Bounds(1), seen(target=9), Reason.LAG_VERSIONS, False),
    (Wanted(exact=7), Bounds(None, 5.0), seen(most=60.0, age=60.0), Reason.LAG_UNKNOWN, True),
    (Wanted(exact=7), Bounds(1), seen(target=8), None, True),
    (Wanted(), Bounds(0, 1.0), seen(pinned=True, most=900.0, age=900.0), None, True),
    (Wanted(), Bounds(0, 1.0), seen(age=0.1, most=None, known=6), None, True),
    (Wanted(), Bounds(1), seen(silence="no agent"), Reason.AGENT_AWAY, True),
    (Wanted(), None, seen(), Reason.NO_POLICY, True),
    (Wanted(), None, seen(silence="no agent"), Reason.NO_POLICY, True),
    (Wanted(), None, seen(was_proven=False, in_service=False), Reason.NEVER_PROVEN, True),
]


@pytest.mark.parametrize("row", POOLS, ids=map(str, range(len(POOLS))))
def test_a_pool_s_bounds_hold_for_every_request_and_a_request_may_be_stricter_alone(
    row: tuple[Wanted, Bounds | None, Seen, Reason | None, bool],
) -> None:
    wanted, pool, moment, reason, retry = row
    verdict = judge(wanted, moment, pool)
    if reason is None:
        assert ADMITTED == verdict
    else:
        assert isinstance(verdict, Refused)
        assert (reason, retry) == (verdict.reason, verdict.retry)


def test_a_refusal_says_how_far_behind_it_is_and_whose_bound_that_breaks() -> None:
    verdict = judge(Wanted(max_lag_seconds=90.0), seen(target=9, most=100.0), Bounds(1))
    assert isinstance(verdict, Refused)
    assert "2 from its target 9; the pool accepts at most 1 versions and the request accepts at most 90.0 seconds" in (
        verdict.message
    )
