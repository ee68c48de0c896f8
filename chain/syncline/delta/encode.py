"""From old and new weights to chunks, in bounded memory: a batch of frames at a time, a chunk leaves as soon as it is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from syncline.codecs.base import Codec, FrameChange
from syncline.delta.choice import CodecChoice
from syncline.delta.parallel import in_order
from syncline.delta.sums import count_nonfinite
from syncline.errors import LayoutRefused
from syncline.kernels.digest import change_digest
from syncline.kernels.frames import changed_positions, view
from syncline.wire.chunk import Chunk, EncodedFrame, Section, pack
from syncline.wire.digest import Digest, seeds, total
from syncline.wire.limits import CHUNK_TARGET_BYTES
from syncline.wire.records import ChunkRef, Statistics
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

Units = NDArray[np.unsignedinteger]

BATCH_FRAMES = 32
"""Frames compared and encoded before the next are looked at: at most 32 * 2^20 units of scratch where frames are strided."""


@dataclass(frozen=True, slots=True)
class TensorChange:
    """What happened to one tensor."""

    tensor: int
    changed: int
    digest_change: Digest
    nonfinite: int
    codec: str | None
    """None when nothing changed."""


@dataclass(frozen=True, slots=True)
class EncodedDelta:
    """A finished delta; its chunks went to the sink."""

    chunks: list[ChunkRef]
    statistics: Statistics


@dataclass(slots=True)
class _Totals:
    changed: int = 0
    tensors: int = 0
    frames: int = 0
    nonfinite: int = 0
    codecs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Compared:
    index: int
    change: FrameChange
    digest_change: Digest


class DeltaEncoder:
    """Add tensors in ascending index order, then `finish`. Not thread-safe; works through `executor` inside."""

    def __init__(
        self,
        table: TensorTable,
        tiling: Tiling,
        *,
        nonce: Callable[[], bytes],
        sink: Callable[[ChunkRef, bytes], None],
        choice: CodecChoice | None = None,
        executor: Executor | None = None,
        target_bytes: int = CHUNK_TARGET_BYTES,
    ) -> None:
        """`nonce` gives 16 random bytes a chunk; `sink` takes each chunk once it is complete."""
        self._table = table
        self._tiling = tiling
        self._executor = executor
        self._choice = choice or CodecChoice()
        self._packer = _Packer(nonce, sink, target_bytes)
        self._totals = _Totals()
        self._previous = -1

    def add(self, tensor: int, old: Units, new: Units) -> TensorChange:
        """Encode what differs between two flat unit views of a tensor.

        LayoutRefused when a view does not have the tensor's units.
        """
        if tensor <= self._previous:
            raise ValueError(f"tensor {tensor} was added after {self._previous}")
        self._previous = tensor
        spec = self._table.tensors[tensor]
        _check_view(spec, old)
        _check_view(spec, new)
        grid = spec.grid(self._tiling)
        seed = seeds(spec.name)

        def compare(index: int) -> _Compared | None:
            frame = grid.frame(index)
            before, after = view(old, frame), view(new, frame)
            positions = changed_positions(before, after)
            if positions.size == 0:
                return None
            moved = change_digest(frame, positions, before[positions], after[positions], seed)
            return _Compared(index, FrameChange(before, after, positions), moved)

        codec: Codec | None = None
        changed = nonfinite = 0
        digest_change = Digest()
        indices = iter(range(grid.count))
        while batch := list(islice(indices, BATCH_FRAMES)):
            found = [c for c in in_order(self._executor, compare, batch) if c is not None]
            if not found:
                continue
            if codec is None:
                codec = self._choice.choose([c.change for c in found])
            encode = codec.encode
            payloads = in_order(self._executor, lambda c: encode(c.change), found)  # noqa: B023 - consumed below, in this turn
            for compared, payload in zip(found, payloads, strict=True):
                count = int(compared.change.positions.size)
                self._packer.add(tensor, codec.id, EncodedFrame(compared.index, count, payload))
                changed += count
                nonfinite += count_nonfinite(spec, compared.change.new[compared.change.positions])
                self._totals.frames += 1
            digest_change = total([digest_change, *(c.digest_change for c in found)])
        if codec is not None:
            self._totals.changed += changed
            self._totals.tensors += 1
            self._totals.nonfinite += nonfinite
            self._totals.codecs[codec.name] = self._totals.codecs.get(codec.name, 0) + changed
        return TensorChange(tensor, changed, digest_change, nonfinite, codec.name if codec else None)

    def finish(self) -> EncodedDelta:
        """Close the last chunk."""
        chunks = self._packer.finish()
        totals = self._totals
        statistics = Statistics(
            units=self._table.units,
            changed_units=totals.changed,
            changed_tensors=totals.tensors,
            frames=totals.frames,
            payload_bytes=sum(c.size for c in chunks),
            full_bytes=self._table.size_bytes,
            nonfinite=totals.nonfinite,
            codecs=totals.codecs,
        )
        return EncodedDelta(chunks, statistics)


class _Packer:
    """Frames into chunks of about `target` bytes."""

    def __init__(self, nonce: Callable[[], bytes], sink: Callable[[ChunkRef, bytes], None], target: int) -> None:
        self._nonce = nonce
        self._sink = sink
        self._target = target
        self._sections: list[Section] = []
        self._frames: list[EncodedFrame] = []
        self._open: tuple[int, int] | None = None
        self._bytes = 0
        self._refs: list[ChunkRef] = []

    def add(self, tensor: int, codec: int, frame: EncodedFrame) -> None:
        if self._bytes and self._bytes + len(frame.payload) > self._target:
            self._close_chunk()
        if self._open != (tensor, codec):
            self._close_section()
            self._open = (tensor, codec)
        self._frames.append(frame)
        self._bytes += len(frame.payload)

    def finish(self) -> list[ChunkRef]:
        self._close_chunk()
        return self._refs

    def _close_section(self) -> None:
        if self._open is not None and self._frames:
            self._sections.append(Section(*self._open, self._frames))
        self._frames = []
        self._open = None

    def _close_chunk(self) -> None:
        self._close_section()
        if not self._sections:
            return
        data = pack(Chunk(self._nonce(), self._sections))
        ref = ChunkRef(
            blake3=blake3(data).hexdigest(),
            size=len(data),
            first_tensor=self._sections[0].tensor,
            last_tensor=self._sections[-1].tensor,
        )
        self._sink(ref, data)
        self._refs.append(ref)
        self._sections = []
        self._bytes = 0


def _check_view(spec: TensorSpec, flat: Units) -> None:
    if flat.ndim != 1 or flat.size != spec.units or flat.itemsize != spec.unit_bytes or flat.dtype.kind != "u":
        raise LayoutRefused(
            f"{spec.name}: {flat.dtype} {flat.shape} is not a flat view of {spec.units} units of {spec.unit_bytes} bytes"
        )


def check_views(spec: TensorSpec, *views: Units) -> None:
    """LayoutRefused, naming the tensor, unless each is a flat unit view of it."""
    for flat in views:
        _check_view(spec, flat)


__all__: Sequence[str] = ("DeltaEncoder", "EncodedDelta", "TensorChange", "check_views")
