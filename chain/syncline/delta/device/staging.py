"""A delta against weights in device memory: decoded into staged changes, checked, then written by one scatter.

Frames of the context coder are decoded by the kernels, many tensors in a launch; other frames on the host. Nothing live is written
before every frame was decoded and found whole.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from syncline.codecs.context.codec import FAULTS, ContextCodec, lanes_of, split_lanes
from syncline.delta.device.memory import host_frame
from syncline.delta.parsed import CodedFrame, Delta
from syncline.errors import FrameCorrupt
from syncline.kernels.gpu import scatter as commit
from syncline.kernels.gpu.arrange import arrange
from syncline.kernels.gpu.batch import CodedFrames, DeviceTable, FrameBatch, Staged, Walk, unit_view, walk_of
from syncline.kernels.gpu.decode import decode
from syncline.kernels.gpu.digest import TensorPlaces, change_digest, sweep
from syncline.wire.digest import MASK64, Digest, seeds, total
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Frame, Tiling


@dataclass(frozen=True, slots=True)
class _Member:
    """A changed frame."""

    tensor: int
    spec: TensorSpec
    index: int
    frame: Frame
    coded: CodedFrame


@dataclass(frozen=True, slots=True)
class _Part:
    """Frames of one launch."""

    batch: FrameBatch
    staged: Staged


@dataclass(frozen=True, slots=True)
class DeviceStaged:
    """Changes of a delta in device memory: position, old and new bits. Nothing is live yet."""

    parts: Sequence[_Part]
    changed: int
    digest_changes: Mapping[int, Digest]
    """What scattering adds to each changed tensor's digest."""

    @property
    def nbytes(self) -> int:
        """Device memory of the staged changes."""
        return sum(t.nbytes for p in self.parts for t in (p.staged.positions, p.staged.old, p.staged.new))

    def scatter(self) -> None:
        """Make the new bits live. Queued on the current stream."""
        for part in self.parts:
            commit.scatter(part.batch, part.staged)

    def undo(self) -> None:
        """Make the old bits live again."""
        for part in self.parts:
            commit.undo(part.batch, part.staged)

    def stands(self) -> bool:
        """Whether live memory holds every new bit. Waits for the device."""
        return all(int(commit.count_missing(part.batch, part.staged)) == 0 for part in self.parts)


def stage(table: TensorTable, tiling: Tiling, live: Callable[[int], Tensor], delta: Delta) -> DeviceStaged:
    """Decode a delta against live tensors, which are only read. `live` gives a contiguous tensor of the table's dtype by its index.

    FrameCorrupt, naming tensor and frame, when a payload does not decode against these weights.
    """
    by_launch: dict[tuple[int, int, Walk], list[_Member]] = {}
    on_host: list[_Member] = []
    for tensor in delta.tensors:
        spec = table.tensors[tensor]
        grid = spec.grid(tiling)
        for index, coded in sorted(delta.frames(tensor).items()):
            member = _Member(tensor, spec, index, grid.frame(index), coded)
            if isinstance(coded.codec, ContextCodec):
                lanes = lanes_of(member.frame.units, coded.codec.lane_shift)
                walk = walk_of(live(tensor), member.frame)
                by_launch.setdefault((id(coded.codec), lanes, walk), []).append(member)
            else:
                on_host.append(member)
    parts: list[_Part] = []
    changes: dict[int, Digest] = {}
    for members in by_launch.values():
        _add(parts, changes, members, _decoded(members, live))
    of_unit: dict[int, list[_Member]] = {}
    for member in on_host:
        of_unit.setdefault(member.spec.unit_bytes, []).append(member)
    for members in of_unit.values():
        _add(parts, changes, members, _decoded_on_host(members, live))
    return DeviceStaged(parts, sum(part.staged.positions.numel() for part in parts), changes)


def digest(spec: TensorSpec, tiling: Tiling, live: Tensor) -> Digest:
    """Tensor digest of what a contiguous device tensor holds. Waits for the device."""
    grid = spec.grid(tiling)
    if grid.count == 0:
        return Digest()
    frames = [grid.frame(index) for index in range(grid.count)]
    batch = FrameBatch.of([live], [(0, frame) for frame in frames])
    places = TensorPlaces.of([(seeds(spec.name), frame) for frame in frames], batch.anchor.device)
    return total(_digests(sweep(batch, places)))


