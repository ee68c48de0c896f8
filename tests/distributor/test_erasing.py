"""Deleting all of a view: in an order that misleads nobody, never another training's, and told as it goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from syncline.chain import ChainReader
from syncline.errors import LineageChanged, StoreDenied
from syncline.metrics import Metrics
from syncline.store.base import ObjectInfo
from syncline.store.keys import ViewKeys
from syncline.store.memory import MemoryStore
from syncline_distributor.erasing import Eraser, erasing_status, make_erasing_app
from syncline_distributor.loops import Loop
from syncline_distributor.options import parse_settings

KEYS = ViewKeys("run")
PLACE = ["--store", "/s", "--run", "r", "--state-dir", "/d"]


class Recording:
    """A store that notes the order of deletes, and refuses those of some keys."""

    def __init__(self, store: MemoryStore, refused: str = "nothing") -> None:
        self.store, self.refused, self.gone = store, refused, list[str]()
        self.url = store.url

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def delete(self, key: str) -> None:
        if self.refused in key:
            raise StoreDenied(f"{key}: the key pair may not delete; give it the right to")
        self.store.delete(key)
        self.gone.append(key)


class Busy(Recording):
    """A node writes its heartbeat just as the first pass is through."""

    beats = 1

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        if limit == 1 and self.beats:
            self.beats -= 1
            self.store.put(f"{prefix}consumers/c/n/p/node.json", b"{}")
        return self.store.list_after(prefix, after=after, limit=limit)


def everything(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list_after("")]


def lineage(store: MemoryStore, run: str = "run") -> str:
    return ChainReader(store, run).run_record().lineage


@pytest.fixture
def run(store: MemoryStore, publisher: Any, trainer: Any) -> str:
    publish, source = publisher(), trainer()
    for _ in range(3):
        publish.publish(source.step())
    store.put(KEYS.consumer("c", "n", "p", "node"), b"{}")
    return lineage(store)


def test_all_of_a_view_goes_and_what_leads_to_an_object_before_it(store: MemoryStore, run: str) -> None:
    recording = Recording(store)
    eraser = Eraser(recording, KEYS, run)  # type: ignore[arg-type]
    count = len(everything(store))
    assert None is eraser.tick()
    assert ([], count, True) == (everything(store), eraser.deleted, eraser.done)
    first, last = recording.gone[0], recording.gone[-1]
    assert (KEYS.head, "run/run.json") == (first, last)
    manifests = [n for n, key in enumerate(recording.gone) if key.endswith(".json") and "/versions/" in key]
    chunks = [n for n, key in enumerate(recording.gone) if "/chunks/" in key]
    assert chunks and max(manifests) < min(chunks)


def test_other_runs_and_other_views_stay_and_with_them_what_they_share(
    store: MemoryStore, run: str, publisher: Any, trainer: Any
) -> None:
    publisher(run="run-2").publish(trainer().weights)
    publisher(view="fp8").publish(trainer().weights)
    kept = [key for key in everything(store) if not key.startswith("run/main/")]
    assert None is Eraser(store, KEYS, run).tick()
    assert kept == everything(store)
    assert "run/run.json" in kept


def test_a_name_that_another_training_took_is_left_alone(store: MemoryStore, run: str) -> None:
    held = everything(store)
    with pytest.raises(LineageChanged, match="another training has taken the name"):
        Eraser(store, KEYS, "0" * 32).tick()
    assert held == everything(store)


def test_what_cannot_be_deleted_is_named_and_tried_again(store: MemoryStore, run: str) -> None:
    recording = Recording(store, refused="/chunks/")
    eraser = Eraser(recording, KEYS, run)  # type: ignore[arg-type]
    loop = Loop("erase", eraser.tick, threading.Event())
    assert loop._once() is not None
    told = erasing_status(eraser, loop)["erasure"]
    assert ("StoreDenied", False) == (told["kind"], told["done"])
    assert "may not delete" in told["error"]
    assert told["left_count"] >= len(told["left"]) > 0
    assert all(store.head(key) for key in told["left"])
    recording.refused = "nothing"
    assert None is loop._once()
    assert ([], True, None) == (everything(store), eraser.done, erasing_status(eraser, loop)["erasure"]["error"])


def test_a_heartbeat_that_comes_meanwhile_goes_too(store: MemoryStore, run: str) -> None:
    eraser = Eraser(Busy(store), KEYS, run)  # type: ignore[arg-type]
    assert (0.0, None) == (eraser.tick(), eraser.tick())
    assert [] == everything(store)


def test_status_and_probes_answer_while_a_run_is_erased(store: MemoryStore, run: str) -> None:
    eraser = Eraser(store, KEYS, run)
    loop = Loop("erase", eraser.tick, threading.Event())
    app = make_erasing_app(eraser, loop, Metrics())

    async def ask() -> tuple[dict[str, Any], list[int]]:
        async with TestClient(TestServer(app)) as client:
            told = await (await client.get("/status")).json()
            codes = [(await client.get(path)).status for path in ("/livez", "/readyz", "/metrics")]
        return told, codes

    loop._once()
    told, codes = asyncio.run(ask())
    assert ("run", "main", True, [200, 200, 200]) == (told["run"], told["view"], told["erasure"]["done"], codes)


def test_erase_wants_the_lineage_that_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert "0" * 32 == parse_settings(["erase", *PLACE, "--lineage", "0" * 32], {}).erases
    assert None is parse_settings(["serve", *PLACE], {}).erases
    for wrong in ([], ["--lineage", "abc"]):
        with pytest.raises(SystemExit):
            parse_settings(["erase", *PLACE, *wrong], {})
    assert "32 hexadecimal digits" in capsys.readouterr().err
