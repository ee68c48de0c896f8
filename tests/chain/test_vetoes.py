"""What a veto reaches: the version itself, and whatever stands on it without changing anything."""

from __future__ import annotations

import pytest

from syncline.chain import AnchorStep, ChainReader, DeltaStep, marked_bad, newest_allowed, plan, undoing
from syncline.clock import ManualClock
from syncline.errors import LinkMissing, VersionVetoed
from syncline.store.memory import MemoryStore
from syncline.testing.chains import ChainWriter, version_manifest


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


@pytest.fixture
def writer(store: MemoryStore) -> ChainWriter:
    """Version 1 whole, 2 a change, 3 and 4 no change, 5 a change, 6 no change."""
    writer = ChainWriter(store)
    for version, size in ((1, 0), (2, 10), (3, 0), (4, 0), (5, 10), (6, 0)):
        writer.commit(version, version - 1 or None, size)
    return writer


def bad(store: MemoryStore) -> list[int]:
    """Every version that counts as vetoed, by asking for each."""
    vetoes = ChainReader(store, "run").vetoes()
    return [v for v in range(1, 10) if v in vetoes]


@pytest.mark.parametrize(
    ("marked", "expected", "newest"),
    [([], [], 6), ([1], [1], 6), ([2], [2, 3, 4], 6), ([3], [3, 4], 6), ([4], [4], 6), ([5], [5, 6], 4),
     ([6], [6], 5), ([2, 5], [2, 3, 4, 5, 6], 1), ([2, 3], [2, 3, 4], 6)],
)  # fmt: skip
def test_a_version_that_changes_nothing_is_vetoed_while_its_base_is(
    store: MemoryStore, writer: ChainWriter, marked: list[int], expected: list[int], newest: int
) -> None:
    for version in marked:
        writer.veto(version)
    vetoes = ChainReader(store, "run").vetoes()
    assert (expected, expected, newest) == (bad(store), list(vetoes), newest_allowed(6, vetoes))
    for version in marked:
        store.delete(writer.keys.veto(version))
    assert [] == bad(store)


def test_a_base_further_below_counts_and_a_parent_does_not(store: MemoryStore, writer: ChainWriter) -> None:
    writer.commit(7, 4, 0)
    store.put_if_absent(writer.keys.version(8), version_manifest(8, 5, 0, parent=2).encode())
    writer.veto(2)
    assert [2, 3, 4, 7] == bad(store)


def test_a_version_committed_after_the_vetoes_were_read_is_judged_by_them(
    store: MemoryStore, writer: ChainWriter
) -> None:
    writer.veto(5)
    vetoes = ChainReader(store, "run").vetoes()
    writer.commit(7, 6, 0)
    writer.commit(8, 7, 10)
    assert (4, 8) == (newest_allowed(7, vetoes), newest_allowed(8, vetoes))


def test_the_look_ends_at_a_manifest_that_is_gone_and_needs_none_of_the_marked_version(
    store: MemoryStore, writer: ChainWriter
) -> None:
    writer.veto(2)
    store.delete(writer.keys.version(2))
    assert [2, 3, 4] == bad(store)
    store.delete(writer.keys.version(3))
    assert [2] == bad(store)


def test_a_manifest_is_read_only_above_a_mark(store: MemoryStore, writer: ChainWriter) -> None:
    asked: list[int] = []

    class Asked(ChainReader):
        def manifest(self, version: int):  # type: ignore[no-untyped-def]
            asked.append(version)
            return super().manifest(version)

    reader = Asked(store, "run")
    assert 6 == newest_allowed(6, reader.vetoes())
    assert [] == asked
    writer.veto(5)
    assert 4 == newest_allowed(6, reader.vetoes())
    assert [6] == asked


def test_a_plan_neither_leads_to_such_a_version_nor_starts_from_its_anchor_but_leads_through(
    store: MemoryStore, writer: ChainWriter
) -> None:
    reader = ChainReader(store, "run")
    writer.anchor(reader.manifest(3))
    writer.veto(2)
    with pytest.raises(VersionVetoed, match=r"version 4 changes nothing on version 2, .*: syncline mark-bad 2 --undo"):
        plan(None, 4, reader, vetoed=reader.vetoes())
    way = plan(None, 5, reader, vetoed=reader.vetoes()).steps
    assert (AnchorStep, [DeltaStep] * 4) == (type(way[0]), [type(step) for step in way[1:]])
    assert 1 == way[0].key.version
    store.delete(writer.keys.version(1))
    with pytest.raises(
        LinkMissing, match="the anchor of version 3 is not used: version 3 changes nothing on version 2"
    ):
        plan(None, 5, ChainReader(store, "run"), vetoed=reader.vetoes())


def test_the_mark_to_take_back_is_named(store: MemoryStore, writer: ChainWriter) -> None:
    writer.veto(5)
    vetoes = ChainReader(store, "run").vetoes()
    assert "version 6 changes nothing on version 5, which was marked bad (reward fell)" == marked_bad(6, vetoes)
    assert "version 5 was marked bad (reward fell)" == marked_bad(5, vetoes)
    assert ["syncline mark-bad 5 --undo"] * 2 == [undoing(6, vetoes), undoing(5, vetoes)]
