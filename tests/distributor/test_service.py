"""The process: flags to settings, a real `watch` over a folder with its HTTP face, and a clean end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.errors import StoreDenied
from syncline.metrics import Metrics
from syncline.store.memory import MemoryStore
from syncline.store.open import open_store
from syncline.wire.records import ConsumerRecord
from syncline_distributor.__main__ import main
from syncline_distributor.consumers import read_readers, summarize
from syncline_distributor.loops import Loop
from syncline_distributor.options import parse_settings
from syncline_distributor.settings import Completion, NonFinite
from syncline_distributor.status import Observer, Reporter

NEEDED = ["--store", "/s", "--run", "r", "--state-dir", "/d"]


def test_flags_win_over_the_environment_and_that_over_defaults() -> None:
    environ = {"SYNCLINE_ANCHOR_EVERY": "7", "SYNCLINE_SKIP_EVERY": "9", "SYNCLINE_SOURCE": "/src"}
    settings = parse_settings(["watch", *NEEDED, "--skip-every", "3", "--nonfinite", "Refuse"], environ)
    assert (7, 3, 50.0) == (
        settings.anchors.anchor_every,
        settings.anchors.skip_every,
        settings.retention.lease_period_s / 6,
    )
    assert ("/src", NonFinite.REFUSE, "main") == (settings.source, settings.publish.nonfinite, settings.view)
    assert parse_settings(["serve", *NEEDED], {}).source is None
    fast = parse_settings(["serve", *NEEDED, "--link-mbit", "80000"], {"SYNCLINE_CODEC": "sparse"})
    assert (("sparse", 1e10), fast.publish.choice) == (
        (fast.anchors.choice.forced, fast.anchors.choice.link_bytes_per_second),
        fast.anchors.choice,
    )


def test_a_marker_sets_how_checkpoints_complete() -> None:
    settings = parse_settings(["watch", *NEEDED, "--source", "/src", "--marker", "DONE"], {})
    assert (Completion.MARKER, "DONE") == (settings.watch.completion, settings.watch.marker)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--anchor-every", "-1"], "--anchor-every is a whole number of at least 0"),
        (["--run", "Not A Name"], "is not a name"),
        (["--complete", "marker"], "--marker NAME"),
        (["--complete", "renamed"], "--complete must be stable, rename or marker, not renamed"),
        (["--nonfinite", "refuse"], "--nonfinite must be Publish or Refuse, not refuse"),
        (["--port", "http"], "--port is a whole number of at least 0, not http"),
        (["--port", "65536"], "--port is at most 65535, not 65536"),
        (["--poll-seconds", "1s"], "--poll-seconds is a number of at least 0, not 1s"),
        (["--lease-seconds", "-3"], "--lease-seconds"),
        (["--retention", "maybe"], "on or off"),
        (["--keep-anchors", "0"], "--keep-anchors is a whole number of at least 1"),
        (["--codec", "zip"], "codec 'zip' is not auto or one of"),
        (["--link-mbit", "0"], "--link-mbit is a number of at least 0.001"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_status_2(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(["watch", *NEEDED, "--source", "/src", *more], {})
    assert 2 == ended.value.code
    assert said in capsys.readouterr().err


def test_consumers_are_summed_up_by_pool(store: MemoryStore, clock: ManualClock, publisher: Any, trainer: Any) -> None:
    publish = publisher()
    publish.publish(trainer().weights)
    reader = ChainReader(store, "run")
    lineage = reader.run_record().lineage

    def beat(node: str, **fields: Any) -> None:
        record = ConsumerRecord(
            lineage=lineage, cluster="c", namespace="n", pool=fields.pop("pool", "p"), node=node, ttl_ms=60_000,
            applied_digest=None, target=9, pinned=None, boot=None, phase="idle", apply_path="delta",
            **{"applied": 8, "proven": True, "lag_ms": 1500, "error": None, "leaving": False, **fields},
        )  # fmt: skip
        store.put(reader.keys.consumer("c", "n", record.pool, node), record.encode())

    beat("old")
    clock.advance(61)
    beat("a")
    beat("b", applied=7, proven=False, lag_ms=4000, error="the store is down")
    beat("c", applied=None, lag_ms=None, proven=False)
    beat("d", pool="q", leaving=True)
    p, q = summarize(read_readers(store, reader.keys, lineage), 9, 3600)
    assert ("p", 3, 1, 1, 1) == (p["pool"], p["nodes"], p["stale"], p["proven"], p["empty"])
    assert ({"7": 1, "8": 1}, 2, 4.0) == (p["versions"], p["lag_versions_max"], p["lag_seconds_max"])
    assert {"the store is down": 1} == p["errors"]
    assert store.head(reader.keys.consumer("c", "n", "p", "c")).modified == p["last_heartbeat"]
    assert ("q", 0, 1) == (q["pool"], q["nodes"], q["stale"])


def test_an_observer_tells_of_every_new_head_once(
    store: MemoryStore, clock: ManualClock, publisher: Any, trainer: Any
) -> None:
    seen: list[int] = []
    observer = Observer(ChainReader(store, "run"), clock, Metrics(), on_head=lambda head: seen.append(head.version))
    observer.tick()
    assert observer.looked and observer.head is None
    publish, source = publisher(), trainer()
    for _ in range(2):
        publish.publish(source.step())
        observer.tick()
        observer.tick()
    assert [1, 2] == seen


def test_a_run_that_is_not_there_is_told_once_with_those_that_are_and_waited_for(
    store: MemoryStore, clock: ManualClock, publisher: Any, trainer: Any
) -> None:
    publisher(run="here").publish(trainer().weights)
    observer = Observer(ChainReader(store, "run"), clock, Metrics())
    reporter = Reporter(observer, None, None, None, [], None)
    assert "the store has not answered yet" == reporter.unready()
    with capture_logs() as said:
        for _ in range(3):
            observer.tick()
    words = f"run run does not exist in {store.url} yet; it holds here; check --run"
    assert [("warning", words)] == [(line["log_level"], line["waits_for"]) for line in said]
    assert (words, None) == (reporter.status()["waits_for"], reporter.unready())
    publisher().publish(trainer().weights)
    observer.tick()
    assert None is reporter.status()["waits_for"]


def test_a_process_that_creates_the_run_itself_does_not_wait_for_it(store: MemoryStore, clock: ManualClock) -> None:
    observer = Observer(ChainReader(store, "run"), clock, Metrics(), creates=True)
    with capture_logs() as said:
        observer.tick()
    assert ([], None, True) == (said, observer.waits_for, observer.looked)


def test_a_loop_ends_for_good_on_an_error_that_nobody_foresaw() -> None:
    stop, said = threading.Event(), iter([0.0, ZeroDivisionError("odd")])

    def tick() -> float | None:
        found = next(said)
        if isinstance(found, Exception):
            raise found
        return found

    loop = Loop("odd", tick, stop)
    loop.start()
    assert loop.join(10)
    assert (True, "ZeroDivisionError: odd", "ZeroDivisionError") == (loop.broken, loop.error, loop.kind)


def test_a_loop_says_an_error_that_stays_the_same_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syncline_distributor.loops.ERROR_WAIT_S", 0.0)
    denied, gone = StoreDenied("the key pair may not read"), StoreDenied("the bucket is gone")
    script: Iterator[StoreDenied | float | None] = iter([denied, denied, denied, gone, gone, 0.0, gone, None])

    def tick() -> float | None:
        found = next(script)
        if isinstance(found, StoreDenied):
            raise found
        return found

    loop = Loop("odd", tick, threading.Event())
    with capture_logs() as said:
        loop.start()
        assert loop.join(10)
    assert [str(denied), str(gone), str(gone)] == [line["error"] for line in said]
    assert (None, None) == (loop.error, loop.kind)


def test_status_says_of_each_loop_that_fails_which_error_it_met(store: MemoryStore, clock: ManualClock) -> None:
    def denied() -> float:
        raise StoreDenied("the key pair may not delete")

    def fine() -> None:
        return None

    loops = [Loop("sweep", denied, threading.Event()), Loop("keep", fine, threading.Event())]
    reporter = Reporter(Observer(ChainReader(store, "run"), clock, Metrics()), None, None, None, loops, None)
    for loop in loops:
        loop._once()
    assert {"sweep": "StoreDenied"} == reporter.status()["faults"]
    assert {"sweep": "the key pair may not delete", "keep": None} == reporter.status()["loops"]


class Running:
    """A distributor process and its address."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "syncline_distributor", *arguments, "--log-format", "json"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[dict[str, Any]] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line) if line.startswith("{") else {"event": line})
            if self.lines[-1]["event"] == "listening":
                break
        self.address = self.lines[-1].get("address", "")
        self._drain = threading.Thread(target=self._read, daemon=True)
        self._drain.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line) if line.startswith("{") else {"event": line})

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=40) as answer:
            text = answer.read().decode()
            return json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text

    def ready(self) -> bool:
        return self.unready() is None

    def unready(self) -> str | None:
        """The reason that `/readyz` gives; None when it says ready."""
        try:
            assert {"ready": True} == self.get("/readyz")
        except urllib.error.HTTPError as error:
            assert 503 == error.code
            return json.loads(error.read())["reason"]
        return None

    def wait_for(self, path: str, pattern: str) -> None:
        self.until(lambda: re.search(pattern, self.get(path)) is not None)

    def until(self, holds: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(300):
            if holds():
                return
            pause.wait(0.1)
        raise AssertionError(f"it never held; status: {self.get('/status')}")

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30)
        self._drain.join(5)
        return status


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def make(*arguments: str) -> Running:
        running.append(Running(list(arguments)))
        return running[-1]

    yield make
    for each in running:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def test_watch_publishes_what_a_trainer_writes_and_answers_for_it(
    start: Callable[..., Running], checkpoint_folder: Any, trainer: Any, tmp_path: Path, reading: Any, same_bits: Any
) -> None:
    source = trainer()
    checkpoint_folder(tmp_path / "runs" / "checkpoint-1", source.weights)
    common = ["--store", str(tmp_path / "store"), "--run", "run", "--state-dir", str(tmp_path / "state")]
    watch = ["--source", str(tmp_path / "runs"), "--complete", "rename", "--poll-seconds", "0.1", "--port", "0"]
    service = start("watch", *common, *watch, "--anchor-every", "2", "--skip-every", "0")
    assert 1 == service.get("/head?after=0&timeout=30")["version"]
    for step in (2, 3):
        draft = checkpoint_folder(tmp_path / f"draft-{step}", source.step())
        draft.rename(tmp_path / "runs" / f"checkpoint-{step}")
        assert step == service.get(f"/head?after={step - 1}&timeout=30")["version"]
    status = service.get("/status")
    assert ("run", "main", 3, 3) == (status["run"], status["view"], status["head"]["version"], status["head"]["step"])
    assert {"epoch": 1, "fenced": None} == status["writer"]
    assert status["store"]["conditional_writes"] is True
    assert (None, []) == (status["source"]["error"], status["consumers"])
    assert {"watch": None, "keep": None, "sweep": None, "observe": None} == status["loops"]
    head = ChainReader(open_store(str(tmp_path / "store")), "run").manifest(3)
    assert ({}, head.created_ms / 1000, head.statistics.payload_bytes) == (
        status["faults"], status["head"]["committed_at"], status["head"]["bytes"]
    )  # fmt: skip
    assert head.statistics.changed_units / head.statistics.units == status["head"]["changed"]
    # Followers hear of a version before its base has followed; it counts as published afterwards.
    service.wait_for("/metrics", r'syncline_published_versions_total\{run="run",view="main"\} 3\.0')
    assert {"alive": True, "broken": []} == service.get("/livez")
    assert {"ready": True} == service.get("/readyz")
    refused = subprocess.run(
        [sys.executable, "-m", "syncline_distributor", "watch", *common, *watch],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert 2 == refused.returncode and "is in use by another distributor" in refused.stderr
    assert 0 == service.end()
    assert same_bits(source.weights, reading.units(open_store(str(tmp_path / "store")), 3))
    published = [line for line in service.lines if line["event"] == "published"]
    assert [("run", 1), ("run", 2), ("run", 3)] == [(line["run"], line["version"]) for line in published]


def test_watch_is_not_ready_while_its_source_is_missing_nor_after_another_writer_took_over(
    start: Callable[..., Running], checkpoint_folder: Any, publisher: Any, trainer: Any, tmp_path: Path
) -> None:
    common = ["--store", str(tmp_path / "store"), "--run", "run", "--state-dir", str(tmp_path / "state")]
    watch = ["--source", str(tmp_path / "runs"), "--complete", "rename", "--poll-seconds", "0.1"]
    service = start("watch", *common, *watch)
    service.until(lambda: service.get("/status")["source"]["phase"] == "waiting")
    assert f"{tmp_path / 'runs'} cannot be listed" in service.get("/status")["source"]["waits_for"]
    assert service.unready() == service.get("/status")["source"]["waits_for"]
    (tmp_path / "runs").mkdir()
    service.until(service.ready)  # a trainer that waits for this service may be what fills the folder
    assert "holds no checkpoint yet" in service.get("/status")["source"]["waits_for"]
    checkpoint_folder(tmp_path / "runs" / "checkpoint-1", trainer().weights)
    assert 1 == service.get("/head?after=0&timeout=30")["version"]
    service.until(lambda: service.get("/status")["source"]["published"] == "checkpoint-1")
    publisher(on=open_store(str(tmp_path / "store"))).open()
    service.until(lambda: service.get("/status")["writer"]["fenced"] is not None)
    assert service.unready() == service.get("/status")["writer"]["fenced"]
    service.until(lambda: "stopped" == service.get("/status")["source"]["phase"])
    assert 1 == service.end()


def test_serve_looks_after_a_run_that_its_trainer_publishes(
    start: Callable[..., Running], publisher: Any, trainer: Any, tmp_path: Path
) -> None:
    shared = open_store(str(tmp_path / "store"))
    publish, source = publisher(on=shared), trainer()
    service = start(
        "serve", "--store", str(tmp_path / "store"), "--run", "run", "--state-dir", str(tmp_path / "state"), "--anchor-every", "2"
    )  # fmt: skip
    for version in (1, 2, 3):
        publish.publish(source.step())
        assert version == service.get(f"/head?after={version - 1}&timeout=30")["version"]
    reader = ChainReader(shared, "run")
    for _ in range(200):
        if reader.anchors()[-1] > 1:
            break
        service.get("/head?after=99&timeout=0.1")
    assert reader.anchors()[-1] > 1
    assert (None, None) == (service.get("/status")["writer"], service.get("/status")["source"])
    assert 0 == service.end()


def test_erase_deletes_a_run_says_so_and_stays_until_it_is_ended(
    start: Callable[..., Running], publisher: Any, trainer: Any, tmp_path: Path
) -> None:
    shared = open_store(str(tmp_path / "store"))
    publisher(on=shared).publish(trainer().weights)
    place = ["--store", str(tmp_path / "store"), "--run", "run", "--state-dir", str(tmp_path / "state")]
    service = start("erase", *place, "--lineage", ChainReader(shared, "run").run_record().lineage)
    service.until(lambda: service.get("/status")["erasure"]["done"])
    assert [] == list(shared.list_after("run/"))
    assert 0 == service.end()


@pytest.mark.parametrize("taken", ["port", "host", "state-dir"])
def test_a_port_or_a_folder_that_cannot_be_had_is_told_with_its_flag(
    tmp_path: Path, taken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given, said = {
            "port": (str(listening.getsockname()[1]), "Address already in use; give another --port"),
            "host": ("192.0.2.1", "Cannot assign requested address; give another --port, or another --host"),
            "state-dir": (str(tmp_path / "file"), f"--state-dir {tmp_path / 'file'} cannot be used: File exists; give"),
        }[taken]
        flags = {"store": str(tmp_path / "store"), "run": "run", "state-dir": str(tmp_path / "state"), taken: given}
        assert 2 == main(["serve", *(part for flag, text in flags.items() for part in (f"--{flag}", text))])
    structlog.reset_defaults()
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("syncline-distributor: ")]
    assert said in line


def test_the_environment_alone_is_enough(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "SYNCLINE_STORE": str(tmp_path),
        "SYNCLINE_RUN": "Bad Name",
        "SYNCLINE_STATE_DIR": str(tmp_path),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "syncline_distributor", "serve"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert 2 == ended.returncode
    assert "run 'Bad Name' is not a name" in ended.stderr
