"""Which version each token came from, read from commits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from syncline_agent.engine import Applied, Crossing
from syncline_agent.lane.reading import TokenSpan, token_spans


def at(version: int) -> Applied:
    return Applied("run", "main", version, f"d{version}", True)


def commit(before: int, after: int, ended: Sequence[str] | None = (), **spans: int) -> Crossing:
    return Crossing(at(before), at(after), spans, ended)


LOST = Crossing(at(2), None, None, None)
UNCOUNTED = Crossing(at(2), at(3), None, None)


@pytest.mark.parametrize(
    ("crossed", "spans"),
    [
        ([], [(0, 9, 1)]),
        ([commit(1, 2, r=4)], [(0, 4, 1), (4, 9, 2)]),
        ([commit(1, 2, r=0)], [(0, 9, 2)]),
        ([commit(1, 2, r=9)], [(0, 9, 1)]),
        ([commit(1, 2, ["r"], other=3)], [(0, 9, 1)]),
        ([commit(1, 2, other=3)], [(0, 9, 2)]),
        ([commit(1, 2), commit(2, 3, r=5), commit(3, 2, r=5), commit(2, 4, ["r"])], [(0, 5, 2), (5, 9, 2)]),
        ([commit(1, 2, r=4), commit(2, 3, r=4), commit(3, 4, r=6)], [(0, 4, 1), (4, 6, 3), (6, 9, 4)]),
    ],
)
def test_tokens_are_told_apart_by_what_the_engine_counted(
    crossed: Sequence[Crossing], spans: Sequence[tuple[int, int, int]]
) -> None:
    assert [TokenSpan(*span) for span in spans] == token_spans("r", 9, 1, crossed)


def test_an_answer_without_tokens_has_no_spans() -> None:
    assert [] == token_spans("r", 0, 1, [commit(1, 2, r=0)])


@pytest.mark.parametrize(
    "crossed",
    [
        [LOST],
        [UNCOUNTED],
        [commit(1, 2, None, other=3)],
        [commit(1, 2, r=4), commit(2, 3)],
        [commit(1, 2, r=10)],
        [commit(1, 2, r=4), commit(2, 3, r=3)],
        [commit(1, 2, r=4), LOST],
        [commit(1, 2, ["r"], r=4)],
    ],
)
def test_what_nobody_counted_is_not_guessed(crossed: Sequence[Crossing]) -> None:
    assert token_spans("r", 9, 1, crossed) is None


def test_where_nobody_knew_what_was_applied_only_what_begins_after_a_commit_is_told() -> None:
    assert [TokenSpan(0, 9, 2)] == token_spans("r", 9, None, [commit(1, 2)])
    assert [TokenSpan(0, 9, 2)] == token_spans("r", 9, None, [commit(1, 2, r=0)])
    assert [] == token_spans("r", 0, None, [])
    for crossed in ([], [commit(1, 2, r=4)], [commit(1, 2, ["r"])]):
        assert token_spans("r", 9, None, crossed) is None
