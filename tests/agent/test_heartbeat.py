"""Heartbeats and leases: what a node writes, when, and what it does with a key that may not write."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from blake3 import blake3
from structlog.testing import capture_logs
from typing_extensions import Buffer

from syncline.clock import ManualClock
from syncline.errors import NotFound, StoreUnavailable
from syncline.store.base import ObjectInfo
from syncline.store.faulty import Fault, FaultKind, FaultyStore, RandomFaults, ScriptedFaults
from syncline.store.keys import RunKeys
from syncline.store.memory import MemoryStore
from syncline.wire.limits import RECORD_MAX_BYTES
from syncline.wire.records import ConsumerRecord, GatewayPart, LeaseRecord
from syncline_agent.engine import Applied
from syncline_agent.heartbeat import Heart, HeartSettings
from syncline_agent.lag import Lag
from syncline_agent.lane.advertised import Advertised
from syncline_agent.status import Identity, Status

LINEAGE = "ab" * 16
KEYS = RunKeys("run").view()
SETTINGS = HeartSettings(every_seconds=10, at_least_seconds=2, ttl_seconds=60, lease_ttl_seconds=90)


class Node:
    def __init__(self, store: object | None = None, *, skew: float = 0.0) -> None:
        self.clock = ManualClock()
        self.store_clock = ManualClock(self.clock.now() + skew)
        self.memory = MemoryStore(self.store_clock)
        self.status = Status(
            Identity("c", "ns", "p", "n"),
            run="run",
            lineage=LINEAGE,
            applied=Applied(LINEAGE, "main", 3, "cd" * 16, True),
        )
        self.status = replace(self.status, in_service=True, boot=2, target=3)
        self.heart = self.over(self.memory)

    def over(self, store: object) -> Heart:
        return Heart(
            store,  # pyright: ignore[reportArgumentType]
            lambda: self.status,
            settings=SETTINGS,
            clock=self.clock,
            random=random.Random(1),
        )

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.store_clock.advance(seconds)

    def record(self) -> ConsumerRecord:
        fetched = self.memory.get(KEYS.consumer("c", "ns", "p", "n"), max_bytes=RECORD_MAX_BYTES)
        assert fetched is not None
        return ConsumerRecord.parse(fetched.data, what="heartbeat")

    def leases(self) -> list[LeaseRecord]:
        found = [self.memory.get(i.key, max_bytes=RECORD_MAX_BYTES) for i in self.memory.list_after(KEYS.leases)]
        return [LeaseRecord.parse(f.data, what="lease") for f in found if f is not None]

    def faulty(self, *kinds: FaultKind, operation: str = "put") -> FaultyStore:
        script = [(operation, "", Fault(kind)) for kind in kinds]
        return FaultyStore(self.memory, ScriptedFaults(script), clock=self.clock, rng=random.Random(1))


def test_a_heartbeat_says_what_retention_must_keep() -> None:
    node = Node()
    node.heart.tick()
    record = node.record()
    assert (3, True, 2, 3, None, False) == (
        record.applied,
        record.proven,
        record.boot,
        record.target,
        record.pinned,
        record.leaving,
    )
    assert 60_000 == record.ttl_ms
    assert "on" == node.heart.state


def test_heartbeats_come_every_so_often_and_sooner_when_the_applied_version_changes() -> None:
    node = Node()
    written: list[float] = []
    begin = node.clock.now()
    for _ in range(300):
        before = len(written)
        etag = node.memory.head(KEYS.consumer("c", "ns", "p", "n")).etag if written else ""
        node.heart.tick()
        if node.memory.head(KEYS.consumer("c", "ns", "p", "n")).etag != etag:
            written.append(node.clock.now() - begin)
        assert len(written) <= before + 1
        node.pass_time(0.1)
        if 15 < node.clock.now() - begin < 15.15:
            applied = Applied(LINEAGE, "main", 4, "ef" * 16, True)
            node.status = replace(node.status, applied=applied)
    gaps = [b - a for a, b in itertools.pairwise(written)]
    assert all(2 <= gap <= 11.2 for gap in gaps)
    assert any(15 < at < 15.5 for at in written)
    assert 4 == node.record().applied


def test_a_read_only_key_turns_heartbeats_off_and_says_so() -> None:
    node = Node()
    heart = node.over(node.faulty(*[FaultKind.DENIED] * 3))
    heart.tick()
    assert heart.state.startswith("off:")
    assert "may write run/main/consumers/" in heart.state
    node.pass_time(60)
    heart.tick()
    with pytest.raises(NotFound):
        node.record()
    node.pass_time(600)
    for _ in range(3):
        heart.tick()
        node.pass_time(600)
    assert "on" == heart.state


def test_joining_goes_on_without_a_lease_when_the_key_may_not_write() -> None:
    node = Node()
    heart = node.over(node.faulty(FaultKind.DENIED))
    with heart.lease(KEYS, LINEAGE, owner="n", version=None):
        assert [] == node.leases()
    assert heart.state.startswith("off:")


def test_joining_waits_when_the_store_does_not_take_the_lease() -> None:
    node = Node()
    heart = node.over(node.faulty(FaultKind.UNAVAILABLE))
    entered = False
    with pytest.raises(StoreUnavailable), heart.lease(KEYS, LINEAGE, owner="n", version=None):
        entered = True
    assert not entered


def test_a_lease_is_held_from_the_first_line_to_the_last_and_renewed_in_between() -> None:
    node = Node()
    with node.heart.lease(KEYS, LINEAGE, owner="n", version=7):
        assert [(7, 90_000)] == [(r.version, r.ttl_ms) for r in node.leases()]
        for _ in range(600):
            node.pass_time(1.0)
            node.heart.tick()
            ages = [node.store_clock.now() - i.modified for i in node.memory.list_after(KEYS.leases)]
            assert [True] == [age < 60 for age in ages]
    assert [] == node.leases()


def test_a_lease_says_what_it_is_about_as_soon_as_that_is_known_and_ever_after() -> None:
    node = Node()
    with node.heart.lease(KEYS, LINEAGE, owner="n", version=None) as about:
        assert [None] == [r.version for r in node.leases()]
        about(4)
        assert [4] == [r.version for r in node.leases()]
        for _ in range(100):
            node.pass_time(1.0)
            node.heart.tick()
        assert [4] == [r.version for r in node.leases()]
    assert [] == node.leases()


def test_what_a_lease_is_about_is_told_later_when_the_store_does_not_take_it_now() -> None:
    node = Node()
    faulty = node.faulty()
    heart = node.over(faulty)
    with heart.lease(KEYS, LINEAGE, owner="n", version=None) as about:
        faulty._plan = ScriptedFaults([("put", "leases", Fault(FaultKind.UNAVAILABLE))])
        about(4)
        assert [None] == [r.version for r in node.leases()]
        heart.tick()
        assert [4] == [r.version for r in node.leases()]


class ByContent(MemoryStore):
    """A store whose etags say what an object holds, as most do."""

    def put(self, key: str, data: Buffer) -> str:
        super().put(key, data)
        return self.head(key).etag

    def head(self, key: str) -> ObjectInfo:
        fetched = self.get(key, max_bytes=RECORD_MAX_BYTES)
        assert fetched is not None
        return replace(super().head(key), etag=blake3(fetched.data).hexdigest())


@pytest.mark.parametrize("kind", [MemoryStore, ByContent])
def test_two_nodes_of_one_name_are_both_told_until_one_leaves(kind: type[MemoryStore]) -> None:
    """Their records may be equal to the byte: then only the store's clock tells them apart."""
    node = Node(skew=-50.0)
    store = kind(node.store_clock)
    node.heart, second = node.over(store), node.over(store)
    for number in range(150):
        node.heart.tick()
        if number >= 5:
            second.tick()
        node.pass_time(1.0)
    key = KEYS.consumer("c", "ns", "p", "n")
    said = f"shared: another agent writes {key} too; give each agent its own --node"
    assert [said, said] == [node.heart.state, second.state]
    for _ in range(150):
        second.tick()
        node.pass_time(1.0)
    assert "on" == second.state


