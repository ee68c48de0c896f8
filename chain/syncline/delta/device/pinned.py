"""Weights that stay in pinned host memory while a device works on them: room for them, and a delta written into them.

Kernels read and write that memory across the bus as they go, so nothing is copied to the device first, and the transfer is the work: it
goes on all the while that a kernel codes. What stands on the device is bounded, whatever changes. Where there is no such device (tests),
the same runs in plain memory. Who holds the weights, and when a delta may be written, is for callers.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from syncline.delta.device.held import HeldFrames
from syncline.delta.device.memory import current
from syncline.delta.device.slabs import pieces
from syncline.delta.device.staging import DeviceStaged, stage_held
from syncline.delta.parsed import Delta
from syncline.kernels.gpu.batch import UNIT_TYPES
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling

BLOCK_BYTES = 4 << 30
"""Pinned at once. torch rounds what it pins up to a power of two: tensors that were pinned one by one could take twice their size."""
SPAN_BYTES = 512 << 20
"""Weights of the frames that are decoded, then written, in one go. On the device their changes take twice that where every unit changes,
41 MB where one percent does."""
_SLABS = 4
"""Of a span: what is decoded beside the weights, before it joins the changes. With all else a step takes less than 2 GB of the device."""
_ALIGNED_BYTES = 256
"""Where a tensor begins: kernels go the quickest way."""


def pinned_units(table: TensorTable, device: torch.device, *, block_bytes: int = BLOCK_BYTES) -> list[Tensor]:
    """Room for each tensor's units, as flat integers in host memory that kernels of `device` reach into.

    RuntimeError of torch, or MemoryError, where the machine does not give that much.
    """
    sizes = [-(-spec.size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for spec in table.tensors]
    places, fills = _placed(sizes, block_bytes)
    with current(device):
        blocks = [torch.empty(fill, dtype=torch.uint8, pin_memory=device.type == "cuda") for fill in fills]
    return [
        blocks[block][first : first + spec.size_bytes].view(UNIT_TYPES[8 * spec.unit_bytes])
        for spec, (block, first) in zip(table.tensors, places, strict=True)
    ]


def write_delta(
    table: TensorTable,
    tiling: Tiling,
    live: Callable[[int], Tensor],
    delta: Delta,
    *,
    device: torch.device,
    span_bytes: int = SPAN_BYTES,
) -> None:
    """Decode a delta against live tensors in pinned host memory, by kernels of `device`, and make it live, span by span. Waits for it.

    Whoever raises leaves a mix of before and after. FrameCorrupt, naming tensor and frame, when a payload does not decode.
    """
    with current(device):
        stores = [(tensor, live(tensor)) for tensor in delta.tensors]
        held = HeldFrames.whole(table, tiling, stores, device=device)
        for span in _spans(table, tiling, delta, span_bytes):
            DeviceStaged(stage_held(table, held, [span], slab_bytes=span_bytes // _SLABS)).scatter()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # the host reads that memory next


def _spans(table: TensorTable, tiling: Tiling, delta: Delta, span_bytes: int) -> Iterator[Delta]:
    """The frames that change, of at most so many bytes together, or one."""
    starts = np.zeros(delta.columns.count + 1, np.int64)
    for tensor in delta.tensors:
        spec, own = table.tensors[tensor], delta.columns.of_tensor(tensor)
        cut, indices = spec.grid(tiling).columns(), delta.columns.indices[own]
        starts[1:][own] = cut.runs[indices] * cut.lengths[indices] * spec.unit_bytes
    for low, high in pieces(np.cumsum(starts), span_bytes):
        yield Delta(delta.columns.at(slice(low, high)), delta.codecs, delta.payloads)


def _placed(sizes: Sequence[int], block_bytes: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Block and first byte of each, and how far each block is filled: the largest first, each into the first block that has room."""
    least = min(sizes, default=0)
    places = [(0, 0)] * len(sizes)
    rooms: list[int] = []
    fills: list[int] = []
    open_blocks: list[int] = []
    for at in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        size = sizes[at]
        block = next((block for block in open_blocks if fills[block] + size <= rooms[block]), None)
        if block is None:
            block = len(rooms)
            rooms.append(max(block_bytes, 1 << (size - 1).bit_length()))
            fills.append(0)
            open_blocks.append(block)
        places[at] = block, fills[block]
        fills[block] += size
        if fills[block] + least > rooms[block]:
            open_blocks.remove(block)
    return places, fills
