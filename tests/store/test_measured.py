"""Every store call is timed, its bytes counted and its failure named."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from syncline.clock import ManualClock
from syncline.errors import (
    AlreadyExists,
    HeadMoved,
    NotFound,
    StoreDenied,
    StoreMisused,
    StoreUnavailable,
    SynclineError,
)
from syncline.metrics import Metrics
from syncline.store.faulty import Fault, FaultKind, FaultyStore, ScriptedFaults
from syncline.store.measured import MeasuredStore, reason_of
from syncline.store.memory import MemoryStore


def measured(*script: tuple[str, str, Fault]) -> tuple[MeasuredStore, Metrics]:
    clock, metrics = ManualClock(), Metrics()
    inner = FaultyStore(MemoryStore(clock), ScriptedFaults(script), clock=clock, rng=random.Random(1))
    return MeasuredStore(inner, metrics, clock), metrics


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"syncline_store_{name}", labels) or 0.0


def test_bytes_are_counted_by_operation(tmp_path: Path) -> None:
    store, metrics = measured()
    (tmp_path / "f").write_bytes(bytes(50))
    store.put("a", bytes(10))
    store.put_if_absent("b", bytes(20))
    store.compare_and_put("c", bytes(30), etag=None)
    store.put_large("d", bytes(40))
    store.put_large("e", tmp_path / "f")
    store.get("a", max_bytes=100)
    store.get_range_into("d", 1, bytearray(7))
    counted = {
        operation: value(metrics, "bytes_total", operation=operation)
        for operation in ("put", "put_if_absent", "compare_and_put", "put_large", "get", "get_range_into")
    }
    assert {
        "put": 10, "put_if_absent": 20, "compare_and_put": 30, "put_large": 90, "get": 10, "get_range_into": 7,
    } == counted  # fmt: skip


def test_an_unchanged_object_moves_no_bytes() -> None:
    store, metrics = measured()
    etag = store.put("a", bytes(10))
    store.get("a", max_bytes=10, if_none_match=etag)
    assert 0 == value(metrics, "bytes_total", operation="get")


def test_a_slow_call_is_timed() -> None:
    store, metrics = measured(("put", "", Fault(FaultKind.DELAY, seconds=2.0)))
    store.put("a", b"1")
    assert (1, 2.0) == (
        value(metrics, "seconds_count", operation="put"),
        value(metrics, "seconds_sum", operation="put"),
    )


def test_a_failed_call_is_timed_and_named() -> None:
    store, metrics = measured(("get", "", Fault(FaultKind.UNAVAILABLE)))
    with pytest.raises(StoreUnavailable):
        store.get("a", max_bytes=1)
    with pytest.raises(NotFound):
        store.get("a", max_bytes=1)
    assert 1 == value(metrics, "errors_total", operation="get", reason="unavailable")
    assert 1 == value(metrics, "errors_total", operation="get", reason="not_found")
    assert 2 == value(metrics, "seconds_count", operation="get")


def test_a_listing_counts_its_failure_and_not_its_readers_time() -> None:
    store, metrics = measured(("list_after", "", Fault(FaultKind.LOST_REPLY)))
    store.put("a", b"1")
    with pytest.raises(StoreUnavailable):
        list(store.list_after(""))
    assert 1 == value(metrics, "errors_total", operation="list_after", reason="unavailable")
    assert ["a"] == [i.key for i in store.list_after("")]
    assert 0.0 == value(metrics, "seconds_sum", operation="list_after")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotFound("a"), "not_found"),
        (AlreadyExists("a"), "already_exists"),
        (HeadMoved("a"), "head_moved"),
        (StoreUnavailable("a"), "unavailable"),
        (StoreDenied("a"), "denied"),
        (StoreMisused("a"), "misused"),
        (SynclineError("a"), "other"),
        (RuntimeError("a"), "other"),
    ],
)
def test_every_error_has_a_bounded_reason(error: Exception, reason: str) -> None:
    assert reason == reason_of(error)
