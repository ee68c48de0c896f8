"""Frames of a group coded on the device: launch after launch, what comes back is kept as it came, and placed by rows.

Frames that the sample was unlike are coded again under tables of their own, and what no table suits goes through the host, frame by
frame. Nothing else looks at one.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.codecs.base import Codec, FrameChange
from syncline.codecs.context.codec import ContextCodec
from syncline.codecs.context.counts import Counts
from syncline.delta.choice import CodecChoice
from syncline.delta.device.group import Group
from syncline.delta.device.held import Kind, Rows
from syncline.delta.device.jobs import Job, Run, jobs_of, plain_bytes
from syncline.delta.device.memory import to_host
from syncline.kernels.clock import Alphabet
from syncline.kernels.gpu.batch import DeviceTable
from syncline.kernels.gpu.compact import compact, payload_offsets
from syncline.kernels.gpu.counts import DeviceCounts, count
from syncline.kernels.gpu.encode import CODED, EncodeScratch, LaneWords, encode
from syncline.wire.chunk import Frames

_DEAR_BYTES = 32
"""By which a frame may cost more than without any table."""
_NONE = -1
_PINNED_BYTES = 512 << 20
"""Payloads of a group that come by pinned memory, at most: several times as fast, and torch keeps what was pinned for the next step."""


@dataclass(frozen=True, slots=True)
class _Coded:
    """What a launch made of its frames, a column a frame."""

    changed: NDArray[np.int64]
    status: NDArray[np.int64]
    begins: NDArray[np.int64]
    """Where each payload begins."""
    sizes: NDArray[np.int64]
    payloads: memoryview


class CodedGroup:
    """What became of a group's frames, by kind and row."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._codecs: list[Codec] = []
        self._numbers: dict[tuple[int, bytes | None, int], int] = {}
        self._payloads: list[memoryview] = []
        self._columns = [np.full((5, kind.count), _NONE, np.int64) for kind in group.after.kinds]
        """Codec, units that changed, buffer of the payload, where it begins, its size."""

    def put(self, kind: int, rows: Rows, codec: Codec, payloads: memoryview, columns: NDArray[np.int64]) -> None:
        """Of some frames of one codec: units that changed, where in the buffer the payload begins, its size."""
        lanes = codec.lane_shift if isinstance(codec, ContextCodec) else 0
        number = self._numbers.setdefault((codec.id, codec.shared, lanes), len(self._codecs))
        if number == len(self._codecs):
            self._codecs.append(codec)
        into = self._columns[kind]
        into[0, rows], into[2, rows] = number, len(self._payloads)
        into[1, rows], into[3, rows], into[4, rows] = columns
        self._payloads.append(payloads)

    def sections(self) -> Iterator[tuple[int, Codec, Frames]]:
        """Frames that changed, in the order of tensors and frames, as many at a time as one codec coded."""
        for held in self._group.tensors:
            found = self._group.after.of_tensor(held.tensor)
            if found is None:
                continue
            own = self._columns[found[0]][:, found[1]]
            changed = np.flatnonzero(own[0] >= 0)
            for indices in np.split(changed, np.flatnonzero(np.diff(own[0, changed])) + 1):
                if indices.size:
                    codec, moved, _, _, sizes = run = own[:, indices]
                    yield held.tensor, self._codecs[codec[0]], Frames(indices, moved, sizes, self._joined(run[2:]))

    def _joined(self, spans: NDArray[np.int64]) -> memoryview:
        """Payloads back to back: of one launch they mostly lie so."""
        buffers, begins, sizes = spans
        apart = (buffers[1:] != buffers[:-1]) | (begins[1:] != begins[:-1] + sizes[:-1])
        firsts = np.concatenate([[0], np.flatnonzero(apart) + 1])
        lasts = np.concatenate([firsts[1:], [sizes.size]]) - 1
        ends = begins + sizes
        parts = [
            self._payloads[buffer][begin:end]
            for buffer, begin, end in zip(
                buffers[firsts].tolist(), begins[firsts].tolist(), ends[lasts].tolist(), strict=True
            )
        ]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


