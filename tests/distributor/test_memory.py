"""The service never holds a checkpoint: its resident memory is bounded by the largest tensor and the delta."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import random, sys
from pathlib import Path
import numpy as np
from syncline.chain import ChainReader
from syncline.checkpoint import header_bytes
from syncline.clock import ManualClock
from syncline.metrics import Metrics
from syncline.store.local import LocalStore
from syncline_distributor import Publisher
from syncline_distributor.bases import DiskBase
from syncline_distributor.keeper import Keeper
from syncline_distributor.steps import run_steps
from syncline_distributor.settings import AnchorSettings

ROWS = 2048
root = Path(sys.argv[1])

def peak():
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(lines["VmHWM"].split()[0]) // 1024

def write(folder, tensors, step):
    folder.mkdir(parents=True)
    specs = [(f"{n:02d}.weight", "BF16", [ROWS, 1024]) for n in range(tensors)]
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header_bytes(specs))
        for n in range(tensors):
            units = np.random.default_rng(n).integers(0, 1 << 16, ROWS * 1024, dtype=np.uint16)
            units[np.random.default_rng((n, step)).integers(0, units.size, units.size // 200)] ^= np.uint16(step)
            file.write(units.tobytes())
    return folder

def through(run, tensors):
    store = LocalStore(root / "store", rng=random.Random(0))
    state = root / f"state-{run}"
    publisher = Publisher(store, run, base=DiskBase(state))
    settings = AnchorSettings(anchor_every=3, skip_every=2)
    keeper = Keeper(store, ChainReader(store, run), settings, state, ManualClock(), random.Random(2), Metrics())
    written = []
    for step in range(4):
        publisher.publish(write(root / run / str(step), tensors, step))
        while (made := run_steps(keeper.steps())) is not None:
            written.append(made.kind)
    assert ["skip", "anchor"] == written, written

through("small", 2)
before = peak()
through("large", 40)
print(peak() - before)
"""
MODEL_MIB = 40 * 4


def test_a_folder_is_published_and_anchored_in_a_fraction_of_its_size(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=110, check=False
    )
    assert 0 == done.returncode, done.stderr
    grown = int(done.stdout.split()[-1])
    # Buffers of fixed size that a small model does not fill, and a larger delta; one whole model would be 160.
    assert grown < MODEL_MIB * 2 // 3
