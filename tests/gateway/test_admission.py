"""Who is let in, by what is served: the whole table."""

from __future__ import annotations

import pytest

from syncline_agent.gateway.admission import ADMITTED, Reason, Refused, Seen, judge
from syncline_agent.gateway.agent import State
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
) -> Seen:
    held = None if version is None else applied(version)
    state = State("demo", "main", held, in_service, target, head or target, pinned, suspended, None)
    return Seen(state, held, silence, was_proven, pace)


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
    (Wanted(max_lag=1), seen(target=9), 409, Reason.NOT_YET, True, 1.0, True),
    (Wanted(max_lag=1), seen(target=4, pinned=True), 409, Reason.NOT_YET, True, 1.0, True),
    (Wanted(max_lag=1), seen(target=9, suspended=True), 409, Reason.NOT_YET, True, 5.0, False),
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