@pytest.mark.parametrize("latency", [0.0, 2.0])
def test_a_node_alone_is_never_told_of_another(latency: float) -> None:
    node = Node(skew=7.0)
    states: set[str] = set()
    for number in range(900):
        node.heart.tick()
        states.add(node.heart.state)
        node.pass_time(1.0 + (latency if number % 15 == 0 else 0.0))
        node.status = replace(node.status, applied=Applied(LINEAGE, "main", 3 + number // 40, "cd" * 16, True))
    assert {"on"} == states


def test_what_becomes_of_heartbeats_is_logged_once_a_change() -> None:
    node = Node()
    with capture_logs() as lines:
        heart = node.over(node.faulty(*[FaultKind.UNAVAILABLE] * 3))
        for _ in range(60):
            heart.tick()
            node.pass_time(1.0)
    assert [("heartbeats late", "warning"), ("heartbeats on", "info")] == [(e["event"], e["log_level"]) for e in lines]


def test_a_key_that_may_not_delete_lets_the_lease_run_out_at_once() -> None:
    node = Node()
    with node.over(node.faulty(FaultKind.DENIED, operation="delete")).lease(KEYS, LINEAGE, owner="n", version=None):
        pass
    assert [0] == [r.ttl_ms for r in node.leases()]


def test_another_lineage_in_the_engine_is_no_consumer_of_this_run() -> None:
    node = Node()
    node.status = replace(node.status, applied=Applied("99" * 16, "main", 3, "cd" * 16, True))
    node.heart.tick()
    assert (None, False) == (node.record().applied, node.record().proven)


def test_a_goodbye_says_leaving() -> None:
    node = Node()
    node.heart.beat(node.status, leaving=True)
    assert node.record().leaving


def test_no_failure_of_the_store_leaves_the_heart() -> None:
    node = Node()
    faults = RandomFaults(random.Random(3), dict.fromkeys(FaultKind, 0.15))
    heart = node.over(FaultyStore(node.memory, faults, clock=ManualClock(), rng=random.Random(4)))
    states = set[str]()
    for _ in range(400):
        heart.tick()
        states.add(heart.state.split(":")[0])
        node.pass_time(5)
    assert {"on", "late", "off"} >= states
    assert "late" in states


@pytest.mark.parametrize("skew", [-86_400.0, 0.0, 3_600.0])
def test_the_age_of_a_version_does_not_depend_on_the_clock_of_the_node(skew: float) -> None:
    node = Node(skew=skew)
    node.heart.tick()
    lag = Lag(node.clock, node.heart.time)
    committed = node.store_clock.now()
    node.pass_time(7.0)
    lag.head_read(node.clock.now())
    lag.behind(4, committed)
    node.pass_time(5.0)
    assert 12.0 == pytest.approx(lag.seconds())
    lag.caught_up()
    assert 0.0 == lag.seconds()


def test_lag_grows_while_the_store_is_silent() -> None:
    node = Node()
    lag = Lag(node.clock, node.heart.time)
    lag.head_read(node.clock.now())
    node.pass_time(5.0)
    assert 0.0 == lag.seconds()
    lag.store_failed()
    node.pass_time(20.0)
    assert 25.0 == lag.seconds()
    lag.head_read(node.clock.now())
    assert 0.0 == lag.seconds()


def test_a_heartbeat_names_the_gateway_and_its_load_and_hears_soon_that_it_came_or_went() -> None:
    node = Node()
    beside: list[Advertised] = []
    heart = Heart(
        node.memory,
        lambda: node.status,
        settings=SETTINGS,
        clock=node.clock,
        random=random.Random(1),
        gateway=lambda: beside[0] if beside else None,
    )
    heart.tick()
    assert node.record().gateway is None
    assert b"gateway" not in node.record().encode()  # as it was written before gateways said where they are
    beside.append(Advertised("http://10.0.0.3:8100", 1, 4))
    node.pass_time(2)
    heart.tick()
    assert GatewayPart(url="http://10.0.0.3:8100", pod=None, waiting=1, at_engine=4) == node.record().gateway
    beside.clear()
    node.pass_time(2)
    heart.tick()
    assert node.record().gateway is None
