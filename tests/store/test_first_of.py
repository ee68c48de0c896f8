"""Several stores read as one: what is passed over, what is told in the end, and that nothing is written."""

from __future__ import annotations

import pytest

from syncline.clock import ManualClock
from syncline.errors import ChunkCorrupt, NotFound, StoreDenied, StoreMisused, StoreUnavailable, SynclineError
from syncline.store.base import WeightStore
from syncline.store.first_of import FirstOf, first_good, sources_of
from syncline.store.memory import MemoryStore


def stores(*contents: bytes | None) -> list[MemoryStore]:
    """A store each, with the object `key` or without."""
    made = [MemoryStore(ManualClock()) for _ in contents]
    for store, data in zip(made, contents, strict=True):
        if data is not None:
            store.put("key", data)
    return made


def right(store: WeightStore) -> bytes:
    """The object, if it is right."""
    found = store.get("key", max_bytes=10)
    assert found is not None
    if found.data != b"right":
        raise ChunkCorrupt(f"key holds {found.data!r}")
    return found.data


@pytest.mark.parametrize("first", [None, b"wrong", b"far too long for it"])
def test_what_one_source_has_not_right_is_taken_from_the_next(first: bytes | None) -> None:
    assert b"right" == first_good(FirstOf(stores(first, b"right")), right)


def test_whoever_wants_to_know_hears_of_damage_and_not_of_absence() -> None:
    heard: list[tuple[WeightStore, str]] = []
    made = stores(None, b"wrong", b"right")
    both = FirstOf(made, damaged=lambda source, error: heard.append((source, str(error))))
    assert b"right" == first_good(both, right)
    assert [(made[1], "key holds b'wrong'")] == heard


def test_a_range_beyond_a_cut_copy_is_read_from_the_next_source() -> None:
    buffer = bytearray(5)
    FirstOf(stores(b"rig", b"right")).get_range_into("key", 0, buffer)
    assert b"right" == buffer


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ([NotFound("key"), ChunkCorrupt("wrong")], ChunkCorrupt),
        ([ChunkCorrupt("wrong"), NotFound("key")], ChunkCorrupt),
        ([ChunkCorrupt("wrong"), StoreUnavailable("down"), NotFound("key")], StoreUnavailable),
        ([StoreDenied("no"), NotFound("key")], StoreDenied),
        ([NotFound("key"), NotFound("key")], NotFound),
    ],
)
def test_of_several_failures_the_one_that_leaves_most_hope_is_told(
    errors: list[SynclineError], told: type[SynclineError]
) -> None:
    made = stores(*[None] * len(errors))
    by_store = dict(zip(map(id, made), errors, strict=True))

    def fail(store: WeightStore) -> None:
        raise by_store[id(store)]

    with pytest.raises(told):
        FirstOf(made).first(fail)


def test_a_plain_store_is_its_own_and_only_source() -> None:
    (store,) = stores(b"right")
    assert (store,) == sources_of(store)
    assert b"right" == first_good(store, right)


def test_nothing_is_written_through_it() -> None:
    both = FirstOf(stores(b"a", b"b"))
    for write in (both.put, both.put_if_absent, both.put_large):
        with pytest.raises(StoreMisused, match="nothing writes"):
            write("key", b"")
    with pytest.raises(StoreMisused):
        both.compare_and_put("key", b"", etag=None)
    with pytest.raises(StoreMisused):
        both.delete("key")
