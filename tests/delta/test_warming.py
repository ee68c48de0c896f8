"""What is compiled ahead is all that a step needs: nothing is left to compile when the first one comes."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import numpy as np
from syncline.delta import Delta, DeltaEncoder, digest_tensor, scatter, stage_tensor
from syncline.delta.warming import compile_for
from syncline.kernels import compiling
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

compile_for(["BF16", "I64"])
before = compiling.compiled_as.cache_info().currsize
specs = [TensorSpec(name="a", dtype="BF16", shape=[300, 300], axis=0), TensorSpec(name="b", dtype="I64", shape=[900], axis=0)]
table, chunks = TensorTable(tensors=specs), []
encoder = DeltaEncoder(table, Tiling(), nonce=lambda: bytes(16), sink=lambda _, data: chunks.append(data))
random = np.random.default_rng(0)
old = [random.integers(0, 1 << 15, spec.units).astype(f"u{spec.unit_bytes}") for spec in specs]
for tensor, flat in enumerate(old):
    encoder.add(tensor, flat, flat + (random.random(flat.size) < 0.02).astype(flat.dtype))
encoder.finish()
delta = Delta.parse(table, Tiling(), [("c", data) for data in chunks])
for tensor in delta.tensors:
    scatter(specs[tensor], Tiling(), old[tensor], stage_tensor(table, Tiling(), tensor, old[tensor], [delta]))
    digest_tensor(specs[tensor], old[tensor])
print(compiling.compiled_as.cache_info().currsize - before)
"""


def test_a_step_compiles_nothing_after_its_dtypes_were_warmed() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=110, check=False)
    assert (0, "0") == (done.returncode, done.stdout.strip()), done.stderr
