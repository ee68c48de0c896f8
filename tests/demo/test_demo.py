"""The whole demo as a user starts it: trainer, distributor, two agents, two engines and a store, all real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "syncline_cli", "demo", *words],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith(("SYNCLINE_", "AWS_"))},
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("store", "steps"), [("local", 2), ("s3", 1)])
def test_every_copy_ends_with_the_trainers_bits(store: str, steps: int, tmp_path: Path) -> None:
    home = tmp_path / "demo"
    ended = demo("--store", store, "--steps", str(steps), "--dir", str(home), "--json")
    assert (0, 1) == (ended.returncode, ended.stdout.count("\n")), ended.stdout + ended.stderr
    document = json.loads(ended.stdout)
    version = f"manifest of version {steps + 1}"
    assert {
        "trainer's tensors",
        version,
        "live memory of node-a's engine",
        "live memory of node-b's engine",
        "checkpoint rebuilt from the store",
    } == set(document["digests"])
    assert {document["digests"][version]} == set(document["digests"].values())
    assert (True, None) == (document["proven"], document["reward_rose"])
    assert str(steps) == document["summary"]["optimizer steps"]
    assert float(document["summary"]["largest log-probability difference"]) < 1e-3
    assert {"trainer.log", "distributor.log", "engine-node-a.log"} < {p.name for p in (home / "logs").iterdir()}
