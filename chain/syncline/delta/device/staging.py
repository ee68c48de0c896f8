"""Deltas and checkpoints against weights in device memory: decoded into staged changes, checked, then written by one scatter.

A frame that one delta changes here and there by the context coder is decoded where it lies, many tensors in a launch; any other is made
beside the live one, slab by slab. Nothing live is written before every frame was decoded and found whole.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.delta.device.coded import Decoding, DeviceTables, decode_alike
from syncline.delta.device.held import HeldFrames, Kind, Rows
from syncline.delta.device.layers import Alike, Entries, Layers
from syncline.delta.device.memory import to_device, to_host
from syncline.delta.device.parts import DensePart, DevicePart, SparsePart, summed, sums_of
from syncline.delta.device.slabs import SLAB_BYTES, Slab, pieces, slabs
from syncline.delta.parallel import in_order
from syncline.delta.parsed import Delta
from syncline.errors import FrameCorrupt
from syncline.kernels import frames as host_frames
from syncline.kernels.gpu import scatter as commit
from syncline.kernels.gpu.batch import FrameBatch, Staged, unit_view
from syncline.kernels.gpu.digest import TensorPlaces, change_digest, sweep
from syncline.kernels.gpu.host import reached_from
from syncline.wire.digest import MASK64, Digest, seeds, total
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Frame, Tiling

_POSITION_BYTES = 4
_LAUNCH_BYTES = 64 << 20
"""Payload of a launch, at most: the copy that the one on the device is made from."""
_DECODED_BYTES = 256 << 20
"""What a launch decodes beside a slab, at most: listed place by place, a change of everything takes four times the slab."""


@dataclass(frozen=True, slots=True)
class DeviceStaged:
    """Changes of a delta in device memory. Nothing is live yet."""

    parts: Sequence[DevicePart]

    @property
    def changed(self) -> int:
        return sum(int(part.counts.sum()) for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Device memory of the staged changes."""
        return sum(part.nbytes for part in self.parts)

    @property
    def digest_changes(self) -> dict[int, Digest]:
        """What scattering adds to each changed tensor's digest."""
        if not self.parts:
            return {}
        return summed(
            np.concatenate([part.tensors for part in self.parts]), np.concatenate([part.sums for part in self.parts])
        )

    def scatter(self) -> None:
        """Make the new bits live. Queued on the current stream."""
        for part in self.parts:
            part.write(undo=False)

    def undo(self) -> None:
        """Make the old bits live again."""
        for part in self.parts:
            part.write(undo=True)

    def stands(self) -> bool:
        """Whether live memory holds every new bit. Waits for the device."""
        return not any(bool(part.missing(undo=False).any()) for part in self.parts)


def stage(table: TensorTable, tiling: Tiling, live: Callable[[int], Tensor], delta: Delta) -> DeviceStaged:
    """Decode a delta against live tensors, which are only read. `live` gives a contiguous tensor of the table's dtype by its index.

    FrameCorrupt, naming tensor and frame, when a payload does not decode against these weights.
    """
    held = HeldFrames.whole(table, tiling, [(tensor, unit_view(live(tensor))) for tensor in delta.tensors])
    return DeviceStaged(stage_held(table, held, [delta]))


def stage_held(
    table: TensorTable,
    held: HeldFrames,
    deltas: Sequence[Delta],
    *,
    executor: Executor | None = None,
    slab_bytes: int = SLAB_BYTES,
    beside: Sequence[torch.cuda.Stream] = (),
) -> list[DevicePart]:
    """Decode a row of deltas against the held frames, which are only read; others are left out. On the current stream, and waits for it;
    decoders go on the streams `beside`, where there are any."""
    try:
        return [
            part
            for kind, layers in zip(held.kinds, Layers.of(held, deltas), strict=True)
            for part in _Staging(table, kind, layers, executor, DeviceTables(kind.device, beside)).parts(slab_bytes)
        ]
    finally:  # what a refusal lets go of may not be used again while a decoder still writes to it
        for stream in beside:
            torch.cuda.current_stream(stream.device).wait_stream(stream)


def stage_whole_held(
    table: TensorTable, held: HeldFrames, whole: Callable[[int], NDArray[Any]], *, slab_bytes: int = SLAB_BYTES
) -> list[DevicePart]:
    """What differs between the held frames and whole new tensors on the host, by index. On the current stream, and waits for it."""
    parts: list[DevicePart] = []
    for kind in held.kinds:
        for rows in slabs(kind, np.arange(kind.count), slab_bytes):
            slab = Slab.of(kind, rows)
            for place, row in enumerate(rows.tolist()):
                new = host_frames.view(whole(int(kind.tensors[row])), _in_tensor(kind, row))
                slab.frame(place).copy_(to_device(_writable(new), slab.after.device))
            parts += _differing(slab)
            del slab  # the next one takes its room
    return parts


def digest(spec: TensorSpec, tiling: Tiling, live: Tensor, device: torch.device | None = None) -> Digest:
    """Tensor digest of what a contiguous tensor holds, on its device or, pinned in host memory, within reach of `device`. Waits for it."""
    grid = spec.grid(tiling)
    if grid.count == 0:
        return Digest()
    frames = [grid.frame(index) for index in range(grid.count)]
    batch = reached_from(FrameBatch.of([live], [(0, frame) for frame in frames]), device or live.device)
    places = TensorPlaces.of([(seeds(spec.name), frame) for frame in frames], batch.device)
    return total(digests_of(sweep(batch, places)))


def digests_of(sums: Tensor) -> list[Digest]:
    """Of each row of sums. Waits for the device."""
    return [Digest(lane1 & MASK64, lane2 & MASK64) for lane1, lane2 in sums.tolist()]


