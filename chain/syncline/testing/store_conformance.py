"""What every store must do, as tests: a module subclasses `StoreConformance` and supplies the fixture `under_test`.

`under_test` gives the store and two ways past it, so that what it writes is looked at by something else, and what it
reads was put there by something else. Keys below `chunks/` are written once and never changed, as a cache may assume;
all others may be replaced. Left out on purpose: durability and faults (each adapter's own tests), and which errors a
broken network gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from syncline.errors import AlreadyExists, HeadMoved, NotFound, StoreMisused
from syncline.store.base import KEY_MAX_BYTES, WeightStore

MIB = 1 << 20
RACERS = 16
BAD_KEYS = {
    "empty": "",
    "absolute": "/etc/passwd",
    "trailing slash": "a/",
    "parent": "../a",
    "parent inside": "a/../../b",
    "here": "a/./b",
    "empty segment": "a//b",
    "nul": "a\0b",
    "newline": "a\nb",
    "trailing newline": "a\n",
    "space": "a b",
    "backslash": "a\\b",
    "percent": "a%2e",
    "question mark": "a?b",
    "umlaut": "ä",
    "hidden": ".syncline/lock",
    "hidden inside": "a/.b",
    "too long": "a/" * (KEY_MAX_BYTES // 2) + "a",
    "segment too long": "a" * 241,
}


@dataclass(frozen=True, slots=True)
class StoreUnderTest:
    """A store that is empty, and what goes past it."""

    store: WeightStore
    raw_get: Callable[[str], bytes | None]
    """The object's bytes, or None."""
    raw_set: Callable[[str, bytes], None]
    """Create or replace the object."""