def _digests(sums: Tensor) -> list[Digest]:
    return [Digest(lane1 & MASK64, lane2 & MASK64) for lane1, lane2 in sums.tolist()]


def _add(parts: list[_Part], changes: dict[int, Digest], members: Sequence[_Member], part: _Part) -> None:
    places = TensorPlaces.of([(seeds(m.spec.name), m.frame) for m in members], part.batch.anchor.device)
    for member, change in zip(members, _digests(change_digest(part.batch, part.staged, places)), strict=True):
        changes[member.tensor] = changes.get(member.tensor, Digest()) + change
    parts.append(part)


def _batch(members: Sequence[_Member], live: Callable[[int], Tensor]) -> FrameBatch:
    tensors = list(dict.fromkeys(m.tensor for m in members))
    number = {tensor: place for place, tensor in enumerate(tensors)}
    return FrameBatch.of([live(t) for t in tensors], [(number[m.tensor], m.frame) for m in members])


def _decoded(members: Sequence[_Member], live: Callable[[int], Tensor]) -> _Part:
    codec = members[0].coded.codec
    assert isinstance(codec, ContextCodec)
    batch = _batch(members, live)
    device = batch.anchor.device
    lanes = lanes_of(members[0].frame.units, codec.lane_shift)
    words: list[np.ndarray] = []
    starts: list[int] = []
    counts: list[int] = []
    at = 0
    for member in members:
        own, ends = split_lanes(memoryview(member.coded.frame.payload), lanes)
        for low, high in pairwise(ends.tolist()):
            starts.append(2 * (at + low))
            counts.append(high - low)
        words.append(own)
        at += own.size
    table = codec.table
    coded = CodedFrames(
        codec.alphabet,
        DeviceTable.of(codec.alphabet, table.zone_bits, table.widths, table.lists, table.of_context, device),
        lanes,
        torch.tensor([m.coded.frame.changed for m in members], dtype=torch.int32, device=device),
        torch.from_numpy(np.concatenate(words).view(np.uint8)).to(device),
        torch.tensor(starts, dtype=torch.int64, device=device),
        torch.tensor(counts, dtype=torch.int32, device=device),
    )
    staged = Staged.empty(coded.changed, sum(m.coded.frame.changed for m in members), batch.anchor.dtype)
    for member, status in zip(members, decode(batch, coded, staged).tolist(), strict=True):
        if status:
            raise FrameCorrupt(
                f"frame {member.index} of {member.spec.name}: context: {FAULTS[status]}; fetch the chunk again, or "
                "check the base"
            )
    if lanes > 1:  # one alone leaves its changes in order
        arrange(staged)
    return _Part(batch, staged)


def _decoded_on_host(members: Sequence[_Member], live: Callable[[int], Tensor]) -> _Part:
    batch = _batch(members, live)
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for member in members:
        before = host_frame(unit_view(live(member.tensor)), member.frame)
        after = before.copy()
        try:
            member.coded.codec.decode(memoryview(member.coded.frame.payload), after, changed=member.coded.frame.changed)
        except FrameCorrupt as error:
            raise FrameCorrupt(
                f"frame {member.index} of {member.spec.name}: {error}; fetch the chunk again, or check the base"
            ) from error
        positions = np.flatnonzero(before != after)
        rows.append((positions.astype(np.int32), before[positions], after[positions]))
    device, unit = batch.anchor.device, batch.anchor.dtype
    positions, old, new = (np.concatenate(column) for column in zip(*rows, strict=True))
    changed = torch.tensor([row[0].size for row in rows], dtype=torch.int32, device=device)
    ends = torch.cumsum(changed.to(torch.int64), 0)
    signed = np.dtype(f"i{old.itemsize}") if old.itemsize > 1 else old.dtype
    staged = Staged(
        ends - changed,
        changed,
        torch.from_numpy(positions).to(device),
        torch.from_numpy(old.view(signed)).to(device, unit),
        torch.from_numpy(new.view(signed)).to(device, unit),
    )
    return _Part(batch, staged)
