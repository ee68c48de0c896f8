"""From old and new weights to chunks, in bounded memory: a batch of frames at a time, a chunk leaves as soon as it is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from syncline.codecs.base import Codec, FrameChange
from syncline.delta.choice import PILOT_FRAMES, CodecChoice
from syncline.delta.parallel import in_order
from syncline.delta.sums import count_nonfinite
from syncline.errors import LayoutRefused
from syncline.kernels import frames as kernels
from syncline.kernels.digest import change_digest
from syncline.wire.chunk import Chunk, EncodedFrame, Section, pack
from syncline.wire.digest import Digest, seeds, total
from syncline.wire.limits import CHUNK_TARGET_BYTES
from syncline.wire.records import ChunkRef, Statistics
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import FrameGrid, Tiling

Units = NDArray[np.unsignedinteger]

BATCH_FRAMES = 64
"""Frames whose payloads are held before they go to a chunk, at most. Scratch is held a thread, not a frame."""


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
    codecs: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class _Compared:
    index: int
    change: FrameChange


@dataclass(frozen=True, slots=True)
class _Coded:
    frame: EncodedFrame
    digest_change: Digest
    nonfinite: int


class _TensorCoder:
    """The work on one frame, as an executor's threads run it. Scratch lives as long as one call."""

    def __init__(self, spec: TensorSpec, grid: FrameGrid, old: Units, new: Units) -> None:
        self.grid = grid
        self._spec = spec
        self._seed = seeds(spec.name)
        self._old = old
        self._new = new

    def compare(self, index: int) -> _Compared | None:
        frame = self.grid.frame(index)
        found = kernels.difference(self._old, self._new, frame)
        if found.positions.size == 0:
            return None
        return _Compared(index, FrameChange(frame.units, *found.parts, partial(kernels.view, self._new, frame)))

    def code(self, codec: Codec, compared: _Compared) -> _Coded:
        change = compared.change
        frame = self.grid.frame(compared.index)
        return _Coded(
            EncodedFrame(compared.index, int(change.positions.size), codec.encode(change)),
            change_digest(frame, change.positions, change.before, change.after, self._seed),
            count_nonfinite(self._spec, change.after),
        )

    def compare_and_code(self, codec: Codec, index: int) -> _Coded | None:
        compared = self.compare(index)
        return None if compared is None else self.code(codec, compared)


def _batches(count: int) -> Iterator[range]:
    """Frame indices, the first few apart: their changes are held while the codec is chosen from them."""
    size = PILOT_FRAMES
    at = 0
    while at < count:
        yield range(at, min(at + size, count))
        at, size = at + size, BATCH_FRAMES


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
        coder = _TensorCoder(spec, spec.grid(self._tiling), old, new)
        codec: Codec | None = None
        changed = nonfinite = 0
        digest_change = Digest()
        for batch in _batches(coder.grid.count):
            if codec is None:
                compared = [c for c in in_order(self._executor, coder.compare, batch) if c is not None]
                if not compared:
                    continue
                codec = self._choice.choose([c.change for c in compared])
                coded = list(in_order(self._executor, partial(coder.code, codec), compared))
            else:
                coded = [
                    c for c in in_order(self._executor, partial(coder.compare_and_code, codec), batch) if c is not None
                ]
            for part in coded:
                self._packer.add(tensor, codec.id, part.frame)
                changed += part.frame.changed
                nonfinite += part.nonfinite
            digest_change = total([digest_change, *(part.digest_change for part in coded)])
            self._totals.frames += len(coded)
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
