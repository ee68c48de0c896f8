"""Compiling ahead: the loops for some dtypes, so that the first version that a process meets does not wait for a compiler.

What is compiled is kept on disk where a disk will have it, so this takes seconds once an environment and hardly any time afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.delta.choice import CodecChoice
from syncline.delta.encode import DeltaEncoder
from syncline.delta.parsed import Delta
from syncline.delta.staged import read_back, scatter, stage_tensor
from syncline.delta.sums import digest_tensor
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

_UNITS = 256


def compile_for(dtypes: Iterable[str]) -> None:
    """Encode, decode, commit and sum up a tiny step of each dtype (safetensors names); one that `context` does not take, by `sparse`."""
    for dtype in sorted(set(dtypes)):
        spec = TensorSpec(name="warming", dtype=dtype, shape=[_UNITS], axis=0)
        table, tiling = TensorTable(tensors=[spec]), Tiling()
        old = np.zeros(spec.units, f"u{spec.unit_bytes}")
        new = old.copy()
        new[::7] = 1
        made: list[bytes] = []
        encoder = DeltaEncoder(
            table,
            tiling,
            nonce=lambda: bytes(16),
            sink=lambda _, data, made=made: made.append(data),
            choice=CodecChoice(forced="context" if dtype in ALPHABETS else "sparse"),
        )
        encoder.add(0, old, new)
        encoder.finish()
        delta = Delta.parse(table, tiling, [("warming", data) for data in made])
        staged = stage_tensor(table, tiling, 0, old, [delta])
        scatter(spec, tiling, old, staged)
        read_back(spec, tiling, old, staged)
        digest_tensor(spec, old)
