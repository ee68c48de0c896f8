"""What retention keeps: the rule as a table, its promise as a property, and the sweeper on a real chain."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.metrics import Metrics
from syncline.store.keys import version_of
from syncline.store.memory import MemoryStore
from syncline.wire.records import ConsumerRecord, LeaseRecord
from syncline.wire.tensors import TensorTable
from syncline_distributor import Publisher
from syncline_distributor.keeper import Keeper
from syncline_distributor.retention import ChainMap, keep, needs_of, walk_down
from syncline_distributor.settings import AnchorSettings, RetentionSettings
from syncline_distributor.steps import run_steps
from syncline_distributor.sweeper import Sweeper
from syncline_distributor.vetoes import mark_bad

Make = Callable[..., Publisher]


def chain(
    head: int, anchors: set[int], *, whole: tuple[int, ...] = (1,), skips: tuple[tuple[int, int], ...] = ()
) -> ChainMap:
    """Versions 1..head in a row; those in `whole` have no base."""
    bases = {v: None if v in whole else v - 1 for v in range(1, head + 1)}
    return ChainMap(bases, frozenset(anchors | set(whole)), frozenset(skips))


@pytest.mark.parametrize(
    ("needs", "versions", "anchors"),
    [
        ([], range(8, 11), {8}),
        ([None], range(8, 11), {8}),
        ([10], range(8, 11), {8}),
        ([8], range(8, 11), {8}),
        ([7], range(4, 11), {4, 8}),
        ([4, 9], range(4, 11), {4, 8}),
        ([3], range(1, 11), {1, 8}),
        ([99], range(8, 11), {8}),
    ],
)
def test_the_path_from_the_newest_anchor_at_or_before_a_need_stays(
    needs: list[int | None], versions: range, anchors: set[int]
) -> None:
    kept = keep(chain(10, {4, 8}), needs)
    assert (frozenset(versions), frozenset(anchors)) == (kept.versions, kept.anchors)


def test_newest_anchors_and_versions_stay_though_nobody_needs_them() -> None:
    assert frozenset({4, 8}) == keep(chain(10, {4, 8}), [], keep_anchors=2).anchors
    assert frozenset(range(4, 11)) == keep(chain(10, {4, 8}), [], keep_versions=5).versions


def test_a_vetoed_anchor_is_no_start() -> None:
    marked = ChainMap(chain(10, {4, 8}).bases, frozenset({1, 4, 8}), vetoed=frozenset({8}))
    assert (frozenset(range(4, 11)), frozenset({4})) == (keep(marked, []).versions, keep(marked, []).anchors)


def test_without_any_anchor_at_or_below_a_need_everything_stays() -> None:
    cut = ChainMap({v: v - 1 for v in range(5, 11)}, frozenset({8}))
    assert frozenset(range(5, 11)) == keep(cut, [6]).versions
    assert frozenset(range(8, 11)) == keep(cut, [9]).versions


def test_an_anchor_only_version_in_the_middle_is_walked_over() -> None:
    broken = chain(10, set(), whole=(1, 6))
    assert list(range(10, 0, -1)) == walk_down(broken)
    assert (frozenset(range(1, 11)), frozenset({1, 6})) == (keep(broken, [3]).versions, keep(broken, [3]).anchors)


def test_the_two_newest_skip_deltas_of_each_kept_anchor_stay() -> None:
    skips = ((6, 4), (7, 4), (9, 8), (10, 8), (5, 4))
    assert frozenset({(9, 8), (10, 8)}) == keep(chain(10, {4, 8}, skips=skips), []).skips
    assert frozenset({(6, 4), (7, 4), (9, 8), (10, 8)}) == keep(chain(10, {4, 8}, skips=skips), [4]).skips


def test_an_empty_run_keeps_nothing_and_a_node_without_versions_needs_what_a_joiner_needs() -> None:
    assert frozenset() == keep(ChainMap({}, frozenset()), [None, 3]).versions
    assert ([None], [3, 2]) == (needs_of(None, None, None), needs_of(3, None, 2))
    assert ([None, 9], [3, 9]) == (needs_of(None, None, None, 9), needs_of(3, None, None, 9))


@st.composite
def chains(draw: st.DrawFn) -> tuple[ChainMap, list[int | None]]:
    head = draw(st.integers(1, 40))
    whole = tuple({1} | draw(st.sets(st.integers(1, head), max_size=3)))
    anchors = draw(st.sets(st.integers(1, head), max_size=6))
    needs = draw(st.lists(st.none() | st.integers(1, head), max_size=6))
    return chain(head, anchors, whole=whole), needs


@given(chains(), st.integers(1, 3), st.integers(0, 5))
def test_no_fresh_readers_path_ever_loses_a_link(
    drawn: tuple[ChainMap, list[int | None]], anchors: int, versions: int
) -> None:
    chain_map, needs = drawn
    kept = keep(chain_map, needs, keep_anchors=anchors, keep_versions=versions)
    head = chain_map.head
    assert head is not None
    for need in [*needs, None]:
        target = head if need is None else need
        start = max(v for v in kept.anchors if v <= target)
        assert set(range(start, head + 1)) <= kept.versions
        assert not any(start < v <= target for v in chain_map.anchors)
    # What was kept once is enough to keep the same again: sweeping twice never takes more than sweeping once.
    left = ChainMap({v: chain_map.bases[v] for v in kept.versions}, kept.anchors, kept.skips)
    again = keep(left, needs, keep_anchors=anchors, keep_versions=versions)
    assert (kept.versions, kept.anchors) == (again.versions, again.anchors)


class Slow(ChainReader):
    """Stands still whenever it has looked what was committed after a version."""

    def __init__(self, store: MemoryStore, run: str, *, clock: ManualClock, seconds: float) -> None:
        super().__init__(store, run)
        self._clock, self._seconds = clock, seconds

    def versions(self, *, after: int = 0) -> list[int]:
        found = super().versions(after=after)
        if after:
            self._clock.advance(self._seconds)
        return found


class Swept:
    """A run of ten versions with anchors at 1, 4 and 8, swept with a lease period of 100 s."""

    def __init__(
        self, store: MemoryStore, clock: ManualClock, publisher: Publisher, source: Any, keeper: Keeper
    ) -> None:
        self.store, self.clock, self.source, self.publisher = store, clock, source, publisher
        self.reader = ChainReader(store, "run")
        self.sweeper = Sweeper(store, self.reader, RetentionSettings(lease_period_s=100, keep_anchors=1), Metrics())
        for _ in range(10):
            publisher.publish(source.step())
            while run_steps(keeper.steps()) is not None:
                pass
        self.lineage = self.reader.run_record().lineage

    def sweep_twice(self) -> int:
        """Long enough apart that the second deletes."""
        deleted = 0
        for _ in range(3):
            self.clock.advance(101)
            self.beat()
            deleted += self.sweeper.sweep().deleted
        return deleted

    def beat(self) -> None:
        """What consumers do between sweeps."""

    def publish(self) -> None:
        self.publisher.publish(self.source.step())

    def vetoes(self) -> list[int]:
        return [version_of(info.key) for info in self.store.list_after("run/main/vetoes/")]

    def consumer(self, **fields: Any) -> None:
        record = ConsumerRecord(
            lineage=fields.pop("lineage", self.lineage), cluster="c", namespace="n", pool="p", node="n0", ttl_ms=60_000,
            applied_digest=None, proven=True, lag_ms=None, phase="idle", apply_path="delta", error=None,
            **{"applied": None, "pinned": None, "boot": None, "target": None, "leaving": False, **fields},
        )  # fmt: skip
        self.store.put(self.reader.keys.consumer("c", "n", "p", "n0"), record.encode())

    def lease(self, version: int | None) -> None:
        record = LeaseRecord(lineage=self.lineage, owner="joiner", ttl_ms=60_000, version=version)
        self.store.put(self.reader.keys.lease("joiner"), record.encode())


@pytest.fixture
def swept(store: MemoryStore, clock: ManualClock, publisher: Make, trainer: Any, tmp_path: Any) -> Swept:
    keeper = Keeper(
        store,
        ChainReader(store, "run"),
        AnchorSettings(anchor_every=3, skip_every=2),
        tmp_path / "keeper",
        clock,
        random.Random(0),
        Metrics(),
    )
    return Swept(store, clock, publisher(), trainer(), keeper)


def test_a_sweep_leaves_exactly_what_a_joiner_needs(swept: Swept, trainer: Any, reading: Any) -> None:
    assert [1, 4, 7, 10] == swept.reader.anchors()
    assert swept.sweep_twice() > 0
    assert ([10], [10]) == (swept.reader.versions(), ChainReader(swept.store, "run").anchors())
    reading.units(swept.store, 10)
    named = {c.blake3 for v in swept.reader.versions() for c in swept.reader.manifest(v).chunks}
    left = {i.key.rpartition("/")[2] for i in swept.store.list_after("run/main/chunks/")}
    assert named | {swept.reader.manifest(10).tensors.blake3} == left


def test_nothing_is_deleted_before_a_lease_period_has_passed_since_the_mark(swept: Swept) -> None:
    swept.clock.advance(101)
    assert 0 == swept.sweeper.sweep().deleted
    swept.clock.advance(99)
    assert 0 == swept.sweeper.sweep().deleted
    swept.clock.advance(1)
    assert 0 < swept.sweeper.sweep().deleted


def test_nothing_younger_than_a_lease_period_is_even_marked(swept: Swept) -> None:
    swept.clock.advance(99)
    assert 0 == swept.sweeper.sweep().marked


@pytest.mark.parametrize(
    ("fields", "oldest"),
    [
        ({"applied": 5}, 4),
        ({"applied": 9, "boot": 2}, 1),
        ({"applied": 10, "pinned": 8}, 7),
        ({"applied": 10, "pinned": 7, "target": 6}, 4),
        ({"applied": 3, "leaving": True}, 10),
        ({"applied": 3, "lineage": "ab" * 16}, 10),
    ],
)
def test_a_fresh_heartbeat_keeps_its_nodes_path(
    swept: Swept, reading: Any, fields: dict[str, Any], oldest: int
) -> None:
    swept.beat = lambda: swept.consumer(**fields)  # type: ignore[method-assign]
    swept.sweep_twice()
    assert list(range(oldest, 11)) == swept.reader.versions()
    for version in swept.reader.versions():
        reading.units(swept.store, version)


def test_a_lease_keeps_and_a_stale_one_does_not(swept: Swept) -> None:
    swept.beat = lambda: swept.lease(6)  # type: ignore[method-assign]
    swept.sweep_twice()
    assert 4 == swept.reader.versions()[0]
    swept.beat = lambda: None  # type: ignore[method-assign]
    swept.sweep_twice()
    assert [10] == swept.reader.versions()


def test_the_age_of_a_heartbeat_is_judged_by_the_stores_clock(swept: Swept) -> None:
    # Nothing in the record says when it was written: a node whose clock is years off keeps its path all the same.
    swept.consumer(applied=5)
    swept.clock.advance(59)
    assert 4 == min(swept.sweeper.survey().kept.versions)
    swept.clock.advance(2)
    assert 10 == min(swept.sweeper.survey().kept.versions)


def test_a_fresh_record_that_cannot_be_read_stops_all_deletion(swept: Swept) -> None:
    swept.beat = lambda: swept.store.put("run/main/consumers/c/n/p/odd.json", b"{") and None  # type: ignore[method-assign]
    assert 0 == swept.sweep_twice()
    assert "cannot be read" in (swept.sweeper.sweep().blocked or "")


def leave(swept: Swept, *keys: str, data: bytes = b"left behind") -> list[str]:
    for key in keys:
        swept.store.put(key, data)
    return list(keys)


def left(swept: Swept, keys: list[str]) -> list[str]:
    there = {i.key for i in swept.store.list_after("run/main/")}
    return [key for key in keys if key in there]


def test_orphans_of_crashed_attempts_are_taken_too(swept: Swept) -> None:
    nonce = "0" * 32
    orphans = leave(swept, f"run/main/chunks/{'f' * 64}", f"run/main/anchors/000000000010/{nonce}/model.safetensors")
    swept.clock.advance(101)
    swept.sweeper.sweep()
    assert orphans == left(swept, orphans)
    swept.publish()
    swept.clock.advance(101)
    swept.sweeper.sweep()
    assert [] == left(swept, orphans)
    assert [10] == ChainReader(swept.store, "run").anchors()


def test_what_the_next_version_may_name_stays_until_that_version_is_there(swept: Swept) -> None:
    orphans = leave(swept, f"run/main/chunks/{'f' * 64}", f"run/main/anchors/000000000011/{'0' * 32}/model.safetensors")
    for _ in range(5):
        swept.clock.advance(101)
        held = swept.sweeper.sweep().held
    assert (orphans, 1) == (left(swept, orphans), held)
    swept.publish()
    for _ in range(2):
        swept.clock.advance(101)
        swept.sweeper.sweep()
    assert [] == left(swept, orphans)


def test_where_nobody_writes_nothing_waits_for_the_next_version(swept: Swept) -> None:
    swept.sweeper.settings = RetentionSettings(lease_period_s=100, nobody_writes=True)
    orphans = leave(swept, f"run/main/chunks/{'f' * 64}", f"run/main/anchors/000000000011/{'0' * 32}/model.safetensors")
    swept.sweep_twice()
    assert [] == left(swept, orphans)


def test_a_tensor_table_is_never_deleted(swept: Swept) -> None:
    # It has no nonce: any later version may name it, and a delete may come at any time after its look.
    table = TensorTable(tensors=[])
    orphan = leave(swept, swept.reader.keys.chunk(table.ref().blake3), data=table.encode())
    for _ in range(4):
        swept.publish()
        swept.clock.advance(101)
        swept.sweeper.sweep()
    assert orphan == left(swept, orphan)


def test_vetoes_go_with_their_versions(swept: Swept) -> None:
    for version in (2, 9, 10):
        mark_bad(swept.reader, version, "the reward collapsed", clock=swept.clock)
    leave(swept, swept.reader.keys.veto(12), data=b"of a version that is not there yet")
    swept.sweep_twice()
    swept.sweep_twice()
    assert ([7, 8, 9, 10], [9, 10, 12]) == (swept.reader.versions(), sorted(swept.vetoes()))


def test_what_a_killed_probe_left_is_taken(swept: Swept) -> None:
    orphans = leave(swept, f"{swept.reader.keys.probe}{'0' * 16}/race-create-0")
    swept.sweep_twice()
    assert [] == left(swept, orphans)


def test_a_skip_delta_without_its_chunk_is_none(swept: Swept) -> None:
    skip = swept.reader.skip(9, 7)
    swept.store.delete(swept.reader.keys.chunk(skip.chunks[0].blake3))
    swept.beat = lambda: swept.consumer(applied=7)  # type: ignore[method-assign]
    swept.sweep_twice()
    assert 7 == swept.reader.versions()[0]
    assert {} == swept.reader.skip_bases()


def test_a_sweep_that_was_held_up_since_its_look_deletes_nothing_more(swept: Swept) -> None:
    # Another sweeper may have relied since on what this one is about to take.
    swept.clock.advance(101)
    swept.sweeper.sweep()
    swept.clock.advance(101)
    swept.sweeper.reader = Slow(swept.store, "run", clock=swept.clock, seconds=101)
    assert 0 == swept.sweeper.sweep().deleted
    swept.sweeper.reader = swept.reader
    assert list(range(1, 11)) == swept.reader.versions()
    assert 0 < swept.sweeper.sweep().deleted


def test_forgotten_heartbeats_are_removed(swept: Swept) -> None:
    swept.consumer(applied=10)
    swept.clock.advance(86_401)
    swept.sweeper.sweep()
    assert [] == list(swept.store.list_after("run/main/consumers/"))


def test_publishing_goes_on_over_a_swept_chain(
    swept: Swept, publisher: Make, trainer: Any, reading: Any, same_bits: Any
) -> None:
    swept.sweep_twice()
    again, source = publisher(), trainer(99)
    again.open()
    version = again.publish(source.weights).version
    assert 12 == version
    assert same_bits(source.weights, reading.units(swept.store, version))
