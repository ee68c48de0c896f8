"""When a call is tried again, for how long, and how a lost reply is settled."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from syncline.clock import ManualClock
from syncline.errors import AlreadyExists, HeadMoved, NotFound, StoreDenied, StoreMisused, StoreUnavailable
from syncline.metrics import Metrics
from syncline.store.faulty import Fault, FaultKind, FaultyStore, RandomFaults, ScriptedFaults
from syncline.store.memory import MemoryStore
from syncline.store.retrying import RetryingStore, RetryPolicy

LOST, DOWN = Fault(FaultKind.LOST_REPLY), Fault(FaultKind.UNAVAILABLE)


class Parts:
    """A retrying store over a scripted one over memory, all on one clock."""

    def __init__(self, *script: tuple[str, str, Fault], policy: RetryPolicy | None = None) -> None:
        self.clock = ManualClock()
        self.inner = MemoryStore(self.clock)
        self.plan = ScriptedFaults(script)
        self.metrics = Metrics()
        faulty = FaultyStore(self.inner, self.plan, clock=self.clock, rng=random.Random(1))
        self.store = RetryingStore(faulty, clock=self.clock, rng=random.Random(2), policy=policy, metrics=self.metrics)

    def content(self, key: str) -> bytes:
        found = self.inner.get(key, max_bytes=1 << 20)
        assert found is not None
        return found.data


def test_a_store_that_is_down_for_a_while_is_only_slow() -> None:
    parts = Parts(*[("put", "a", DOWN)] * 5)
    parts.store.put("a", b"1")
    assert b"1" == parts.content("a")
    assert 0 == parts.plan.left
    retries = parts.metrics.registry.get_sample_value("syncline_store_retries_total", {"operation": "put"})
    assert 5 == retries


def test_a_store_that_stays_down_is_given_up_at_the_deadline() -> None:
    parts = Parts(*[("head", "a", DOWN)] * 1000, policy=RetryPolicy(deadline_s=30))
    began = parts.clock.monotonic()
    with pytest.raises(StoreUnavailable, match=r"gave up after \d+ tries in \d+"):
        parts.store.head("a")
    assert 20 < parts.clock.monotonic() - began <= 30


def test_a_deadline_of_nothing_tries_once() -> None:
    parts = Parts(("head", "a", DOWN), policy=RetryPolicy(deadline_s=0))
    with pytest.raises(StoreUnavailable, match="after 1 tries"):
        parts.store.head("a")


@given(seed=st.integers(0, 2**32))
def test_waits_are_drawn_below_a_bound_that_doubles(seed: int) -> None:
    clock, inner = ManualClock(), MemoryStore(ManualClock())
    faulty = FaultyStore(inner, ScriptedFaults([("head", "a", DOWN)] * 9), clock=clock, rng=random.Random(1))
    policy = RetryPolicy(first_s=1, most_s=8, deadline_s=1e6)
    pauses: list[float] = []

    class Recording(ManualClock):
        def sleep(self, seconds: float) -> None:
            pauses.append(seconds)

    store = RetryingStore(faulty, clock=Recording(), rng=random.Random(seed), policy=policy)
    with pytest.raises(NotFound):
        store.head("a")
    assert 9 == len(pauses)
    for pause, bound in zip(pauses, [1, 2, 4, 8, 8, 8, 8, 8, 8], strict=True):
        assert 0 <= pause <= bound


@pytest.mark.parametrize("policy", [(0, 1, 1), (2, 1, 1), (1, 1, -1)])
def test_a_policy_that_cannot_be_is_refused(policy: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="needs"):
        RetryPolicy(*policy)


def test_what_cannot_help_is_not_tried_again() -> None:
    parts = Parts(("get", "a", Fault(FaultKind.DENIED)))
    began = parts.clock.monotonic()
    with pytest.raises(StoreDenied):
        parts.store.get("a", max_bytes=1)
    with pytest.raises(NotFound):
        parts.store.get("a", max_bytes=1)
    parts.inner.put("a", b"12")
    with pytest.raises(StoreMisused):
        parts.store.get("a", max_bytes=1)
    with pytest.raises(AlreadyExists):
        parts.store.put_if_absent("a", b"12")
    with pytest.raises(HeadMoved):
        parts.store.compare_and_put("a", b"12", etag="other")
    assert began == parts.clock.monotonic()


# Lost replies

CREATES: dict[str, Callable[[RetryingStore, bytes], str]] = {
    "put_if_absent": lambda store, data: store.put_if_absent("a", data),
    "compare_and_put": lambda store, data: store.compare_and_put("a", data, etag=None),
    "put_large": lambda store, data: store.put_large("a", data),
}


@pytest.mark.parametrize("call", CREATES)
def test_a_create_whose_reply_was_lost_succeeds(call: str) -> None:
    parts = Parts((call, "a", LOST))
    assert CREATES[call](parts.store, b"mine") == parts.inner.head("a").etag
    assert b"mine" == parts.content("a")


@pytest.mark.parametrize("call", CREATES)
def test_an_empty_create_whose_reply_was_lost_succeeds(call: str) -> None:
    parts = Parts((call, "a", LOST))
    assert CREATES[call](parts.store, b"") == parts.inner.head("a").etag


@pytest.mark.parametrize("call", CREATES)
@pytest.mark.parametrize("theirs", [b"them", b"a longer one", b""])
def test_a_create_that_another_won_while_the_store_was_down_is_lost(call: str, theirs: bytes) -> None:
    parts = Parts((call, "a", DOWN))
    parts.inner.put("a", theirs)
    with pytest.raises((AlreadyExists, HeadMoved)):
        CREATES[call](parts.store, b"mine")
    assert theirs == parts.content("a")


@pytest.mark.parametrize("call", CREATES)
def test_a_first_try_is_never_taken_for_an_earlier_one(call: str) -> None:
    parts = Parts()
    parts.inner.put("a", b"mine")
    with pytest.raises((AlreadyExists, HeadMoved)):
        CREATES[call](parts.store, b"mine")


@pytest.mark.parametrize("call", CREATES)
def test_reading_back_is_tried_again_too(call: str) -> None:
    read = "head" if call == "put_large" else "get"
    parts = Parts((call, "a", LOST), (read, "a", DOWN), (read, "a", LOST))
    assert CREATES[call](parts.store, b"mine") == parts.inner.head("a").etag


def test_a_replacement_whose_reply_was_lost_succeeds_once() -> None:
    parts = Parts(("compare_and_put", "head", LOST))
    etag = parts.inner.put("head", b"1")
    assert parts.store.compare_and_put("head", b"2", etag=etag) == parts.inner.head("head").etag
    with pytest.raises(HeadMoved):
        parts.store.compare_and_put("head", b"2", etag=etag)


def test_a_replacement_that_was_deleted_again_is_lost() -> None:
    parts = Parts(("compare_and_put", "head", DOWN))
    etag = parts.inner.put("head", b"1")
    parts.inner.delete("head")
    with pytest.raises(HeadMoved):
        parts.store.compare_and_put("head", b"2", etag=etag)


def test_a_large_create_is_compared_with_its_source_piece_by_piece() -> None:
    data = random.Random(1).randbytes(9 << 20)
    parts = Parts(("put_large", "a", LOST))
    assert parts.store.put_large("a", data) == parts.inner.head("a").etag
    other = Parts(("put_large", "a", DOWN))
    other.inner.put("a", data[:-1] + b"x")
    with pytest.raises(AlreadyExists):
        other.store.put_large("a", data)


# Listings


def test_a_listing_that_breaks_gives_each_object_once() -> None:
    parts = Parts(("list_after", "a/", LOST), ("list_after", "a/", DOWN), ("list_after", "a/", LOST))
    keys = [f"a/{n}" for n in range(6)]
    for key in keys:
        parts.inner.put(key, b"1")
    assert keys == [i.key for i in parts.store.list_after("a/")]
    assert 0 == parts.plan.left


def test_a_limited_listing_that_breaks_keeps_its_limit() -> None:
    parts = Parts(("list_after", "a/", LOST))
    for n in range(6):
        parts.inner.put(f"a/{n}", b"1")
    assert ["a/2", "a/3", "a/4"] == [i.key for i in parts.store.list_after("a/", after="a/1", limit=3)]


def test_a_listing_of_a_store_that_stays_down_is_given_up() -> None:
    parts = Parts(*[("list_after", "a", DOWN)] * 1000)
    with pytest.raises(StoreUnavailable, match="gave up"):
        list(parts.store.list_after("a"))


@given(seed=st.integers(0, 2**32))
def test_a_counter_behind_a_bad_network_counts_every_increment_once(seed: int) -> None:
    clock, rng = ManualClock(), random.Random(seed)
    inner = MemoryStore(clock)
    plan = RandomFaults(rng, {FaultKind.UNAVAILABLE: 0.2, FaultKind.LOST_REPLY: 0.3, FaultKind.DELAY: 0.1})
    store = RetryingStore(
        FaultyStore(inner, plan, clock=clock, rng=rng), clock=clock, rng=rng, policy=RetryPolicy(deadline_s=1e6)
    )
    etag = store.compare_and_put("count", b"0", etag=None)
    for n in range(1, 20):
        etag = store.compare_and_put("count", b"%d" % n, etag=etag)
    assert etag == inner.head("count").etag
    found = inner.get("count", max_bytes=10)
    assert found is not None
    assert b"19" == found.data


def test_an_outage_is_said_once_however_many_calls_meet_it() -> None:
    down = [(operation, "a", DOWN) for operation in ("head", "put", "get") for _ in range(40)]
    parts = Parts(*down, policy=RetryPolicy(deadline_s=20))
    with capture_logs() as said:
        for call in (lambda: parts.store.head("a"), lambda: parts.store.put("a", b"1")):
            with pytest.raises(StoreUnavailable):
                call()
    (line,) = said
    assert ("retrying", "warning", "head", "memory:", 20) == (
        line["event"], line["log_level"], line["operation"], line["store"], line["gives_up_after_seconds"],
    )  # fmt: skip
    assert "503 SlowDown" in line["error"]


def test_the_next_outage_is_said_again_and_a_short_one_never() -> None:
    policy = RetryPolicy(first_s=2, most_s=2, deadline_s=1000)
    parts = Parts(*[("put", "a", DOWN)] * 20, ("put", "b", DOWN), *[("put", "c", DOWN)] * 20, policy=policy)
    with capture_logs() as said:
        for key in "abc":
            parts.store.put(key, b"1")
    assert 2 == len(said)
    assert 0 == parts.plan.left


def test_a_listing_that_waits_says_so_too() -> None:
    parts = Parts(*[("list_after", "a", DOWN)] * 20, policy=RetryPolicy(first_s=2, most_s=2, deadline_s=1000))
    with capture_logs() as said:
        assert [] == list(parts.store.list_after("a"))
    assert ["list_after"] == [line["operation"] for line in said]
