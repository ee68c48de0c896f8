"""kill -9 at every kill point of a checkpoint on disk, in a process of its own: afterwards it is exactly the old version
or the new one, and it goes on from there.

The points are taken from the registry, so a new one cannot be forgotten here.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline.chain import ChainReader
from syncline.checkpoint import NODE_POINTS, PUBLISHER_POINTS, Checkpoint, OwnFiles, materialize
from syncline.faults import POINTS
from syncline.store.local import LocalStore
from syncline.testing.stored_runs import StoredRun

ADVANCE_POINTS = [p for p in POINTS if p.startswith(("apply.checkpoint_", "publish.base_"))]

PARENT = """
import importlib
import os
import sys
from pathlib import Path
from syncline import faults
from syncline.chain import ChainReader
from syncline.checkpoint import NODE_POINTS, PUBLISHER_POINTS, Checkpoint, materialize
from syncline.delta import Delta
from syncline.store.local import LocalStore
from syncline.testing.stored_runs import TABLE, TILING

def act(what, store, checkpoint):
    reader = ChainReader(LocalStore(Path(store)), "run")
    if what == "materialize":
        materialize(reader, 3, Path(checkpoint))
        return
    manifests = [reader.manifest(v) for v in (2, 3)]
    deltas = [Delta.parse(TABLE, TILING.tiling, [(c.blake3, reader.chunk(c)) for c in m.chunks]) for m in manifests]
    points = NODE_POINTS if what == "node" else PUBLISHER_POINTS
    Checkpoint.open(Path(checkpoint)).advance(manifests, deltas, points=points)

for line in sys.stdin:
    what, point, store, checkpoint = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        os.environ["SYNCLINE_KILL_AT"] = point
        importlib.reload(faults)
        act(what, store, checkpoint)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Children:
    """A process that forks one child for each kill, so that the imports are paid for once."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def killed(self, act: str, tmp_path: Path, point: str) -> None:
        """Do it in a child that must die at `point`."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        print(act, point, tmp_path / "store", tmp_path / "checkpoint", sep="\t", file=self._parent.stdin, flush=True)
        assert f"{-signal.SIGKILL}\n" == self._parent.stdout.readline()

    def end(self) -> None:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(30)
        self._parent.stdout.close()


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    started = Children()
    yield started
    started.end()


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    run = StoredRun(LocalStore(tmp_path / "store"))
    run.first(shards=2)
    run.step()
    run.step()
    return run


def held(path: Path) -> int | None:
    marker = Checkpoint.open(path).marker
    return None if marker is None else marker.version


@pytest.mark.parametrize("point", ADVANCE_POINTS)
def test_a_kill_leaves_exactly_one_version(children: Children, run: StoredRun, tmp_path: Path, point: str):
    path = tmp_path / "checkpoint"
    reader = ChainReader(run.store, "run")
    materialize(reader, 1, path)
    children.killed("node" if point in NODE_POINTS else "publisher", tmp_path, point)
    assert OwnFiles(path).journal.exists()
    assert 3 == held(path)  # sealed journals are replayed
    assert not OwnFiles(path).journal.exists()
    Checkpoint.open(path).verify(run.manifests[3])
    run.step()
    materialize(reader, 4, path).verify(run.manifests[4])


def test_every_point_of_an_advance_is_in_the_registry():
    assert sorted([*NODE_POINTS, *PUBLISHER_POINTS]) == sorted(ADVANCE_POINTS)


@pytest.mark.parametrize("point", [*NODE_POINTS, "apply.materialized"])
def test_a_kill_while_materializing_leaves_nothing_to_load_and_the_next_run_goes_on(
    children: Children, run: StoredRun, tmp_path: Path, point: str
):
    path = tmp_path / "checkpoint"
    children.killed("materialize", tmp_path, point)
    assert held(path) is None
    fetched: list[tuple[str, int, int]] = []
    reader = ChainReader(run.store, "run")
    materialize(reader, 3, path, progress=lambda *event: fetched.append(event)).verify(run.manifests[3])
    assert 3 == held(path)
    assert [] == [event for event in fetched if event[0] == "fetch"]  # what was there is not fetched again
