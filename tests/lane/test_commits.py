"""The agent's log of commits."""

from __future__ import annotations

from collections.abc import Sequence

from syncline_agent.engine import Applied, Crossing
from syncline_agent.lane.commits import CommitLog


def crossing(version: int, *requests: str, ended: Sequence[str] = ()) -> Crossing:
    return Crossing(
        Applied("run", "main", version - 1, "d0", True),
        Applied("run", "main", version, "d1", True),
        dict.fromkeys(requests, 3),
        ended,
    )


def test_commits_are_numbered_and_read_from_any_place_on() -> None:
    log = CommitLog("a")
    assert (1, 0, []) == (log.since(0).first, log.since(0).last, list(log.since(0).commits))
    for version in (2, 3, 4):
        log.note(crossing(version))
    page = log.since(1)
    assert ("a", 1, 3) == (page.log, page.first, page.last)
    assert [(2, 3), (3, 4)] == [(c.seq, c.crossing.after.version) for c in page.commits if c.crossing.after]


def test_the_oldest_make_room_by_number_and_by_what_requests_take_and_the_newest_stays() -> None:
    log = CommitLog("a", most_commits=3, most_bytes=600)
    for version in range(2, 7):
        log.note(crossing(version))
    assert (3, 5) == (log.since(0).first, log.since(0).last)
    log.note(crossing(7, "r1", "r2", "r3"))
    log.note(crossing(8, "r4", "r5"))
    assert [7] == [c.seq for c in log.since(0).commits]
    log.note(crossing(9, *(f"r{i}" for i in range(9))))
    assert [8] == [c.seq for c in log.since(0).commits]
    log.note(crossing(10, "r1"))
    log.note(crossing(11, ended=["e1", "e2"]))
    log.note(crossing(12, ended=["e" * 200]))
    assert [10, 11] == [c.seq for c in log.since(0).commits]


def test_listeners_are_told_of_each_commit_until_they_leave() -> None:
    log = CommitLog("a")
    told: list[int] = []
    leave = log.listen(lambda: told.append(log.since(0).last))
    log.note(crossing(2))
    leave()
    log.note(crossing(3))
    assert [1] == told
