"""From old and new weights to chunks: new ones in device memory, which only encoded bytes leave; old ones there too, or in pinned host
memory, where kernels read them across the bus while they code.

Tensors are held (not copied) until a group of them is worth a launch. Tables come from a sample of each kind's frames, so that the
weights are read once; what the tables did not foresee is an escape. Frames that the sample was unlike are coded again under tables of
their own, and what no table suits goes through the host.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise

import numpy as np
import torch
from torch import Tensor

from syncline.codecs.base import Codec, FrameChange
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, lane_shift, lanes_of
from syncline.codecs.context.counts import Counts, Totals
from syncline.codecs.context.fitting import shared_bits
from syncline.codecs.context.sharing import Kind, Kinds
from syncline.delta.choice import CodecChoice
from syncline.delta.device.memory import current, host_frame
from syncline.delta.encode import DeltaTotals, EncodedDelta
from syncline.delta.packing import Packer
from syncline.kernels.clock import Alphabet
from syncline.kernels.gpu.batch import DeviceTable, FrameBatch, Walk, unit_view, walk_of
from syncline.kernels.gpu.compact import compact, payload_offsets
from syncline.kernels.gpu.counts import DeviceCounts, count
from syncline.kernels.gpu.encode import CODED, EncodeScratch, LaneWords, encode
from syncline.kernels.gpu.host import reached_from
from syncline.wire import dtypes
from syncline.wire.chunk import EncodedFrame
from syncline.wire.limits import CHUNK_TARGET_BYTES
from syncline.wire.records import ChunkRef
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Frame, FrameGrid, Tiling

GROUP_BYTES = 8 << 30
"""Weights of a group: enough lanes to fill a GPU several times. What they become stays in host memory until the group is packed: where
everything changes, nearly as much."""
SCRATCH_BYTES = 256 << 20
"""Room for lanes' words, at most, and again for the payloads made of them, beside the queues of `EncodeScratch`: whatever changes."""
SAMPLE_FRAMES = 64
"""Frames of a kind that are counted, at most."""
_ROOM = 1.5
"""Words a lane may take, beside what the sample lets expect."""
_DEAR_BYTES = 32
"""By which a frame may cost more than without any table."""
_SPREAD = 0x9E3779B1
"""Multiples of it are spread evenly."""
_NONFINITE_SLICE = 1 << 24
_GRIDS = 64
"""Of tensors of different shapes, whose frames are remembered: a model has few."""


@dataclass(frozen=True, slots=True)
class _Held:
    tensor: int
    spec: TensorSpec
    grid: FrameGrid
    old: Tensor
    """Flat integer view."""
    new: Tensor

    def frames(self) -> Sequence[tuple[int, Frame]]:
        return _frames_of(self.grid)


@lru_cache(maxsize=_GRIDS)
def _frames_of(grid: FrameGrid) -> Sequence[tuple[int, Frame]]:
    return [(index, grid.frame(index)) for index in range(grid.count)]


_Member = tuple[_Held, int, Frame]
_Found = dict[tuple[int, int], tuple[Codec, int, bytes | memoryview]]
"""By tensor and frame: codec, changes, payload."""


@dataclass(frozen=True, slots=True)
class _Job:
    """Frames for one codec and one number of lanes."""

    codec: ContextCodec
    lanes: int
    words: int
    """Expected of a lane."""
    frames: list[_Member]