class StoreConformance:
    """The port, promise by promise."""

    race_rounds = 5
    """Fewer where a service makes each loser of a race wait."""
    large_creates_are_atomic = True
    """False for a service that checks the condition of a multipart completion before it acts, so that several racing
    writers may be told that they won."""

    # Reading

    def test_get_gives_what_somebody_else_wrote(self, under_test: StoreUnderTest) -> None:
        under_test.raw_set("run/a.json", b"hello")
        found = under_test.store.get("run/a.json", max_bytes=5)
        assert found is not None
        assert b"hello" == found.data

    def test_get_of_a_missing_object_is_not_found(self, under_test: StoreUnderTest) -> None:
        with pytest.raises(NotFound, match="run/a"):
            under_test.store.get("run/a", max_bytes=100)

    def test_get_below_an_object_is_not_found(self, under_test: StoreUnderTest) -> None:
        under_test.raw_set("run/a", b"x")
        with pytest.raises(NotFound):
            under_test.store.get("run/a/b", max_bytes=100)
        with pytest.raises(NotFound):
            under_test.store.get("run", max_bytes=100)
        with pytest.raises(NotFound):
            under_test.store.head("run")

    def test_get_refuses_an_object_larger_than_expected(self, under_test: StoreUnderTest) -> None:
        under_test.raw_set("a", b"12345")
        with pytest.raises(StoreMisused, match="5 bytes"):
            under_test.store.get("a", max_bytes=4)

    def test_get_gives_nothing_when_the_etag_is_still_the_same(self, under_test: StoreUnderTest) -> None:
        etag = under_test.store.put("a", b"one")
        assert under_test.store.get("a", max_bytes=10, if_none_match=etag) is None
        under_test.store.put("a", b"two")
        found = under_test.store.get("a", max_bytes=10, if_none_match=etag)
        assert found is not None
        assert b"two" == found.data

    def test_a_missing_object_is_not_found_even_with_an_etag(self, under_test: StoreUnderTest) -> None:
        etag = under_test.store.put("a", b"one")
        under_test.store.delete("a")
        with pytest.raises(NotFound):
            under_test.store.get("a", max_bytes=10, if_none_match=etag)

    def test_all_methods_agree_on_etag_size_and_time(self, under_test: StoreUnderTest) -> None:
        store = under_test.store
        for key, etag in {
            "a": store.put("a", b"1"),
            "b": store.put_if_absent("b", b"22"),
            "c": store.compare_and_put("c", b"333", etag=None),
            "d": store.put_large("d", b"4444"),
        }.items():
            found, info, (listed,) = store.get(key, max_bytes=10), store.head(key), store.list_after(key)
            assert found is not None
            assert [etag] * 3 == [found.etag, info.etag, listed.etag]
            assert [len(found.data)] * 2 == [info.size, listed.size]
            assert [key] * 2 == [info.key, listed.key]
            assert int(found.modified) == int(info.modified) == int(listed.modified)

    def test_an_etag_differs_for_different_bytes(self, under_test: StoreUnderTest) -> None:
        etags = [under_test.store.put("a", b"%03d" % n) for n in range(50)]
        assert 50 == len(set(etags))

    def test_an_empty_object_is_an_object(self, under_test: StoreUnderTest) -> None:
        store = under_test.store
        store.put_if_absent("a", b"")
        store.put_large("b", b"")
        store.put("c", np.zeros((0, 3), np.uint16).data)
        for key in "abc":
            found = store.get(key, max_bytes=0)
            assert found is not None
            assert b"" == found.data
            assert 0 == store.head(key).size
            store.get_range_into(key, 0, bytearray())
            assert b"" == under_test.raw_get(key)
        assert ["a", "b", "c"] == [i.key for i in store.list_after("")]

    # Ranges

    def test_a_range_of_64_mib_comes_whole(self, under_test: StoreUnderTest) -> None:
        data = random.Random(1).randbytes(64 * MIB + 3)
        under_test.raw_set("chunks/big", data)
        buffer = bytearray(64 * MIB)
        under_test.store.get_range_into("chunks/big", 3, buffer)
        assert data[3:] == buffer

    @pytest.mark.parametrize(("offset", "length"), [(0, 1), (99, 1), (0, 100), (37, 13)])
    def test_a_small_range_comes_whole(self, under_test: StoreUnderTest, offset: int, length: int) -> None:
        data = bytes(range(100))
        under_test.raw_set("chunks/small", data)
        buffer = bytearray(length)
        under_test.store.get_range_into("chunks/small", offset, buffer)
        assert data[offset : offset + length] == buffer

    def test_a_range_fills_a_part_of_an_array(self, under_test: StoreUnderTest) -> None:
        under_test.raw_set("chunks/a", bytes(range(16)))
        array = np.zeros((4, 2), np.uint16)
        under_test.store.get_range_into("chunks/a", 4, array[1:3].data)
        assert [0, 0, *np.frombuffer(bytes(range(4, 12)), np.uint16), 0, 0] == array.reshape(-1).tolist()

    @pytest.mark.parametrize(("offset", "length"), [(0, 11), (5, 6), (10, 1), (11, 0), (100, 10), (-1, 2)])
    def test_a_range_beyond_the_object_is_misuse(self, under_test: StoreUnderTest, offset: int, length: int) -> None:
        under_test.raw_set("chunks/a", b"0123456789")
        with pytest.raises(StoreMisused):
            under_test.store.get_range_into("chunks/a", offset, bytearray(length))

    def test_an_empty_range_at_the_end_is_fine(self, under_test: StoreUnderTest) -> None:
        under_test.raw_set("chunks/a", b"0123456789")
        under_test.store.get_range_into("chunks/a", 10, bytearray())

    def test_a_large_range_beyond_the_object_is_misuse(self, under_test: StoreUnderTest) -> None:
        under_test.raw_set("chunks/a", bytes(MIB))
        with pytest.raises(StoreMisused):
            under_test.store.get_range_into("chunks/a", 1, bytearray(20 * MIB))

    @pytest.mark.parametrize("length", [0, 1, 20 * MIB])
    def test_a_range_of_a_missing_object_is_not_found(self, under_test: StoreUnderTest, length: int) -> None:
        with pytest.raises(NotFound):
            under_test.store.get_range_into("chunks/none", 0, bytearray(length))

    def test_a_range_is_not_read_into_read_only_memory(self, under_test: StoreUnderTest) -> None:
        under_test.raw_set("chunks/a", b"0123456789")
        with pytest.raises(StoreMisused, match="read-only"):
            under_test.store.get_range_into("chunks/a", 0, b"0123")

    # Writing

    def test_put_if_absent_creates_once(self, under_test: StoreUnderTest) -> None:
        under_test.store.put_if_absent("run/main/head", b"first")
        with pytest.raises(AlreadyExists) as caught:
            under_test.store.put_if_absent("run/main/head", b"second")
        assert "run/main/head" == caught.value.key
        assert b"first" == under_test.raw_get("run/main/head")

    def test_put_if_absent_respects_what_somebody_else_wrote(self, under_test: StoreUnderTest) -> None:
        under_test.raw_set("a", b"theirs")
        with pytest.raises(AlreadyExists):
            under_test.store.put_if_absent("a", b"mine")
        assert b"theirs" == under_test.raw_get("a")

    def test_put_takes_any_contiguous_buffer(self, under_test: StoreUnderTest) -> None:
        array = np.arange(6, dtype=np.uint16).reshape(2, 3)
        under_test.store.put("a", array.data)
        assert array.tobytes() == under_test.raw_get("a")
        with pytest.raises(StoreMisused, match="contiguous"):
            under_test.store.put("b", array.T.data)

    def test_put_replaces(self, under_test: StoreUnderTest) -> None:
        under_test.store.put("a", b"one")
        under_test.store.put("a", b"three")
        assert b"three" == under_test.raw_get("a")

    def test_compare_and_put_replaces_what_it_was_shown(self, under_test: StoreUnderTest) -> None:
        etag = under_test.store.compare_and_put("head", b"1", etag=None)
        for n in (b"2", b"3", b"4"):
            etag = under_test.store.compare_and_put("head", n, etag=etag)
            assert n == under_test.raw_get("head")

    def test_compare_and_put_loses_with_a_stale_etag(self, under_test: StoreUnderTest) -> None:
        stale = under_test.store.put("head", b"1")
        under_test.store.put("head", b"2")
        with pytest.raises(HeadMoved, match="head"):
            under_test.store.compare_and_put("head", b"3", etag=stale)
        assert b"2" == under_test.raw_get("head")

    def test_compare_and_put_creates_only_where_nothing_is(self, under_test: StoreUnderTest) -> None:
        under_test.raw_set("head", b"1")
        with pytest.raises(HeadMoved):
            under_test.store.compare_and_put("head", b"2", etag=None)
        assert b"1" == under_test.raw_get("head")

    def test_compare_and_put_never_replaces_what_is_gone(self, under_test: StoreUnderTest) -> None:
        etag = under_test.store.put("run/head", b"1")
        under_test.store.delete("run/head")
        with pytest.raises(HeadMoved):
            under_test.store.compare_and_put("run/head", b"2", etag=etag)
        assert under_test.raw_get("run/head") is None

    @pytest.mark.parametrize("size", [0, 1, 16 * MIB, 40 * MIB + 1])
    def test_put_large_takes_files_and_buffers(self, under_test: StoreUnderTest, tmp_path: Path, size: int) -> None:
        data = random.Random(size).randbytes(size)
        file = tmp_path / "source"
        file.write_bytes(data)
        under_test.store.put_large("chunks/file", file)
        under_test.store.put_large("chunks/buffer", memoryview(data))
        assert data == under_test.raw_get("chunks/file")
        assert data == under_test.raw_get("chunks/buffer")

    @pytest.mark.parametrize("size", [1, 20 * MIB])
    def test_put_large_creates_once(self, under_test: StoreUnderTest, size: int) -> None:
        under_test.raw_set("a", b"theirs")
        with pytest.raises(AlreadyExists):
            under_test.store.put_large("a", bytes(size))
        assert b"theirs" == under_test.raw_get("a")

    def test_put_large_of_a_missing_file_is_misuse(self, under_test: StoreUnderTest, tmp_path: Path) -> None:
        with pytest.raises(StoreMisused, match="none"):
            under_test.store.put_large("a", tmp_path / "none")
        assert under_test.raw_get("a") is None

    def test_delete_removes_and_is_content_with_nothing(self, under_test: StoreUnderTest) -> None:
        under_test.raw_set("run/main/a", b"1")
        under_test.store.delete("run/main/a")
        under_test.store.delete("run/main/a")
        under_test.store.delete("run/other")
        assert under_test.raw_get("run/main/a") is None
        under_test.store.put_if_absent("run/main/a", b"2")
        assert b"2" == under_test.raw_get("run/main/a")

    # Listing

    def test_a_listing_is_in_the_byte_order_of_whole_keys(self, under_test: StoreUnderTest) -> None:
        keys = ["a-b", "a.b", "a/x", "a/y/1", "a/y-1", "a0", "a=", "b", "run-1/v", "run/v", "z/1", "B", "_"]
        for key in keys:
            under_test.raw_set(key, b"1")
        assert sorted(keys) == [i.key for i in under_test.store.list_after("")]

    def test_a_listing_can_go_on_after_any_key(self, under_test: StoreUnderTest) -> None:
        keys = _tree_of_keys(random.Random(7), count=40)
        for key in keys:
            under_test.raw_set(key, b"1")
        for after in [*keys[::3], *(k + "0" for k in keys[::5]), *(k[:-1] for k in keys[::5]), "a", "a-", "a/", "~"]:
            assert [k for k in keys if k > after] == [i.key for i in under_test.store.list_after("", after=after)], (
                after
            )

    def test_a_listing_below_a_prefix_can_go_on_after_a_key(self, under_test: StoreUnderTest) -> None:
        for version in range(1, 31):
            under_test.raw_set(f"run/main/versions/{version:012d}.json", b"1")
        under_test.raw_set("run/main/head", b"1")
        under_test.raw_set("run/main/vetoes/000000000001.json", b"1")
        store, prefix = under_test.store, "run/main/versions/"
        for after in (1, 9, 10, 11, 19, 29, 30, 99):
            found = store.list_after(prefix, after=f"{prefix}{after:012d}.json")
            assert [f"{prefix}{v:012d}.json" for v in range(after + 1, 31)] == [i.key for i in found]
        assert [] == list(store.list_after(prefix, after="run/main/w"))
        assert 30 == len(list(store.list_after(prefix, after="run/main/a")))

    def test_a_prefix_may_end_inside_a_name(self, under_test: StoreUnderTest) -> None:
        for key in ("run/a", "run/ab", "run/abc/d", "run/b", "runner/x"):
            under_test.raw_set(key, b"1")
        store = under_test.store
        assert ["run/ab", "run/abc/d"] == [i.key for i in store.list_after("run/ab")]
        assert ["run/abc/d"] == [i.key for i in store.list_after("run/abc/")]
        assert ["run/a"] == [i.key for i in store.list_after("run/a", limit=1)]
        assert [] == list(store.list_after("run/x"))
        assert [] == list(store.list_after("run/a/"))
        assert ["runner/x"] == [i.key for i in store.list_after("run", after="run/b")]

    @pytest.mark.parametrize("limit", [0, 1, 3, 4, 5])
    def test_a_listing_stops_at_its_limit(self, under_test: StoreUnderTest, limit: int) -> None:
        keys = ["a/1", "a/2", "a/3/4", "a/5"]
        for key in keys:
            under_test.raw_set(key, b"1")
        assert keys[:limit] == [i.key for i in under_test.store.list_after("a/", limit=limit)]
        assert keys[1:][:limit] == [i.key for i in under_test.store.list_after("a/", after="a/1", limit=limit)]

    def test_a_listing_goes_on_beyond_one_page(self, under_test: StoreUnderTest) -> None:
        keys = [f"many/{n:05d}" for n in range(1100)]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(under_test.raw_set, keys, [b"1"] * len(keys)))
        assert keys == [i.key for i in under_test.store.list_after("many/")]
        assert keys[1001:] == [i.key for i in under_test.store.list_after("many/", after=keys[1000])]

    def test_a_listing_forgets_what_was_deleted(self, under_test: StoreUnderTest) -> None:
        for key in ("a/1", "a/2/3", "a/4"):
            under_test.store.put(key, b"1")
        under_test.store.delete("a/2/3")
        assert ["a/1", "a/4"] == [i.key for i in under_test.store.list_after("")]

    # Bounds

    @pytest.mark.parametrize("name", BAD_KEYS)
    def test_a_key_out_of_bounds_is_refused_everywhere(self, under_test: StoreUnderTest, name: str) -> None:
        key, store = BAD_KEYS[name], under_test.store
        calls: list[Callable[[], object]] = [
            lambda: store.get(key, max_bytes=10),
            lambda: store.get_range_into(key, 0, bytearray(1)),
            lambda: store.put_if_absent(key, b"1"),
            lambda: store.compare_and_put(key, b"1", etag=None),
            lambda: store.compare_and_put(key, b"1", etag="x"),
            lambda: store.put(key, b"1"),
            lambda: store.put_large(key, b"1"),
            lambda: store.head(key),
            lambda: store.delete(key),
        ]
        for call in calls:
            with pytest.raises(StoreMisused):
                call()
        assert [] == list(store.list_after(""))

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../b", "a//", ".", "ä", "a\0", "a" * 1000])
    def test_a_prefix_out_of_bounds_is_refused(self, under_test: StoreUnderTest, prefix: str) -> None:
        with pytest.raises(StoreMisused):
            list(under_test.store.list_after(prefix))

    def test_listing_after_something_that_is_no_text_of_a_key_is_refused(self, under_test: StoreUnderTest) -> None:
        for after in ("ä", "a\0", "a" * 1000):
            with pytest.raises(StoreMisused):
                list(under_test.store.list_after("", after=after))
        with pytest.raises(StoreMisused):
            list(under_test.store.list_after("", limit=-1))

    def test_the_longest_key_and_every_character_are_taken(self, under_test: StoreUnderTest) -> None:
        segment = "AZaz09._=+@-"
        longest = "/".join([segment * 15] * 5)[:KEY_MAX_BYTES]
        under_test.store.put_if_absent(longest, b"1")
        assert b"1" == under_test.raw_get(longest)
        assert [longest] == [i.key for i in under_test.store.list_after("")]
        assert 1 == under_test.store.head(longest).size
        under_test.store.delete(longest)
        assert [] == list(under_test.store.list_after(""))

    def test_the_url_says_where_and_holds_no_secret(self, under_test: StoreUnderTest) -> None:
        assert isinstance(under_test.store, WeightStore)
        assert ":" in under_test.store.url
        assert "secret" not in under_test.store.url

    # Races

    def test_racing_creates_have_one_winner(self, under_test: StoreUnderTest) -> None:
        for round_ in range(self.race_rounds):
            key = f"race/{round_}"
            winners = _race(lambda name, key=key: under_test.store.put_if_absent(key, name), AlreadyExists)
            assert 1 == len(winners)
            assert winners[0] == under_test.raw_get(key)

    def test_racing_large_creates_leave_the_whole_of_a_winner(self, under_test: StoreUnderTest) -> None:
        pad = bytes(17 * MIB)
        winners = _race(lambda name: under_test.store.put_large("race", name + pad), AlreadyExists, racers=3)
        held = under_test.raw_get("race")
        assert held in [name + pad for name in winners]
        if self.large_creates_are_atomic:
            assert 1 == len(winners)

    def test_racing_replacements_have_one_winner(self, under_test: StoreUnderTest) -> None:
        etag = under_test.store.put("head", b"start")
        for round_ in range(self.race_rounds):
            won: list[str] = []
            # Nobody writes what is there already: an etag may come from the bytes alone, and would stay good for others.
            winners = _race(
                lambda name, etag=etag, won=won: won.append(under_test.store.compare_and_put("head", name, etag=etag)),
                HeadMoved,
                label=f"round {round_} ",
            )
            assert 1 == len(winners) == len(won)
            assert winners[0] == under_test.raw_get("head")
            etag = won[0]

    def test_no_increment_is_lost_between_writers(self, under_test: StoreUnderTest) -> None:
        store = under_test.store
        store.put("count", b"0 by nobody")

        def add(writer: int) -> None:
            while True:
                found = store.get("count", max_bytes=20)
                assert found is not None
                # Each writer signs: the same bytes of two writers would pass for one's own lost try.
                count = b"%d by %d" % (int(found.data.split()[0]) + 1, writer)
                try:
                    store.compare_and_put("count", count, etag=found.etag)
                except HeadMoved:
                    continue
                return

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(add, range(20)))
        assert b"20" == (under_test.raw_get("count") or b"").split()[0]

    def test_creates_and_deletes_beside_each_other_do_not_disturb(self, under_test: StoreUnderTest) -> None:
        store = under_test.store

        def churn(worker: int) -> None:
            for n in range(10):
                store.put_if_absent(f"churn/deep/{worker}-{n}", b"1")
                store.delete(f"churn/deep/{worker}-{n}")

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(churn, range(4)))
        assert [] == list(store.list_after("churn/"))


def _race(
    call: Callable[[bytes], object], lost: type[Exception], *, racers: int = RACERS, label: str = ""
) -> list[bytes]:
    """Names of those whose call succeeded; any error but `lost` is raised."""
    start = Barrier(racers)

    def run(name: bytes) -> bytes | None:
        start.wait()
        try:
            call(name)
        except lost:
            return None
        return name

    with ThreadPoolExecutor(racers) as threads:
        return [w for w in threads.map(run, [f"{label}racer {n}".encode() for n in range(racers)]) if w is not None]


def _tree_of_keys(rng: random.Random, *, count: int) -> list[str]:
    """Sorted keys whose names differ around the slash, none a folder of another."""
    keys: set[str] = set()
    while len(keys) < count:
        key = "/".join("a" + "".join(rng.choices("a-.0", k=rng.randrange(3))) for _ in range(rng.randrange(1, 4)))
        if not any(k.startswith(key + "/") or key.startswith(k + "/") for k in keys):
            keys.add(key)
    return sorted(keys)