class GroupCoder:
    """Codes one group. Launches go to the current device and stream, which it waits for."""

    def __init__(self, group: Group, choice: CodecChoice, scratch: EncodeScratch, scratch_bytes: int) -> None:
        self._group = group
        self._choice = choice
        self._scratch = scratch
        self._scratch_bytes = scratch_bytes
        self._coded = CodedGroup(group)
        self._tables: dict[tuple[bytes, Alphabet], DeviceTable] = {}
        self._pinned = _PINNED_BYTES

    def coded(self) -> CodedGroup:
        """All frames of the group that changed."""
        on_host: list[Run] = []
        left: list[Run] = []
        for held in self._group.tensors:
            found = self._group.after.of_tensor(held.tensor)
            if found is not None:
                left.append(found)
        for again in (False, True):
            jobs, others = jobs_of(self._group, left, self._choice, self._count, again=again)
            on_host += others
            left = [(job.kind, rows) for job in jobs for rows in self._run(job)]
        for kind, rows in on_host + left:
            for row in rows.tolist():
                self._on_host(kind, row)
        return self._coded

    def _run(self, job: Job) -> Iterator[Rows]:
        """Code a job's frames. Yields those that its table does not suit."""
        left = np.concatenate(job.rows)
        unit_bytes = self._group.after.kinds[job.kind].anchor.element_size()
        for room in (job.words, 8 * job.words):
            full: list[Rows] = []
            for rows in self._slabs(left, room * job.lanes):
                made = self._launch(job, rows, room)
                done = made.status == CODED
                dear = done & self._dear(job.kind, rows, made, unit_bytes)
                takes = np.flatnonzero(done & ~dear & (made.changed > 0))
                if takes.size:
                    columns = np.stack([made.changed, made.begins, made.sizes])[:, takes]
                    self._coded.put(job.kind, rows[takes], job.codec, made.payloads, columns)
                if dear.any():
                    yield rows[dear]
                full.append(rows[~done])
            left = np.concatenate(full)
            if not left.size:
                return
        yield left

    def _dear(self, kind: int, rows: Rows, made: _Coded, unit_bytes: int) -> NDArray[np.bool_]:
        """Which payloads are larger than one that no table helps."""
        # told without a look at the frame: what nearly all are below
        dear = made.sizes > made.changed * unit_bytes + _DEAR_BYTES
        units = self._group.after.kinds[kind].units
        for at in np.flatnonzero(dear).tolist():
            dear[at] = made.sizes[at] > _DEAR_BYTES + plain_bytes(
                int(units[rows[at]]), unit_bytes, int(made.changed[at])
            )
        return dear

    def _slabs(self, rows: Rows, words: int) -> Iterator[Rows]:
        """Frames whose lanes' words, so many a frame, fit the scratch."""
        many = max(1, self._scratch_bytes // (2 * words))
        for at in range(0, rows.size, many):
            yield rows[at : at + many]

    def _launch(self, job: Job, rows: Rows, room: int) -> _Coded:
        (old, _), (new, _) = (kind.launch(rows) for kind in self._kinds(job.kind))
        out = LaneWords.empty(rows.size, job.lanes, room, self._group.device)
        encode(old, new, job.codec.alphabet, self._table(job.codec), out, self._scratch)
        offsets = payload_offsets(out)
        columns = to_host(torch.cat([offsets, out.changed, out.status])).view(np.int64)
        offset, changed, status = np.split(columns, [rows.size + 1, 2 * rows.size + 1])
        into = torch.empty(int(offset[-1]), dtype=torch.uint8, device=self._group.device)
        compact(out, offsets, into)
        return _Coded(changed, status, offset[:-1], np.diff(offset), self._brought(into))

    def _table(self, codec: ContextCodec) -> DeviceTable:
        table, key = codec.table, (codec.table.data, codec.alphabet)
        if key not in self._tables:
            self._tables[key] = DeviceTable.of(
                codec.alphabet, table.zone_bits, table.widths, table.lists, table.of_context, self._group.device
            )
        return self._tables[key]

    def _count(self, kind: int, rows: Rows, alphabet: Alphabet) -> Callable[[], Counts]:
        counts = DeviceCounts.none(self._group.device)
        (old, _), (new, _) = (side.launch(rows) for side in self._kinds(kind))
        count(old, new, alphabet, counts, int(self._group.after.kinds[kind].units[rows].max()))
        return lambda: Counts(counts.units.cpu().numpy(), counts.symbols.cpu().numpy())

    def _kinds(self, number: int) -> Sequence[Kind]:
        return self._group.before.kinds[number], self._group.after.kinds[number]

    def _on_host(self, kind: int, row: int) -> None:
        before, after = (to_host(side.view(row).reshape(-1)) for side in self._kinds(kind))
        if np.array_equal(before, after):
            return
        change = FrameChange.between(before, after)
        codec = self._choice.choose([change])
        payload = codec.encode(change)
        columns = np.array([[change.positions.size], [0], [len(payload)]], np.int64)
        self._coded.put(kind, np.array([row]), codec, memoryview(payload), columns)

    def _brought(self, payloads: Tensor) -> memoryview:
        """Bytes of the device on the host. Waits for them."""
        if payloads.is_cuda and 0 < payloads.numel() <= self._pinned:
            self._pinned -= payloads.numel()
            payloads = torch.empty(payloads.numel(), dtype=torch.uint8, pin_memory=True).copy_(payloads)
        return payloads.cpu().numpy().data
