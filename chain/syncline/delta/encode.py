"""From old and new weights to chunks, in bounded memory: frames are compared, held in groups that share codec tables, encoded, packed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.base import Codec
from syncline.delta.choice import CodecChoice
from syncline.delta.comparing import TensorComparison
from syncline.delta.grouping import HELD_BYTES, SPAN_BYTES, Group
from syncline.delta.packing import Packer
from syncline.delta.parallel import in_order
from syncline.errors import LayoutRefused
from syncline.wire.chunk import EncodedFrame
from syncline.wire.digest import Digest, total
from syncline.wire.limits import CHUNK_TARGET_BYTES
from syncline.wire.records import ChunkRef, Statistics
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

Units = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class TensorChange:
    """What happened to one tensor."""

    tensor: int
    changed: int
    digest_change: Digest
    nonfinite: int


@dataclass(frozen=True, slots=True)
class EncodedDelta:
    """A finished delta; its chunks went to the sink."""

    chunks: list[ChunkRef]
    statistics: Statistics


@dataclass(slots=True)
class DeltaTotals:
    """What the statistics of a delta are made from."""

    changed: int = 0
    frames: int = 0
    nonfinite: int = 0
    tensors: set[int] = field(default_factory=set[int])
    codecs: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, tensor: int, codec: Codec, changed: int, *, frames: int = 1) -> None:
        """Count frames of a tensor, in which so many units changed."""
        self.changed += changed
        self.frames += frames
        self.tensors.add(tensor)
        self.codecs[codec.name] = self.codecs.get(codec.name, 0) + changed

    def delta(self, table: TensorTable, chunks: list[ChunkRef]) -> EncodedDelta:
        """The finished delta."""
        statistics = Statistics(
            units=table.units,
            changed_units=self.changed,
            changed_tensors=len(self.tensors),
            frames=self.frames,
            payload_bytes=sum(c.size for c in chunks),
            full_bytes=table.size_bytes,
            nonfinite=self.nonfinite,
            codecs=self.codecs,
        )
        return EncodedDelta(chunks, statistics)


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
        held_bytes: int = HELD_BYTES,
        span_bytes: int = SPAN_BYTES,
    ) -> None:
        """`nonce` gives 16 random bytes a chunk; `sink` takes each chunk once it is complete; what holds `held_bytes`
        of changes, or spans `span_bytes` of base weights, shares tables.
        """
        self._table = table
        self._tiling = tiling
        self._executor = executor
        self._choice = choice or CodecChoice()
        self._packer = Packer(nonce, sink, target_bytes)
        self._held_bytes = held_bytes
        self._group = Group(self._choice, executor, held_bytes=held_bytes, span_bytes=span_bytes)
        self._totals = DeltaTotals()
        self._previous = -1

    def add(self, tensor: int, old: Units, new: Units) -> TensorChange:
        """Compare two flat unit views of a tensor and encode what differs, now or with tensors that follow.

        `old` must stand unchanged until `finish`; `new` is not looked at again. LayoutRefused when a view does not have the tensor's units.
        """
        if tensor <= self._previous:
            raise ValueError(f"tensor {tensor} was added after {self._previous}")
        self._previous = tensor
        spec = self._table.tensors[tensor]
        check_views(spec, old, new)
        comparison = TensorComparison(spec, spec.grid(self._tiling), old, new)
        changed = nonfinite = 0
        digest_change = Digest()
        batch = comparison.first()
        while batch:
            compared = [c for c in in_order(self._executor, comparison.compare, batch) if c is not None]
            digest_change = total([digest_change, *(frame.digest_change for frame in compared)])
            moved = sum(int(frame.change.positions.size) for frame in compared)
            self._group.add(tensor, spec, old, compared)
            if self._group.full:
                self._flush()
            changed += moved
            nonfinite += sum(frame.nonfinite for frame in compared)
            batch = comparison.following(batch, sum(frame.nbytes for frame in compared), self._held_bytes)
        self._totals.nonfinite += nonfinite
        return TensorChange(tensor, changed, digest_change, nonfinite)

    def finish(self) -> EncodedDelta:
        """Encode what is held and close the last chunk."""
        self._flush()
        return self._totals.delta(self._table, self._packer.finish())

    def _flush(self) -> None:
        self._group.encode(self._take)

    def _take(self, tensor: int, codec: Codec, frame: EncodedFrame) -> None:
        self._packer.add(tensor, codec, frame)
        self._totals.take(tensor, codec, frame.changed)


def check_views(spec: TensorSpec, *views: Units) -> None:
    """LayoutRefused, naming the tensor, unless each is a flat unit view of it."""
    for flat in views:
        if flat.ndim != 1 or flat.size != spec.units or flat.itemsize != spec.unit_bytes or flat.dtype.kind != "u":
            raise LayoutRefused(
                f"{spec.name}: {flat.dtype} {flat.shape} is not a flat view of {spec.units} units of "
                f"{spec.unit_bytes} bytes"
            )
