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
from syncline.kernels import directory
from syncline.kernels.checksums import frame_checksums
from syncline.wire.chunk import Chunk, EncodedFrame, Frames, Section, pack
from syncline.wire.limits import CODEC_RAW
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

_UNITS = 256


def compile_reading() -> None:
    """Write and read a chunk: what every delta needs, whatever its dtypes and codecs. Who decodes elsewhere needs no more of it."""
    frames = Frames.of([EncodedFrame(0, 1, bytes(2))])
    chunk = pack(Chunk(bytes(16), [Section(0, CODEC_RAW, frames)]), checksums=frame_checksums, write=directory.write)
    table = TensorTable(tensors=[TensorSpec(name="warming", dtype="BF16", shape=[1], axis=0)])
    Delta.parse(table, Tiling(), [("warming", chunk)])


def compile_for(dtypes: Iterable[str]) -> None:
    """Encode, decode, commit and sum up a tiny step of each dtype (safetensors names); one that `context` does not take, by `sparse`."""
    compile_reading()
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
