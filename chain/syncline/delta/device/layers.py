"""The frames of one kind that a row of deltas changes, as columns: which of them decode together, and the bytes of those that do.

Nothing here looks at a frame by itself, except to hand it to a codec of the host: an engine's loop waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.base import Codec
from syncline.codecs.context.codec import ContextCodec, lanes_of
from syncline.delta.columns import Column, Columns
from syncline.delta.device.held import HeldFrames, Kind
from syncline.delta.parsed import CodedFrame, Delta, frame_at

Entries = NDArray[np.int64]
"""Places in the columns."""
_SHIFT_BITS = 5
"""A lane shift is at most LANE_SHIFT_MAX, 30."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Frames that decode under one table, with as many lanes and by the same walk, in the order of their rows."""

    codec: ContextCodec
    lanes: int
    entries: Entries


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """Each time that one of the deltas changes a frame is an entry; those of a frame in the order of the deltas."""

    rows: Column
    """Of the kind, ascending."""
    turns: Column
    """How many entries of the same row stand before."""
    columns: Columns
    """An entry each; the next two are those of all deltas."""
    codecs: Sequence[Codec]
    payloads: Sequence[memoryview]

    @classmethod
    def of(cls, held: HeldFrames, deltas: Sequence[Delta]) -> list[Self]:
        """One a kind. Frames that are not held are left out."""
        columns, codecs, payloads = _joined(deltas)
        kinds, rows = held.find(columns.tensors, columns.indices)
        layers: list[Self] = []
        for kind in range(len(held.kinds)):
            entries = np.flatnonzero(kinds == kind)
            entries = entries[np.argsort(rows[entries], kind="stable")]
            own = rows[entries]
            firsts = np.flatnonzero(np.diff(own, prepend=-1))
            turns = np.arange(own.size) - np.repeat(firsts, np.diff(firsts, append=own.size))
            layers.append(cls(own, turns, columns.at(entries), codecs, payloads))
        return layers

    @property
    def alone(self) -> NDArray[np.bool_]:
        """By entry: whether it is the only one of its row."""
        return (self.turns == 0) & (np.diff(self.rows, append=-1) != 0)

    @property
    def by_context(self) -> NDArray[np.bool_]:
        """By entry: whether kernels decode it."""
        ours = np.array([isinstance(codec, ContextCodec) for codec in self.codecs], np.bool_)
        return ours[self.columns.codecs]

    def of_rows(self, rows: Column) -> Entries:
        """The entries of some rows, ascending."""
        return np.flatnonzero(np.isin(self.rows, rows))

    def frame(self, entry: int) -> CodedFrame:
        return frame_at(self.columns, self.codecs, self.payloads, entry)

    def alike(
        self, kind: Kind, entries: Entries, number: Callable[[ContextCodec], int], *, by_walk: bool
    ) -> Iterator[Alike]:
        """Entries of the context coder by what they have in common; `number` is the same for codecs that decode alike."""
        if not entries.size:
            return
        codecs, rows = self.columns.codecs[entries], self.rows[entries]
        numbers, shifts = np.zeros((2, len(self.codecs)), np.int64)
        for place in map(int, np.unique(codecs)):
            codec = self._codec(place)
            numbers[place], shifts[place] = number(codec), codec.lane_shift
        shapes, shape_of = np.unique(
            kind.units[rows].astype(np.int64) << _SHIFT_BITS | shifts[codecs], return_inverse=True
        )
        lanes = [lanes_of(shape >> _SHIFT_BITS, shape & (1 << _SHIFT_BITS) - 1) for shape in shapes.tolist()]
        walks = kind.walks[rows] if by_walk else np.zeros(rows.size, np.int8)
        keys = np.stack([rows, walks, np.array(lanes, np.int64)[shape_of], numbers[codecs]])
        order = np.lexsort(keys)
        cuts = np.flatnonzero(np.diff(keys[1:, order], axis=1).any(axis=0)) + 1
        for group in np.split(order, cuts):
            yield Alike(self._codec(int(codecs[group[0]])), int(keys[2, group[0]]), entries[group])

    def _codec(self, place: int) -> ContextCodec:
        codec = self.codecs[place]
        assert isinstance(codec, ContextCodec)
        return codec

    def payload(self, entries: Entries) -> NDArray[np.uint8]:
        """The payloads (of one or more) behind one another. Those that neighbour each other in a chunk are one copy, by numpy, which lets
        other threads run meanwhile: `bytes.join` holds them up for all of it."""
        said = self.columns.at(entries)
        ends = np.cumsum(said.sizes)
        joined = np.empty(int(ends[-1]), np.uint8)
        behind = said.starts + said.sizes
        apart = np.flatnonzero((np.diff(said.buffers) != 0) | (said.starts[1:] != behind[:-1])) + 1
        firsts, lasts = np.append(0, apart), np.append(apart, ends.size) - 1
        spans = (
            said.buffers[firsts],
            said.starts[firsts],
            behind[lasts],
            ends[firsts] - said.sizes[firsts],
            ends[lasts],
        )
        for buffer, begin, end, first, last in np.stack(spans, axis=1).tolist():
            if begin < end:
                joined[first:last] = np.frombuffer(self.payloads[int(buffer)], np.uint8, end - begin, begin)
        return joined


def _joined(deltas: Sequence[Delta]) -> tuple[Columns, Sequence[Codec], Sequence[memoryview]]:
    """Delta after delta, with the codecs and buffers of all."""
    parts: list[Columns] = []
    codecs: list[Codec] = []
    payloads: list[memoryview] = []
    for delta in deltas:
        own = delta.columns
        parts.append(replace(own, codecs=own.codecs + len(codecs), buffers=own.buffers + len(payloads)))
        codecs += delta.codecs
        payloads += delta.payloads
    return Columns.joined(parts), codecs, payloads
