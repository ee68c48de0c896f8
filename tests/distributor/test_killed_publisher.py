"""kill -9 at every kill point of publish: nothing is lost, nothing is half there, the next start goes on."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from types import ModuleType
from typing import Any

import pytest

from syncline import faults
from syncline.chain import ChainReader
from syncline.delta import digest_tensor
from syncline.store.local import LocalStore
from syncline.versions import Link, check_successor
from syncline.wire.digest import total

SCRIPT = Path(__file__).with_name("publishing_process.py")
LAST_STEP = 4


@pytest.fixture(scope="module")
def process() -> ModuleType:
    spec = importlib.util.spec_from_file_location("publishing_process", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(folder: Path, last_step: int, *, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    """The trainer's process up to a step."""
    environ = {**os.environ, "SYNCLINE_KILL_AT": kill_at}
    command = [sys.executable, str(SCRIPT), str(folder / "store"), str(folder / "state"), str(last_step)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def begun(process: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three versions, so that the next start takes an epoch."""
    folder = tmp_path_factory.mktemp("begun")
    process.publish(folder / "store", folder / "state", 2)
    return folder


@pytest.mark.parametrize("point", faults.PUBLISH_POINTS)
def test_a_killed_publisher_leaves_a_chain_that_the_next_start_carries_on(
    point: str, begun: Path, process: ModuleType, reading: Any, same_bits: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    copytree(begun, folder)
    killed = run(folder, LAST_STEP, kill_at=point)
    assert -signal.SIGKILL == killed.returncode, f"{point} was not reached: {killed.stderr}"
    store = LocalStore(folder / "store", rng=random.Random(0))
    left = ChainReader(store, "run").listed_head()
    assert left is not None
    assert same_bits(process.weights(left.step), reading.units(store, left.version))

    process.publish(folder / "store", folder / "state", LAST_STEP)
    reader = ChainReader(store, "run")
    manifests = [reader.manifest(v) for v in reader.versions()]
    assert list(range(1, len(manifests) + 1)) == [m.version for m in manifests]
    assert list(range(LAST_STEP + 1)) == sorted({m.step for m in manifests if m.step is not None})
    for before, after in pairwise(manifests):
        check_successor(*(Link(m.lineage, m.version, m.base, m.epoch) for m in (before, after)))
    for manifest in manifests:
        table = reader.table(manifest)
        expected = process.weights(manifest.step)
        sums = [digest_tensor(spec, expected[spec.name].units) for spec in table.tensors]
        assert total(sums).hex == manifest.digest
    assert same_bits(process.weights(LAST_STEP), reading.units(store, manifests[-1].version))
    assert reader.anchors()[-1] > 1
    assert reader.skip_bases()
