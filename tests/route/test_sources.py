"""Where replicas come from: heartbeats, judged by the store's clock, and addresses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from syncline.clock import ManualClock
from syncline.errors import NotFound, Rejected
from syncline.route import Heartbeats, Listed, open_fleet
from syncline.route.replica import Member
from syncline.store.keys import RunKeys
from syncline.store.memory import MemoryStore
from syncline.wire.records import ConsumerRecord, GatewayPart, RunRecord, TilingPart

LINEAGE, OTHER = "ab" * 16, "cd" * 16
KEYS = RunKeys("run").view()


class Told:
    """A store that nodes tell of themselves."""

    def __init__(self, skew: float = 0.0) -> None:
        self.clock = ManualClock()
        self.store_clock = ManualClock(self.clock.now() + skew)
        self.store = MemoryStore(self.store_clock)
        self.wanted = "p"

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.store_clock.advance(seconds)

    def run(self, lineage: str = LINEAGE) -> None:
        tiling = TilingPart(min_units=64, max_units=128, ways=1)
        record = RunRecord(run="run", lineage=lineage, created_ms=1, tiling=tiling)
        self.store.put(RunKeys("run").run_json, record.encode())

    def beat(self, node: str, *, url: str | None = "http://10.0.0.1:81", **changes: Any) -> None:
        gateway = None if url is None else GatewayPart(url=url, pod="pod", waiting=1, at_engine=4)
        record = ConsumerRecord(
            lineage=LINEAGE, cluster="c", namespace="n", pool="p", node=node, ttl_ms=60_000, applied=7,
            applied_digest=None, proven=True, target=8, pinned=None, boot=None, lag_ms=None, phase="Idle",
            apply_path="delta", error=None, leaving=False, gateway=gateway,
        ).model_copy(update=changes)  # fmt: skip
        self.store.put(KEYS.consumer("c", "n", record.pool, node), record.encode())

    def source(self) -> Heartbeats:
        return Heartbeats(self.store, "run", clock=self.clock, wanted=lambda record: record.pool == self.wanted)


def members(source: Heartbeats | Listed) -> dict[str, Member]:
    return {member.name: member for member in asyncio.run(source.members())}


@pytest.mark.parametrize("skew", [0.0, 86_400.0, -86_400.0])
def test_a_fresh_heartbeat_names_a_replica_and_what_it_serves_whatever_the_store_s_clock_says(skew: float) -> None:
    told = Told(skew)
    told.run()
    told.beat("a", url="http://10.0.0.1:81")
    told.pass_time(10)
    told.beat("b", url="https://b.example/pods/b", applied=6, proven=False)
    source = told.source()
    found = members(source)
    assert {"c/n/p/a", "c/n/p/b"} == set(found)
    a, b = found["c/n/p/a"], found["c/n/p/b"]
    assert a.seen is not None and b.seen is not None
    assert ("http://10.0.0.1:81", True, 7, 8, 5, "run") == (
        a.url, a.seen.ready, a.seen.applied, a.seen.target, a.seen.load, a.seen.run,
    )  # fmt: skip
    assert (10, 0, False) == (told.clock.now() - a.seen.at, told.clock.now() - b.seen.at, b.seen.ready)
    told.pass_time(50.1)
    told.beat("b", url="https://b.example/pods/b")
    assert {"c/n/p/b"} == set(members(source))  # a is 60.1 s old


def test_who_said_goodbye_has_no_address_is_of_another_training_or_pool_or_unreadable_is_no_replica() -> None:
    told = Told()
    told.run()
    told.beat("a")
    told.beat("gone", leaving=True)
    told.beat("silent", url=None)
    told.beat("other", lineage=OTHER)
    told.beat("elsewhere", pool="q")
    told.store.put(KEYS.consumer("c", "n", "p", "broken"), b"{")
    source = told.source()
    assert {"c/n/p/a"} == set(members(source))
    told.run(OTHER)  # the name is used again for another training
    assert {"c/n/p/other"} == set(members(source))


def test_a_run_that_is_not_there_is_named() -> None:
    with pytest.raises(NotFound, match=r"run/run\.json"):
        members(Told().source())


def test_addresses_are_taken_once_each_and_checked() -> None:
    assert ["http://a:1", "http://b"] == list(members(Listed(["http://a:1", "http://b/", "http://a:1/"])))
    for wrong in ("a:1", "ftp://a", "http://me@a", "http://a?x", "http://a/../b c", ""):
        with pytest.raises(Rejected, match="no address"):
            Listed([wrong])


def test_a_fleet_has_one_source() -> None:
    with pytest.raises(Rejected, match="needs a store and a run"):
        open_fleet()
    with pytest.raises(Rejected, match="needs a store and a run"):
        open_fleet("/s")
    with pytest.raises(Rejected, match="not both"):
        open_fleet("/s", run="r", gateways=["http://a"])
