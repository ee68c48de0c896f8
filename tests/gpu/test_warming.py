"""What an arm warms up on a device is all of the host's code that the first delta needs: nothing is compiled beside an engine."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from syncline.delta import CodecChoice, DeltaEncoder
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

SCRIPT = """
import sys
import numpy as np, torch
from syncline.delta import Delta
from syncline.delta.device.held import HeldFrames
from syncline.delta.device.staging import stage_held
from syncline.delta.device.warming import warm_up
from syncline.kernels import compiling
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

table = TensorTable(tensors=[TensorSpec(name="a", dtype="BF16", shape=[64], axis=0)])
held = HeldFrames.whole(table, Tiling(), [(0, torch.arange(64, dtype=torch.int16))])
warm_up(table, held)
before = compiling.compiled_as.cache_info().currsize
parts = stage_held(table, held, [Delta.parse(table, Tiling(), [("c", bytes.fromhex(sys.argv[1]))])])
print(sum(int(part.counts.sum()) for part in parts), compiling.compiled_as.cache_info().currsize - before)
"""


def test_a_delta_compiles_nothing_on_the_host_after_a_device_was_warmed() -> None:
    table = TensorTable(tensors=[TensorSpec(name="a", dtype="BF16", shape=[64], axis=0)])
    chunks: list[bytes] = []
    encoder = DeltaEncoder(
        table,
        Tiling(),
        nonce=lambda: bytes(16),
        sink=lambda _, data: chunks.append(data),
        choice=CodecChoice(forced="context"),
    )
    old = np.arange(64, dtype=np.uint16)
    encoder.add(0, old, old + (old % 9 == 0).astype(np.uint16))
    encoder.finish()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, chunks[0].hex()],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert (0, "8 0") == (done.returncode, done.stdout.strip()), done.stderr