@dataclass(frozen=True, slots=True)
class _Staging:
    """The frames of one kind that change."""

    table: TensorTable
    kind: Kind
    layers: Layers
    executor: Executor | None
    tables: DeviceTables

    def parts(self, slab_bytes: int) -> Iterator[DevicePart]:
        layers, said = self.layers, self.layers.columns
        listed = said.changed <= _listed_most(self.kind, self.kind.units)[layers.rows]
        alone = layers.alone & layers.by_context & listed
        # All are queued before one is waited for, so that the host makes the next launch ready while the device decodes.
        decoding = [
            (rows, *(placed := self.kind.launch(rows)), self._decoding(placed[0], rows, alike))
            for alike in self._launches(np.flatnonzero(alone), said.sizes, _LAUNCH_BYTES, by_walk=True)
            for rows in (layers.rows[alike.entries],)
        ]
        finished = [(rows, batch, places, begun.finish()) for rows, batch, places, begun in decoding]
        del decoding
        sums = [change_digest(batch, staged, places) for _, batch, places, staged in finished]
        for (rows, batch, _, staged), own in zip(finished, sums, strict=True):
            yield _part(self.kind, rows, batch, staged, own)
        others = np.unique(layers.rows[~alone])
        for rows in slabs(self.kind, others, slab_bytes):
            slab, entries = Slab.of(self.kind, rows), layers.of_rows(rows)
            turns = layers.turns[entries]
            for turn in range(int(turns.max()) + 1):
                self._apply(slab, entries[turns == turn])
            yield from _differing(slab)
            del slab  # the next one takes its room

    def _decoding(self, batch: FrameBatch, rows: Rows, alike: Alike) -> Decoding:
        return decode_alike(batch, self.layers, alike, self.tables, lambda at: self._called(int(rows[at])))

    def _launches(self, entries: Entries, sizes: NDArray[np.int64], most: int, *, by_walk: bool) -> Iterator[Alike]:
        """Those that decode alike; their sizes (of all entries) sum to `most` at most, or it is one frame."""
        for alike in self.layers.alike(self.kind, entries, self.tables.number, by_walk=by_walk):
            starts = np.concatenate([[0], np.cumsum(sizes[alike.entries])])
            for low, high in pieces(starts, most):
                yield replace(alike, entries=alike.entries[low:high])

    def _apply(self, slab: Slab, entries: Entries) -> None:
        """One delta of each frame of the slab that has such an entry, on what it has become so far."""
        layers, said = self.layers, self.layers.columns
        ours = layers.by_context[entries]
        decoded = np.maximum(said.sizes, said.changed * _change_bytes(self.kind))
        for alike in self._launches(entries[ours], decoded, _DECODED_BYTES, by_walk=False):
            rows = layers.rows[alike.entries]
            batch = slab.batch(np.searchsorted(slab.rows, rows))
            commit.scatter(batch, self._decoding(batch, rows, alike).finish())
        others = [(entry, int(layers.rows[entry])) for entry in entries[~ours].tolist()]
        places = [int(np.searchsorted(slab.rows, row)) for _, row in others]
        copies = [to_host(slab.frame(place)).copy() for place in places]

        def decode(at: int) -> None:
            entry, row = others[at]
            member = layers.frame(entry)
            try:
                member.codec.decode(memoryview(member.frame.payload), copies[at], changed=member.frame.changed)
            except FrameCorrupt as error:
                raise FrameCorrupt(f"{self._called(row)}: {error}; fetch the chunk again, or check the base") from error

        for at, _ in enumerate(in_order(self.executor, decode, range(len(others)))):
            slab.frame(places[at]).copy_(to_device(copies[at], slab.after.device))

    def _called(self, row: int) -> str:
        return f"frame {self.kind.indices[row]} of {self.table.tensors[self.kind.tensors[row]].name}"


def _change_bytes(kind: Kind) -> int:
    return _POSITION_BYTES + 2 * kind.anchor.element_size()


def _listed_most(kind: Kind, units: NDArray[np.int32] | np.int64) -> NDArray[np.int64]:
    """Changes of so many units that take no more than all of them before and after."""
    return 2 * kind.anchor.element_size() * np.asarray(units, np.int64) // _change_bytes(kind)


def _differing(slab: Slab) -> list[DevicePart]:
    """What the frames of a slab became, in the form that takes less; dense, the slab itself is what is staged."""
    changed = slab.changed()
    if not changed:
        return []
    batch, places = slab.kind.launch(slab.rows)
    if changed <= _listed_most(slab.kind, np.int64(slab.after.numel())):
        staged = slab.difference()
        return [_part(slab.kind, slab.rows, batch, staged, change_digest(batch, staged, places))]
    every = np.arange(slab.rows.size)
    sums = sweep(slab.batch(every), places) - sweep(slab.batch(every, before=True), places)
    tensors, indices = slab.kind.tensors[slab.rows], slab.kind.indices[slab.rows]
    return [DensePart(tensors, indices, slab.changed_of_frames(), sums_of(sums), slab)]


def _part(kind: Kind, rows: Rows, batch: FrameBatch, staged: Staged, sums: Tensor) -> DevicePart:
    counts = staged.changed.cpu().numpy()
    return SparsePart(kind.tensors[rows], kind.indices[rows], counts, sums_of(sums), batch, staged)


def _in_tensor(kind: Kind, row: int) -> Frame:
    length = int(kind.narrow[2, row])
    return Frame(int(kind.wide[2, row]), int(kind.units[row]) // length, length, int(kind.wide[3, row]))


def _writable(units: NDArray[Any]) -> NDArray[Any]:
    """What torch takes without a word: it has no tensors that may only be read."""
    return units if units.flags.writeable else units.copy()
