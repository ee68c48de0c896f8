"""Each wrapper is a store too: the conformance suite through every one of them, and through several at once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from syncline.clock import ManualClock
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.store.caching import CachingStore
from syncline.store.faulty import FaultKind, FaultyStore, RandomFaults, ScriptedFaults
from syncline.store.measured import MeasuredStore
from syncline.store.memory import MemoryStore
from syncline.store.retrying import RetryingStore, RetryPolicy
from syncline.testing.store_conformance import StoreConformance, StoreUnderTest


def is_chunk(key: str) -> bool:
    """What these tests never change."""
    return key.startswith("chunks/")


def over(store: WeightStore, inner: WeightStore) -> StoreUnderTest:
    """A wrapper, with its inner store as the way past it."""

    def raw_get(key: str) -> bytes | None:
        if not any(info.key == key for info in inner.list_after(key, limit=1)):
            return None
        found = inner.get(key, max_bytes=1 << 30)
        return None if found is None else found.data

    def raw_set(key: str, data: bytes) -> None:
        inner.put(key, data)

    return StoreUnderTest(store, raw_get, raw_set)


class TestRetrying(StoreConformance):
    @pytest.fixture
    def under_test(self) -> StoreUnderTest:
        inner = MemoryStore(ManualClock())
        return over(RetryingStore(inner, clock=ManualClock(), rng=random.Random(1)), inner)


class TestMeasured(StoreConformance):
    @pytest.fixture
    def under_test(self) -> StoreUnderTest:
        inner = MemoryStore(ManualClock())
        return over(MeasuredStore(inner, Metrics(), ManualClock()), inner)


class TestFaultyWithoutFaults(StoreConformance):
    @pytest.fixture
    def under_test(self) -> StoreUnderTest:
        inner = MemoryStore(ManualClock())
        return over(FaultyStore(inner, ScriptedFaults([]), clock=ManualClock(), rng=random.Random(1)), inner)


class TestCaching(StoreConformance):
    @pytest.fixture
    def under_test(self, tmp_path: Path) -> StoreUnderTest:
        inner = MemoryStore(ManualClock())
        cache = CachingStore(inner, tmp_path, max_bytes=100 << 20, cacheable=is_chunk, rng=random.Random(1))
        return over(cache, inner)


class TestCachingWithoutRoom(StoreConformance):
    @pytest.fixture
    def under_test(self, tmp_path: Path) -> StoreUnderTest:
        inner = MemoryStore(ManualClock())
        return over(CachingStore(inner, tmp_path, max_bytes=60, cacheable=is_chunk, rng=random.Random(1)), inner)


class TestRetryingOverFaults(StoreConformance):
    """A third of all calls fail or lose their reply, and nobody notices."""

    @pytest.fixture
    def under_test(self, request: pytest.FixtureRequest) -> StoreUnderTest:
        inner, clock = MemoryStore(ManualClock()), ManualClock()
        chances = {FaultKind.UNAVAILABLE: 0.15, FaultKind.LOST_REPLY: 0.15, FaultKind.FULL: 0.03, FaultKind.DELAY: 0.05}
        rng = random.Random(request.node.nodeid)
        faulty = FaultyStore(inner, RandomFaults(rng, chances), clock=clock, rng=rng)
        # The manual clock is shared by racing threads and each sleep moves it for all, hence the long deadline.
        return over(RetryingStore(faulty, clock=clock, rng=rng, policy=RetryPolicy(deadline_s=1e6)), inner)


class TestAllAtOnce(StoreConformance):
    """The stack that a node runs: a cache over retries over measures, here over a store that also fails."""

    @pytest.fixture
    def under_test(self, request: pytest.FixtureRequest, tmp_path: Path) -> StoreUnderTest:
        inner, clock, metrics = MemoryStore(ManualClock()), ManualClock(), Metrics()
        rng = random.Random(request.node.nodeid)
        faults = RandomFaults(rng, {FaultKind.UNAVAILABLE: 0.1, FaultKind.LOST_REPLY: 0.1})
        measured = MeasuredStore(FaultyStore(inner, faults, clock=clock, rng=rng), metrics, clock)
        policy = RetryPolicy(deadline_s=1e6)
        retrying = RetryingStore(measured, clock=clock, rng=rng, policy=policy, metrics=metrics)
        return over(CachingStore(retrying, tmp_path, max_bytes=100 << 20, cacheable=is_chunk, rng=rng), inner)
