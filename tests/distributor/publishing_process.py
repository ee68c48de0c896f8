"""A trainer's process for tests that kill or stop it: publishes steps in order, each once, with anchors and skip deltas.

    publishing_process.py STORE STATE_DIR LAST_STEP [KILL_POINT#N]

Weights are a function of the step, so whoever started it knows what every version must hold. With a point it stops
itself there (SIGSTOP); `SYNCLINE_KILL_AT` kills it. Exit status 3: another writer took over.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import numpy as np

from syncline import faults
from syncline.chain import ChainReader
from syncline.clock import SystemClock
from syncline.errors import Fenced
from syncline.metrics import Metrics
from syncline.store.local import LocalStore
from syncline.wire.tiling import Tiling
from syncline_distributor import Bits, Publisher, PublishSettings
from syncline_distributor.bases import DiskBase
from syncline_distributor.keeper import Keeper
from syncline_distributor.settings import AnchorSettings
from syncline_distributor.steps import run_steps


def weights(step: int) -> dict[str, Bits]:
    """What the trainer holds at a step."""
    first = np.random.default_rng(0).integers(0, 1 << 16, 6000, dtype=np.uint16)
    for n in range(1, step + 1):
        rng = np.random.default_rng(n)
        first[rng.integers(0, first.size, 50)] ^= np.uint16(1)
    return {"a.weight": Bits("BF16", (40, 100), first[:4000]), "b.weight": Bits("BF16", (2000,), first[4000:])}


def stop_at(point: str) -> None:
    """Stop this process when it comes to `point` (for the n-th time, with #n)."""
    name, _, nth = point.partition("#")
    left = int(nth or "1")

    def hook(reached: str) -> None:
        nonlocal left
        if reached == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)

    faults.install_hook(hook)


def publish(store_dir: Path, state_dir: Path, last_step: int) -> None:
    """Open the run and publish what is missing up to `last_step`."""
    clock, rng = SystemClock(), random.Random()
    state_dir.mkdir(parents=True, exist_ok=True)
    store = LocalStore(store_dir, rng=rng)
    publisher = Publisher(
        store,
        "run",
        base=DiskBase(state_dir),
        clock=clock,
        random=rng,
        settings=PublishSettings(tiling=Tiling(64, 256, 4)),
    )
    settings = AnchorSettings(anchor_every=5, skip_every=1)
    keeper = Keeper(store, ChainReader(store, "run"), settings, state_dir, clock, rng, Metrics())
    publisher.open()
    head = publisher.head
    for step in range(0 if head is None or head.step is None else head.step + 1, last_step + 1):
        publisher.publish(weights(step), step=step)
        while run_steps(keeper.steps()) is not None:
            pass
    while run_steps(keeper.steps()) is not None:
        pass


def main() -> int:
    if len(sys.argv) > 4:
        stop_at(sys.argv[4])
    try:
        publish(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    except Fenced as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