class DeviceEncoder:
    """Add tensors in ascending index order, then `finish`. Works on the current stream; waits for it at the end of a group."""

    def __init__(
        self,
        table: TensorTable,
        tiling: Tiling,
        *,
        device: torch.device,
        nonce: Callable[[], bytes],
        sink: Callable[[ChunkRef, bytes], None],
        choice: CodecChoice | None = None,
        target_bytes: int = CHUNK_TARGET_BYTES,
        group_bytes: int = GROUP_BYTES,
        scratch_bytes: int = SCRATCH_BYTES,
    ) -> None:
        """`nonce` gives 16 random bytes a chunk; `sink` takes each chunk once it is complete."""
        self._table = table
        self._tiling = tiling
        self._device = device
        self._choice = choice or CodecChoice()
        self._packer = Packer(nonce, sink, target_bytes)
        self._totals = DeltaTotals()
        self._group_bytes = group_bytes
        self._scratch_bytes = scratch_bytes
        self._scratch = EncodeScratch.of(device)
        self._held: list[_Held] = []

    def add(self, tensor: int, old: Tensor, new: Tensor) -> int:
        """Hold two contiguous tensors of the table's dtype; both must stand unchanged until `finish`. The old one may lie in host memory
        that is pinned.

        Returns how many of the changed values are NaN or Inf.
        """
        spec = self._table.tensors[tensor]
        held = _Held(tensor, spec, spec.grid(self._tiling), unit_view(old), unit_view(new))
        if held.old.numel() != spec.units or held.new.numel() != spec.units:
            raise ValueError(f"{spec.name}: {held.old.numel()} and {held.new.numel()} units, not {spec.units}")
        self._held.append(held)
        nonfinite = _changed_to_nonfinite(held)
        self._totals.nonfinite += nonfinite
        if sum(h.spec.size_bytes for h in self._held) >= self._group_bytes:
            self._flush()
        return nonfinite

    def finish(self) -> EncodedDelta:
        """Encode what is held and close the last chunk."""
        self._flush()
        return self._totals.delta(self._table, self._packer.finish())

    def _flush(self) -> None:
        with current(self._device):
            found = self._encoded()
        for (tensor, index), (codec, changed, payload) in sorted(found.items(), key=lambda item: item[0]):
            self._packer.add(tensor, codec, EncodedFrame(index, changed, payload))
            self._totals.take(tensor, codec, changed)
        self._held = []

    def _encoded(self) -> _Found:
        found: _Found = {}
        on_host: list[_Member] = []
        left = [(held, index, frame) for held in self._held for index, frame in held.frames()]
        for again in (False, True):
            jobs, others = self._jobs(left, again=again)
            on_host += others
            left = [member for job in jobs for member in self._coded(job, found)]
        for held, index, frame in on_host + left:
            if (coded := self._on_host(held, frame)) is not None:
                found[held.tensor, index] = coded
        return found

    def _coded(self, job: _Job, found: _Found) -> list[_Member]:
        """Code a job's frames into `found`. Returns those that its table does not suit."""
        unlike: list[_Member] = []
        for room in (job.words, 8 * job.words):
            again: list[_Member] = []
            for part in self._slabs(job, room):
                for member, coded in zip(part, self._launch(job, part, room), strict=True):
                    held, index, frame = member
                    if coded is None:
                        again.append(member)
                    elif _is_dear(frame, held.spec, coded[0], len(coded[1])):
                        unlike.append(member)
                    elif coded[0]:
                        found[held.tensor, index] = (job.codec, *coded)
            job = replace(job, frames=again)
        return unlike + job.frames

    # --- what goes how

    def _jobs(self, members: Sequence[_Member], *, again: bool) -> tuple[list[_Job], list[_Member]]:
        """Launches, and the frames that no kernel takes: the host looks at them. `again`: frames that another table did not suit, of which
        few may not pay for one of their own; nor may those that change nearly everywhere, to bits that the old ones say nothing about.
        """
        kinds = Kinds()
        of_kind: dict[int, tuple[Kind, list[_Member]]] = {}
        left: list[_Member] = []
        for _, of_tensor in groupby(members, key=lambda member: member[0].tensor):
            own = list(of_tensor)
            held = own[0][0]
            if held.spec.dtype in ALPHABETS and self._choice.takes_context:
                kind = kinds.of(held.spec.dtype, held.spec.name, ALPHABETS[held.spec.dtype])
                of_kind.setdefault(id(kind), (kind, []))[1].extend(own)
            else:
                left += own
        sampled: list[tuple[Kind, list[_Member], int, int]] = []
        exact = True
        for kind, frames in of_kind.values():
            sample = _sample(frames)
            counts = self._count(sample)
            changed, units = int(counts.symbols.sum()), sum(frame.units for _, _, frame in sample)
            if (again or self._choice.is_dense(changed, units)) and not _pays(kind, counts, sample, len(frames)):
                left += frames
            else:
                kind.counts = counts
                sampled.append((kind, frames, changed, units))
                exact = exact and len(sample) == len(frames)
        kinds.share_tables(exact=exact)
        jobs: dict[tuple[Alphabet, bytes, int, int, Walk], _Job] = {}
        for kind, frames, changed, units in sampled:
            assert kind.table is not None
            codec = ContextCodec(kind.table, kind.alphabet, lane_shift(max(changed, 1), units))
            bits = shared_bits(Totals.of(kind.counts), kind.alphabet) / units
            for held, index, frame in frames:
                lanes = lanes_of(frame.units, codec.lane_shift)
                words = int(_ROOM * frame.units / lanes * bits / 16) + 64
                walk = max(walk_of(held.old, frame), walk_of(held.new, frame))
                launch = (kind.alphabet, kind.table.data, codec.lane_shift, lanes, walk)
                job = jobs.setdefault(launch, _Job(codec, lanes, 0, []))
                job.frames.append((held, index, frame))
                if words > job.words:
                    jobs[launch] = _Job(codec, lanes, words, job.frames)
        return list(jobs.values()), left

    def _count(self, frames: Sequence[_Member]) -> Counts:
        counts = DeviceCounts.none(self._device)
        old, new = self._batches(frames)
        count(old, new, ALPHABETS[frames[0][0].spec.dtype], counts)
        return Counts(counts.units.cpu().numpy(), counts.symbols.cpu().numpy())

    def _slabs(self, job: _Job, room: int) -> Iterator[list[_Member]]:
        """Frames of a job whose lanes' words fit the scratch."""
        many = max(1, self._scratch_bytes // (2 * room * job.lanes))
        for at in range(0, len(job.frames), many):
            yield job.frames[at : at + many]

    # --- doing it

    def _launch(self, job: _Job, part: Sequence[_Member], room: int) -> Iterable[tuple[int, memoryview] | None]:
        """Changes and payload of each frame; None for one that was not coded."""
        old, new = self._batches(part)
        out = LaneWords.empty(len(part), job.lanes, room, self._device)
        table = job.codec.table
        on_device = DeviceTable.of(
            job.codec.alphabet, table.zone_bits, table.widths, table.lists, table.of_context, self._device
        )
        encode(old, new, job.codec.alphabet, on_device, out, self._scratch)
        offsets = payload_offsets(out)
        ends = offsets.tolist()
        into = torch.empty(ends[-1], dtype=torch.uint8, device=self._device)
        compact(out, offsets, into)
        payloads = into.cpu().numpy().data
        for (low, high), changed, status in zip(pairwise(ends), out.changed.tolist(), out.status.tolist(), strict=True):
            yield (changed, payloads[low:high]) if status == CODED else None

    def _batches(self, frames: Sequence[_Member]) -> tuple[FrameBatch, FrameBatch]:
        """The frames in the old and in the new weights."""
        held = {h.tensor: h for h, _, _ in frames}
        number = {tensor: place for place, tensor in enumerate(held)}
        places = [(number[h.tensor], frame) for h, _, frame in frames]
        return (
            reached_from(FrameBatch.of([h.old for h in held.values()], places), self._device),
            FrameBatch.of([h.new for h in held.values()], places),
        )

    def _on_host(self, held: _Held, frame: Frame) -> tuple[Codec, int, bytes] | None:
        before, after = host_frame(held.old, frame), host_frame(held.new, frame)
        if np.array_equal(before, after):
            return None
        change = FrameChange.between(before, after)
        codec = self._choice.choose([change])
        return codec, int(change.positions.size), codec.encode(change)


def _sample(frames: Sequence[_Member]) -> list[_Member]:
    """Of each of at most SAMPLE_FRAMES runs one frame, not always the same one: what changes may come back at a distance."""
    run = -(-len(frames) // SAMPLE_FRAMES)
    places = (at + ((at // run) * _SPREAD >> 16) % run for at in range(0, len(frames), run))
    return [frames[min(place, len(frames) - 1)] for place in places]


def _pays(kind: Kind, counts: Counts, sample: Sequence[_Member], frames: int) -> bool:
    """Whether a table for so many frames, of which the sample was counted, saves more than it takes."""
    each = int(counts.symbols.sum()) // len(sample)
    plain = sum(_plain_bytes(frame, held.spec, each) for held, _, frame in sample)
    times = frames // len(sample)
    return (
        shared_bits(Totals.of(Counts(counts.units * times, counts.symbols * times)), kind.alphabet) < 8 * plain * times
    )


def _is_dear(frame: Frame, spec: TensorSpec, changed: int, size: int) -> bool:
    """Whether a payload is larger than one that no table helps."""
    least = changed * spec.unit_bytes + _DEAR_BYTES  # told without a look at the frame: what nearly all are below
    return size > least and size > _plain_bytes(frame, spec, changed) + _DEAR_BYTES


def _plain_bytes(frame: Frame, spec: TensorSpec, changed: int) -> int:
    """What the changes take without any table, about: each a distance and whole new bits; and never more than all units."""
    bits = changed * (8 * spec.unit_bytes + (frame.units // max(changed, 1)).bit_length() + 1)
    return min(bits // 8, frame.units * spec.unit_bytes)


def _changed_to_nonfinite(held: _Held) -> int:
    mask = dtypes.dtype(held.spec.dtype).exponent_mask
    if mask == 0:
        return 0
    signed = mask - (1 << 64) if mask >> 63 else mask
    slices = [slice(at, at + _NONFINITE_SLICE) for at in range(0, held.new.numel(), _NONFINITE_SLICE)]
    if not slices:
        return 0
    present = torch.stack([((held.new[own] & signed) == signed).any() for own in slices]).tolist()  # waits once
    total = 0
    for own in (
        own for own, some in zip(slices, present, strict=True) if some
    ):  # as good as never: the old ones may be far
        new = held.new[own]
        total += int((((new & signed) == signed) & (new != held.old[own].to(new.device))).sum())
    return total
