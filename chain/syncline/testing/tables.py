"""What every fake run of real weights is made of: small frames, an encoder's run over a table, a file of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from syncline.checkpoint import header_bytes
from syncline.delta import CodecChoice, DeltaEncoder, EncodedDelta
from syncline.wire.limits import CHUNK_TARGET_BYTES
from syncline.wire.records import ChunkRef, Statistics, TilingPart
from syncline.wire.tensors import TensorSpec, TensorTable

Weights = dict[str, NDArray[Any]]
"""Flat units by tensor name."""
TILING = TilingPart(min_units=64, max_units=256, ways=4)
"""Small frames, so that small tensors have several."""


def encode_delta(
    table: TensorTable,
    old: Mapping[str, NDArray[Any]],
    new: Mapping[str, NDArray[Any]],
    *,
    nonce: Callable[[], bytes],
    sink: Callable[[ChunkRef, bytes], None],
    tiling: TilingPart = TILING,
    codec: str | None = None,
    target_bytes: int = CHUNK_TARGET_BYTES,
) -> EncodedDelta:
    """The delta between two sets of weights; its chunks go to `sink`."""
    choice = CodecChoice(forced=codec) if codec else None
    encoder = DeltaEncoder(table, tiling.tiling, nonce=nonce, sink=sink, choice=choice, target_bytes=target_bytes)
    for index, spec in enumerate(table.tensors):
        encoder.add(index, old[spec.name], new[spec.name])
    return encoder.finish()


def safetensors_bytes(specs: Sequence[TensorSpec], weights: Mapping[str, NDArray[Any]]) -> bytes:
    """A safetensors file of some tensors, in their order."""
    header = header_bytes((s.name, s.dtype, s.shape) for s in specs)
    return header + b"".join(weights[s.name].tobytes() for s in specs)


def no_changes(table: TensorTable) -> Statistics:
    """The statistics of a version that changes nothing."""
    return Statistics(
        units=table.units,
        changed_units=0,
        changed_tensors=0,
        frames=0,
        payload_bytes=0,
        full_bytes=table.size_bytes,
        nonfinite=0,
        codecs={},
    )
