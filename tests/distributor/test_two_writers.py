"""Two publishers on one run: whatever the order of their steps, one chain, and the one that lost stops for good."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.errors import Fenced
from syncline.store.local import LocalStore
from syncline.store.memory import MemoryStore
from syncline.versions import Link, check_successor
from syncline.wire.tiling import Tiling
from syncline_distributor import Publisher, PublishSettings

SCRIPT = Path(__file__).with_name("publishing_process.py")
Make = Callable[..., Publisher]


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("publishing_process", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROCESS = load_script()


def until(steps: Generator[str, None, Any], point: str) -> None:
    """Drive a publish up to a kill point and leave it there."""
    for reached in steps:
        if reached == point:
            return
    raise AssertionError(f"{point} was never reached")


def finish(steps: Generator[str, None, Any]) -> Any:
    """Drive it to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_a_writer_that_slept_between_chunks_and_manifest_is_fenced(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    source = trainer()
    slept, other = publisher(), publisher()
    slept.publish(source.weights)
    kept = source.weights
    asleep = slept.publish_steps(source.step())
    until(asleep, "publish.chunks_put")
    other.open()
    with pytest.raises(Fenced, match="held epoch 1 and stops"):
        finish(asleep)
    with pytest.raises(Fenced):
        slept.publish(source.weights)
    assert slept.fenced is not None
    head = other.publish(kept).manifest
    assert (3, 2, 2) == (head.version, head.epoch, head.base)
    assert same_bits(kept, reading.units(store, 3))


def test_a_writer_that_takes_over_rebases_on_what_the_old_one_wrote_first(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    source = trainer()
    old, new = publisher(), publisher()
    old.publish(source.weights)
    late = source.step()
    publishing = old.publish_steps(late)
    until(publishing, "publish.chunks_put")
    listed = new.reader.listed_head

    def listed_then_old_commits(**more: Any) -> Any:
        head = listed(**more)
        finish(publishing)
        return head

    opening = new.open_steps()
    ChainReader.listed_head, original = lambda self, **more: listed_then_old_commits(**more), ChainReader.listed_head  # type: ignore[method-assign]
    try:
        until(opening, "publish.epoch_taken")
    finally:
        ChainReader.listed_head = original  # type: ignore[method-assign]
    finish(opening)
    assert new.head is not None
    assert (3, 2, 2) == (new.head.version, new.head.epoch, new.head.base)
    assert same_bits(late, reading.units(store, 3))
    with pytest.raises(Fenced):
        old.publish(source.step())


def test_a_writer_that_is_overtaken_while_it_opens_is_fenced(publisher: Make, trainer: Any) -> None:
    source = trainer()
    publisher().publish(source.weights)
    slow, fast = publisher(), publisher()
    opening = slow.open_steps()
    until(opening, "publish.epoch_taken")
    fast.open()
    with pytest.raises(Fenced, match="held epoch 2 and stops"):
        finish(opening)
    assert slow.fenced is not None
    with pytest.raises(Fenced, match="end that one and start this one again"):
        slow.publish(source.step())
    assert 4 == fast.publish(source.step()).version
    slow.open()  # taking over is opening again
    assert (4, None) == (slow.epoch, slow.fenced)


def test_of_two_that_create_a_run_at_once_one_stops(publisher: Make, trainer: Any, store: MemoryStore) -> None:
    one, other, source = publisher(), publisher(), trainer()
    first = one.publish_steps(source.weights)
    until(first, "publish.anchor_files_put")
    other.publish(source.weights)
    with pytest.raises(Fenced, match="epoch 1"):
        finish(first)
    assert [1] == ChainReader(store, "run").versions()


@settings(max_examples=10)
@given(st.randoms(use_true_random=False))
def test_any_interleaving_leaves_one_readable_chain_and_at_most_one_writer(draw: random.Random) -> None:
    store = MemoryStore(ManualClock())
    seeds = iter(range(100))
    tiling = PublishSettings(tiling=Tiling(64, 256, 4))
    steps = iter(range(1000))
    writers: list[Publisher] = []
    running: dict[int, Generator[str, None, Any]] = {}

    def spawn() -> None:
        writers.append(Publisher(store, "run", settings=tiling, clock=ManualClock(), random=random.Random(next(seeds))))

    spawn()
    spawn()
    for _ in range(45):
        if draw.random() < 0.03 and len(writers) < 5:
            spawn()
        who = draw.randrange(len(writers))
        if writers[who].fenced is not None:
            continue
        if who not in running:
            step = next(steps)
            running[who] = writers[who].publish_steps(PROCESS.weights(step % 4), step=step)
        try:
            next(running[who])
        except StopIteration:
            del running[who]
        except Fenced:
            del running[who]
    reader = ChainReader(store, "run")
    manifests = [reader.manifest(v) for v in reader.versions()]
    assert list(range(1, len(manifests) + 1)) == [m.version for m in manifests]
    for before, after in pairwise(manifests):
        check_successor(*(Link(m.lineage, m.version, m.base, m.epoch) for m in (before, after)))
        if before.epoch == after.epoch:
            assert before.writer == after.writer
    assert len({m.epoch for m in manifests}) == len({m.writer for m in manifests})


def test_a_stopped_process_that_wakes_up_after_a_takeover_is_fenced(
    tmp_path: Path, reading: Any, same_bits: Any
) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "store")]
    frozen = subprocess.Popen(
        [*command, str(tmp_path / "a"), "3", "publish.chunks_put#2"], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while "T" != Path(f"/proc/{frozen.pid}/stat").read_text().rpartition(")")[2].split()[0]:
            assert time.monotonic() < deadline and frozen.poll() is None
            time.sleep(0.02)
        other = subprocess.run(
            [*command, str(tmp_path / "b"), "4"], timeout=60, check=False, capture_output=True, text=True
        )
        assert 0 == other.returncode, other.stderr
        os.kill(frozen.pid, signal.SIGCONT)
        _, said = frozen.communicate(timeout=60)
    finally:
        if frozen.poll() is None:
            frozen.kill()
            frozen.wait()
    assert 3 == frozen.returncode, said
    assert "Only one trainer may publish to a run" in said
    store = LocalStore(tmp_path / "store", rng=random.Random(0))
    reader = ChainReader(store, "run")
    manifests = [reader.manifest(v) for v in reader.versions()]
    assert [1, 1, 2, 2, 2, 2] == [m.epoch for m in manifests]
    assert [0, 1, 1, 2, 3, 4] == [m.step for m in manifests]
    assert same_bits(PROCESS.weights(4), reading.units(store, 6))
