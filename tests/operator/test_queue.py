"""When an object's turn comes, by a clock that the test moves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.clock import ManualClock
from syncline_operator.kube.resources import CONFIG_MAPS, ObjectKey
from syncline_operator.work.queue import QueueSettings, WorkQueue

A, B, C = (ObjectKey(CONFIG_MAPS, "any", name) for name in "abc")


def queue(**changes: float | int) -> tuple[WorkQueue, ManualClock]:
    clock = ManualClock()
    return WorkQueue(QueueSettings(**changes), clock=clock, randomness=random.Random(7)), clock  # type: ignore[arg-type]


def drain(due: WorkQueue) -> list[ObjectKey]:
    keys: list[ObjectKey] = []
    while (key := due.take()) is not None:
        keys.append(key)
    return keys


def test_an_object_that_is_told_often_is_due_once_and_the_longest_due_comes_first() -> None:
    due, clock = queue()
    for key in (B, A, B, A):
        due.add(key)
        clock.advance(1)
    assert (2, 4.0) == (due.depth, due.age_s)
    assert [B, A] == drain(due)
    assert (0, None) == (due.depth, due.next_s())


def test_an_object_is_never_worked_on_twice_at_once() -> None:
    due, clock = queue(settle_s=2)
    due.add(A)
    assert A == due.take()
    due.add(A)
    due.add(B)
    assert [B] == drain(due)
    assert due.next_s() is None  # what is worked on wakes nobody
    due.done(A)
    assert (None, 2.0) == (due.take(), due.next_s())
    clock.advance(2)
    assert [A] == drain(due)


def test_what_happens_soon_after_a_look_is_seen_in_one() -> None:
    due, clock = queue(settle_s=2)
    due.add(A)
    due.take()
    due.done(A)
    for _ in range(3):
        due.add(A)
        clock.advance(0.5)
    assert (None, 0.5) == (due.take(), due.next_s())
    clock.advance(0.5)
    assert [A] == drain(due)
    due.done(A)
    clock.advance(3)
    due.add(A)
    assert [A] == drain(due)


def test_the_earliest_of_the_times_that_were_asked_for_counts() -> None:
    due, clock = queue()
    due.add(A, after_s=60)
    due.add(A, after_s=10)
    due.add(A, after_s=30)
    clock.advance(9)
    assert (None, 1.0) == (due.take(), due.next_s())
    clock.advance(1)
    assert [A] == drain(due)
    due.done(A, again_s=5)
    assert 5.0 == due.next_s()
    clock.advance(100)
    assert [A] == drain(due)


def test_failures_double_the_wait_with_jitter_up_to_the_most_until_a_look_succeeds() -> None:
    due, clock = queue(backoff_s=1, backoff_max_s=20, settle_s=0)
    due.add(A)
    waits: list[float] = []
    for _ in range(8):
        assert A == due.take()
        waits.append(due.retry(A))
        clock.advance(waits[-1])
    assert all(
        0.75 * nominal <= wait <= 1.25 * nominal
        for nominal, wait in zip([1, 2, 4, 8, 16, 20, 20, 20], waits, strict=True)
    )
    assert len(waits) == len(set(waits))
    assert A == due.take()
    due.done(A)
    due.add(A)
    assert A == due.take()
    assert due.retry(A) <= 1.25


def test_a_server_that_asks_to_be_left_alone_is() -> None:
    due, clock = queue(backoff_s=1, settle_s=0)
    due.add(A)
    due.take()
    assert 17.0 == due.retry(A, at_least_s=17)
    clock.advance(16.9)
    assert due.take() is None
    clock.advance(0.1)
    assert A == due.take()


def test_what_a_failing_look_writes_itself_does_not_bring_it_back_at_once() -> None:
    due, clock = queue(backoff_s=4, backoff_max_s=400, settle_s=0)
    due.add(A)
    for _ in range(5):
        due.take()
        due.add(A)  # told of its own write while it still runs, and again after it
        due.retry(A)
        due.add(A)
        assert due.next_s() == pytest.approx(4, rel=0.26)
        clock.advance(6)


def test_news_shorten_the_wait_after_many_failures() -> None:
    due, clock = queue(backoff_s=1, backoff_max_s=300, settle_s=0)
    due.add(A)
    for _ in range(9):
        due.take()
        clock.advance(due.retry(A))
    due.take()
    assert due.retry(A) > 200
    due.add(A)
    assert 1.0 == due.next_s()


def test_many_that_fail_together_do_not_come_back_together() -> None:
    due, clock = queue(backoff_s=0.1, backoff_max_s=0.1, retries_per_s=10, retries_at_once=20, settle_s=0)
    keys = [ObjectKey(CONFIG_MAPS, "any", str(number)) for number in range(120)]
    for key in keys:
        due.add(key)
    for key in drain(due):
        due.retry(key)
    back: list[int] = []
    for _ in range(11):
        clock.advance(1)
        taken = drain(due)
        back.append(len(taken))
        for key in taken:
            due.done(key)
    assert 120 == sum(back)
    assert back[0] <= 32
    assert max(back[1:]) <= 11


def test_waiting_counts_from_when_somebody_works() -> None:
    due, clock = queue()
    due.add(A)
    clock.advance(1000)
    due.add(B)
    due.restart()
    clock.advance(3)
    assert 3.0 == due.age_s
    assert {A, B} == set(drain(due))
    clock.advance(5)
    assert 5.0 == due.age_s  # worked on all that time


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("atrdw"), st.sampled_from([A, B, C]), st.integers(0, 30)), max_size=60))
def test_nothing_that_was_added_is_forgotten_and_nothing_runs_twice(steps: list[tuple[str, ObjectKey, int]]) -> None:
    due, clock = queue(settle_s=1, backoff_s=1, backoff_max_s=8)
    running: set[ObjectKey] = set()
    wanted: set[ObjectKey] = set()
    for step, key, seconds in steps:
        if step == "a":
            due.add(key, after_s=seconds)
            wanted.add(key)
        elif step == "w":
            clock.advance(seconds)
        elif step == "t":
            taken = due.take()
            if taken is not None:
                assert taken not in running
                assert taken in wanted
                running.add(taken)
                wanted.discard(taken)
        elif key in running:
            running.discard(key)
            if step == "r":
                due.retry(key)
                wanted.add(key)
            else:
                due.done(key)
    for key in running:
        due.done(key)
    while wanted:
        seconds_left = due.next_s()
        assert seconds_left is not None
        assert seconds_left <= 31
        clock.advance(seconds_left)
        for key in drain(due):
            wanted.discard(key)
            due.done(key)
    clock.advance(100)
    assert [] == drain(due)
