"""What the probe says of stores that keep their conditions, of one that ignores them, and of ones that break them one by one."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Lock

import pytest
from typing_extensions import Buffer

from syncline.clock import Clock, ManualClock, SystemClock
from syncline.errors import AlreadyExists, HeadMoved, StoreDenied
from syncline.store.base import WeightStore
from syncline.store.local import LocalStore
from syncline.store.memory import MemoryStore
from syncline.store.open import open_adapter, open_store
from syncline.store.probe import CREATORS, ProbeResult, probe
from syncline.testing.rclone import Rclone
from syncline.testing.seaweed import Seaweed

GOOD = ProbeResult(conditional_create=True, conditional_replace=True, racing_creates=True, detail="")


@pytest.fixture(params=["memory", "local", "seaweed", "seaweed with retries"])
def good_store(request: pytest.FixtureRequest, tmp_path: Path, seaweed: Seaweed) -> Iterator[WeightStore]:
    clock, rng = SystemClock(), random.Random(2)
    match request.param:
        case "memory":
            yield MemoryStore(clock)
        case "local":
            yield LocalStore(tmp_path)
        case "seaweed":
            yield open_adapter(seaweed.store_url("probe"), clock=clock, rng=rng, environ=seaweed.environ)
        case _:
            yield open_store(seaweed.store_url("probe"), environ=seaweed.environ)


def test_a_store_that_keeps_its_conditions_takes_several_writers(good_store: WeightStore) -> None:
    result = probe(good_store, "run/main/probe", random.Random(3))
    assert GOOD == result
    assert result.several_writers


def test_the_probe_leaves_nothing_behind(good_store: WeightStore) -> None:
    probe(good_store, "run/main/probe", random.Random(4))
    assert [] == list(good_store.list_after("run/main/probe"))


def test_a_real_store_that_ignores_conditions_is_found_out(rclone: Rclone) -> None:
    store = open_adapter(rclone.url, clock=SystemClock(), rng=random.Random(5), environ=rclone.environ)
    result = probe(store, "run/main/probe", random.Random(6))
    assert (False, False, False) == (result.conditional_create, result.conditional_replace, result.racing_creates)
    assert not result.several_writers
    assert "a second create of one key was accepted" in result.detail
    assert "a replacement with a stale etag was accepted" in result.detail
    assert [] == list(store.list_after("run/main/probe"))


def test_a_reader_key_cannot_probe(seaweed: Seaweed) -> None:
    store = open_store(seaweed.store_url("probe"), environ=seaweed.reader_environ)
    with pytest.raises(StoreDenied):
        probe(store, "run/main/probe", random.Random(7))


class CheckThenAct(MemoryStore):
    """Keeps each condition alone but not in a race: all look, then all write."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._barriers: defaultdict[str, Barrier] = defaultdict(lambda: Barrier(CREATORS))
        self._barriers_lock = Lock()

    def put_if_absent(self, key: str, data: Buffer) -> str:
        taken = bool(list(self.list_after(key)))
        if "race" in key:
            with self._barriers_lock:
                barrier = self._barriers[key]
            barrier.wait(timeout=30)
        if taken:
            raise AlreadyExists(key)
        return self.put(key, data)


class IgnoresEtags(MemoryStore):
    """Creates under a condition, replaces without."""

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        return self.put(key, data)


class NeverReplaces(MemoryStore):
    """Refuses every conditional replacement."""

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        raise HeadMoved(key)


def test_a_store_that_races_its_creates_is_found_out() -> None:
    result = probe(CheckThenAct(ManualClock()), "p", random.Random(8))
    assert result.conditional_create
    assert not result.racing_creates
    assert "racing creates" in result.detail


def test_a_store_that_ignores_etags_is_found_out() -> None:
    result = probe(IgnoresEtags(ManualClock()), "p", random.Random(9))
    assert (True, False, True) == (result.conditional_create, result.conditional_replace, result.racing_creates)
    assert "stale etag" in result.detail


def test_a_store_that_never_replaces_is_found_out() -> None:
    result = probe(NeverReplaces(ManualClock()), "p", random.Random(10))
    assert not result.conditional_replace
    assert "right etag was refused" in result.detail
