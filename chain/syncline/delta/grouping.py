"""Tensors that are coded together: their changes are held, the tables that fit them are made, then they are encoded.

Two passes over the changes, one over the new weights: those may be gone when the group is encoded, the base stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.base import Codec, FrameChange, Uncodable
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, lane_shift
from syncline.codecs.context.counts import Integers, count_symbols, count_units
from syncline.codecs.context.sharing import Kind, Kinds
from syncline.codecs.registry import CODECS
from syncline.delta.choice import CodecChoice
from syncline.delta.comparing import ComparedFrame
from syncline.delta.parallel import in_order
from syncline.wire.chunk import EncodedFrame
from syncline.wire.limits import CODEC_SPARSE
from syncline.wire.tensors import TensorSpec

Units = NDArray[np.unsignedinteger]

HELD_BYTES = 64 << 20
"""Changes that a group holds, at most, before it is encoded."""
SPAN_BYTES = 256 << 20
"""Base weights that a group spans, at most. Tables cost nothing beside so much."""
MAPPED_SPAN_BYTES = 32 << 20
"""The same where the base is a mapped file: its pages are read again when the group is encoded, and count as memory until then."""
Take = Callable[[int, Codec, EncodedFrame], None]


@dataclass(slots=True)
class _Run:
    """Changed frames of one tensor, either dense or not: neither tells what the other is coded by."""

    tensor: int
    spec: TensorSpec
    units: int
    """Of these frames."""
    frames: list[ComparedFrame]
    dense: bool
    kind: Kind | None = None
    """What it shares tables with; None where the context coder does not have its dtype."""


class Group:
    """Holds changes until `encode`."""

    def __init__(
        self,
        choice: CodecChoice,
        executor: Executor | None,
        *,
        held_bytes: int = HELD_BYTES,
        span_bytes: int = SPAN_BYTES,
    ) -> None:
        self._choice = choice
        self._executor = executor
        self._held_most = held_bytes
        self._span_most = span_bytes
        self._runs: list[_Run] = []
        self._kinds = Kinds()
        self._held = 0
        self._span = 0
        self._sample: tuple[int, Integers] | None = None
        """The last tensor, and how often each context occurs in it."""

    @property
    def full(self) -> bool:
        return self._held >= self._held_most or self._span >= self._span_most

    def add(self, tensor: int, spec: TensorSpec, old: Units, frames: list[ComparedFrame]) -> None:
        """Hold changed frames of a tensor. `old` is the whole tensor."""
        if not frames:
            return
        units = sum(frame.change.units for frame in frames)  # coded ones: the others tell their coder nothing
        dense = self._choice.is_dense(sum(frame.change.positions.size for frame in frames), units)
        run = self._runs[-1] if self._runs else None
        if run is None or (run.tensor, run.dense) != (tensor, dense):
            run = _Run(tensor, spec, 0, [], dense)
            self._runs.append(run)
        run.frames += frames
        run.units += units
        self._held += sum(frame.nbytes for frame in frames)
        self._span += units * spec.unit_bytes
        alphabet = ALPHABETS.get(spec.dtype)
        if alphabet is None or not self._choice.takes_context:
            return
        run.kind = kind = self._kinds.of(spec.dtype, spec.name, alphabet, dense=dense)
        for frame in frames:
            count_symbols(alphabet, frame.change.before, frame.change.after, kind.counts.symbols)
        if self._sample is None or self._sample[0] != tensor:
            self._sample = tensor, count_units(alphabet, old)  # once a tensor: a look at it all, however large it is
        kind.counts.units[:] += self._sample[1] * units // old.size

    def encode(self, take: Take) -> None:
        """Encode everything that is held, in order, and hold nothing."""
        self._kinds.share_tables(exact=True)
        for run, codec in zip(self._runs, self._chosen(), strict=True):
            changes = [frame.change for frame in run.frames]
            for frame, (used, payload) in zip(
                run.frames, in_order(self._executor, partial(_code, codec), changes), strict=True
            ):
                take(run.tensor, used, EncodedFrame(frame.index, int(frame.change.positions.size), payload))
        self._runs, self._kinds, self._held, self._span = [], Kinds(), 0, 0

    def _chosen(self) -> list[Codec]:
        """The codec of each run. A table that others pay for costs those nothing that would not have paid for their share of it."""
        runs = [([frame.change for frame in run.frames], _context(run), run.kind) for run in self._runs]
        chosen = [
            self._choice.choose(pilot, context, table_changes=kind.sharing if kind else 1)
            for pilot, context, kind in runs
        ]
        paid = {codec.shared for codec in chosen}
        for at, (pilot, context, _) in enumerate(runs):
            if context is not None and chosen[at].shared is None and context.shared in paid:
                chosen[at] = self._choice.choose(pilot, context, table_changes=inf)
        return chosen


def _context(run: _Run) -> Codec | None:
    kind = run.kind
    if kind is None or kind.table is None:
        return None
    changed = sum(frame.change.positions.size for frame in run.frames)
    return ContextCodec(kind.table, kind.alphabet, lane_shift(changed, run.units))


def _code(codec: Codec, change: FrameChange) -> tuple[Codec, bytes]:
    try:
        return codec, codec.encode(change)
    except Uncodable:
        return CODECS[CODEC_SPARSE], CODECS[CODEC_SPARSE].encode(change)
