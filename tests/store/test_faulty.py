"""Injected faults do what they say: the call is carried out or not, and reads lie in the way that was asked for."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from syncline.clock import ManualClock
from syncline.errors import NotFound, StoreDenied, StoreUnavailable, SynclineError
from syncline.store.faulty import WRITES, Fault, FaultKind, FaultyStore, RandomFaults, ScriptedFaults
from syncline.store.memory import MemoryStore

CALLS: dict[str, Callable[[FaultyStore], object]] = {
    "get": lambda s: s.get("old", max_bytes=100),
    "get_range_into": lambda s: s.get_range_into("old", 0, bytearray(4)),
    "put_if_absent": lambda s: s.put_if_absent("new", b"1"),
    "compare_and_put": lambda s: s.compare_and_put("new", b"1", etag=None),
    "put": lambda s: s.put("new", b"1"),
    "put_large": lambda s: s.put_large("new", b"1"),
    "head": lambda s: s.head("old"),
    "list_after": lambda s: list(s.list_after("old")),
    "delete": lambda s: s.delete("old"),
}


def faulty(*script: tuple[str, str, Fault]) -> tuple[FaultyStore, MemoryStore, ManualClock]:
    clock = ManualClock()
    inner = MemoryStore(clock)
    inner.put("old", b"0123")
    return FaultyStore(inner, ScriptedFaults(script), clock=clock, rng=random.Random(1)), inner, clock


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FaultKind.UNAVAILABLE, StoreUnavailable),
        (FaultKind.DENIED, StoreDenied),
        (FaultKind.FULL, StoreUnavailable),
    ],
)
def test_a_refused_call_is_not_carried_out(operation: str, kind: FaultKind, error: type[SynclineError]) -> None:
    store, inner, _ = faulty((operation, "", Fault(kind)))
    with pytest.raises(error):
        CALLS[operation](store)
    assert ["old"] == [i.key for i in inner.list_after("")]
    CALLS[operation](store)  # each fault is met once


@pytest.mark.parametrize("operation", sorted(WRITES))
def test_a_call_whose_reply_is_lost_is_carried_out(operation: str) -> None:
    store, inner, _ = faulty((operation, "", Fault(FaultKind.LOST_REPLY)))
    with pytest.raises(StoreUnavailable, match="connection broke"):
        CALLS[operation](store)
    assert 1 == inner.head("new").size


def test_a_delete_whose_reply_is_lost_is_carried_out() -> None:
    store, inner, _ = faulty(("delete", "", Fault(FaultKind.LOST_REPLY)))
    with pytest.raises(StoreUnavailable):
        store.delete("old")
    with pytest.raises(NotFound):
        inner.head("old")


@pytest.mark.parametrize("operation", CALLS)
def test_a_slow_call_takes_its_time_on_the_clock_and_succeeds(operation: str) -> None:
    store, _, clock = faulty((operation, "", Fault(FaultKind.DELAY, seconds=7.0)))
    began = clock.monotonic()
    CALLS[operation](store)
    assert 7.0 == clock.monotonic() - began


def test_a_truncated_read_gives_half() -> None:
    store, _, _ = faulty(("get", "", Fault(FaultKind.TRUNCATED)), ("get_range_into", "", Fault(FaultKind.TRUNCATED)))
    found = store.get("old", max_bytes=10)
    assert found is not None
    assert b"01" == found.data
    buffer = bytearray(b"xxxx")
    store.get_range_into("old", 0, buffer)
    assert b"01\0\0" == buffer


def test_a_flipped_read_has_one_bit_wrong() -> None:
    store, inner, _ = faulty(("get", "", Fault(FaultKind.FLIPPED)), ("get_range_into", "", Fault(FaultKind.FLIPPED)))
    found = store.get("old", max_bytes=10)
    assert found is not None
    buffer = bytearray(4)
    store.get_range_into("old", 0, buffer)
    right = inner.get("old", max_bytes=10)
    assert right is not None
    for data in (found.data, buffer):
        assert 1 == sum((a ^ b).bit_count() for a, b in zip(data, right.data, strict=True))


def test_a_script_names_calls_by_operation_and_key() -> None:
    store, _, _ = faulty(("get", "versions/", Fault(FaultKind.UNAVAILABLE)))
    store.get("old", max_bytes=10)
    with pytest.raises(StoreUnavailable):
        store.get("run/versions/1", max_bytes=10)


def test_the_same_seed_draws_the_same_faults() -> None:
    chances = {FaultKind.UNAVAILABLE: 0.3, FaultKind.FLIPPED: 0.3, FaultKind.FULL: 0.2}

    def drawn(seed: int) -> list[Fault | None]:
        plan = RandomFaults(random.Random(seed), chances)
        return [plan.draw(operation, "a") for operation in list(CALLS) * 20]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    kinds = {fault.kind for fault in drawn(1) if fault is not None}
    assert set(chances) == kinds


def test_only_writes_meet_a_full_disk_and_only_reads_meet_wrong_bytes() -> None:
    full = RandomFaults(random.Random(1), {FaultKind.FULL: 1.0})
    flipped = RandomFaults(random.Random(1), {FaultKind.FLIPPED: 1.0})
    for operation in CALLS:
        assert (operation in WRITES) == (full.draw(operation, "a") is not None)
        assert (operation in ("get", "get_range_into")) == (flipped.draw(operation, "a") is not None)
