"""Keys are spelled in one place, sort as versions do, and take nothing into themselves that is no name."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import StoreMisused
from syncline.store.base import KEY_MAX_BYTES
from syncline.store.bounds import checked_key
from syncline.store.keys import NAME, VERSION_MAX, RunKeys, ViewKeys, digits, version_of

VERSIONS = st.integers(1, VERSION_MAX)
NAMES = st.from_regex(NAME, fullmatch=True).filter(lambda name: ".." not in name)
BAD_NAMES = ["", "A", "a/b", "..", "a..b", ".a", "a.", "-a", "a-", "a b", "ä", "a\n", "a\0", "g" * 64]
HASH = "0123456789abcdef" * 4


def test_every_key_is_where_the_format_says() -> None:
    keys = RunKeys("r").view()
    assert "r/run.json" == RunKeys("r").run_json
    assert "r/main/head" == keys.head
    assert "r/main/versions/000000000007.json" == keys.version(7)
    assert "r/main/anchors/000000000007/manifest.json" == keys.anchor(7)
    assert "r/main/anchors/000000000007/n0/model.safetensors" == keys.anchor_file(7, "n0", "model.safetensors")
    assert "r/main/skips/000000000009/000000000007.json" == keys.skip(9, 7)
    assert f"r/main/chunks/{HASH}" == keys.chunk(HASH)
    assert "r/main/vetoes/000000000007.json" == keys.veto(7)
    assert "r/main/consumers/c/n/p/node.json" == keys.consumer("c", "n", "p", "node")
    assert "r/main/leases/l.json" == keys.lease("l")


@given(one=VERSIONS, two=VERSIONS)
def test_keys_sort_as_versions_do(one: int, two: int) -> None:
    keys = ViewKeys("r")
    assert (one < two) == (keys.version(one) < keys.version(two))


@given(version=VERSIONS)
def test_a_key_gives_its_version_back(version: int) -> None:
    keys = ViewKeys("r")
    for key in (keys.version(version), keys.anchor(version), keys.veto(version), keys.skip(1, version)):
        assert version == version_of(key)


@pytest.mark.parametrize(
    "key", ["r/main/head", "r/main/versions/7.json", "r/main/versions/000000000000.json", "000000000007.json", ""]
)
def test_a_key_without_a_version_is_refused(key: str) -> None:
    with pytest.raises(StoreMisused):
        version_of(key)


@pytest.mark.parametrize("version", [0, -1, VERSION_MAX + 1])
def test_a_version_out_of_bounds_is_refused(version: int) -> None:
    with pytest.raises(StoreMisused):
        digits(version)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_what_is_no_name_is_refused_everywhere(name: str) -> None:
    keys = ViewKeys("r")
    calls: list[Callable[[], object]] = [
        lambda: RunKeys(name),
        lambda: RunKeys("r").view(name),
        lambda: keys.lease(name),
        lambda: keys.consumer(name, "n", "p", "x"),
        lambda: keys.consumer("c", name, "p", "x"),
        lambda: keys.consumer("c", "n", name, "x"),
        lambda: keys.consumer("c", "n", "p", name),
        lambda: keys.chunk(name),
    ]
    for call in calls:
        with pytest.raises(StoreMisused):
            call()


def test_a_view_never_hides_the_runs_own_object() -> None:
    with pytest.raises(StoreMisused):
        RunKeys("r").view("run.json")


@given(names=st.tuples(*[NAMES] * 6))
def test_every_key_of_names_is_within_the_stores_bounds(names: tuple[str, str, str, str, str, str]) -> None:
    run, view, *rest = names
    if view == "run.json":
        return
    key = ViewKeys(run, view).consumer(*rest)
    assert key == checked_key(key)
    assert len(key) < KEY_MAX_BYTES
    assert re.fullmatch(r"[a-z0-9._/-]+", key)
