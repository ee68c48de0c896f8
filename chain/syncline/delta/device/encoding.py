"""From old and new weights to chunks: new ones in device memory, which only encoded bytes leave; old ones there too, or in pinned host
memory, where kernels read them across the bus while they code.

Tensors are held (not copied) until a group of them is worth a launch.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

import torch
from torch import Tensor

from syncline.delta.choice import CodecChoice
from syncline.delta.device.coding import GroupCoder
from syncline.delta.device.group import Group, HeldTensor
from syncline.delta.device.memory import current
from syncline.delta.encode import DeltaTotals, EncodedDelta
from syncline.delta.packing import Packer
from syncline.kernels.gpu.batch import unit_view
from syncline.kernels.gpu.encode import EncodeScratch
from syncline.wire.limits import CHUNK_TARGET_BYTES
from syncline.wire.records import ChunkRef
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling

GROUP_BYTES = 32 << 30
"""Weights of a group: enough lanes to fill a GPU, even where two of them share a frame, and few waits a step. What they become stays in
host memory until the group is packed: where everything changes, nearly as much."""
SCRATCH_BYTES = 256 << 20
"""Room for lanes' words, at most, and again for the payloads made of them, beside the queues of `EncodeScratch`: whatever changes."""


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
        executor: Executor | None = None,
    ) -> None:
        """`nonce` gives 16 random bytes a chunk; `sink` takes each chunk once it is complete; by the threads of `executor` chunks are put
        together beside each other."""
        self._table = table
        self._tiling = tiling
        self._device = device
        self._choice = choice or CodecChoice()
        self._packer = Packer(nonce, sink, target_bytes, executor=executor)
        self._totals = DeltaTotals()
        self._group_bytes = group_bytes
        self._scratch_bytes = scratch_bytes
        self._scratch = EncodeScratch.of(device)
        self._held: list[HeldTensor] = []
        self._bytes = 0
        self._group: Group | None = None
        """Of what is held, once it is one."""

    @property
    def full(self) -> bool:
        """Whether what is held is a group: it is encoded before another tensor is held."""
        return self._bytes >= self._group_bytes

    def add(self, tensor: int, old: Tensor, new: Tensor) -> None:
        """Hold two contiguous tensors of the table's dtype; both must stand unchanged until `finish`. The old one may lie in host memory
        that is pinned."""
        if self.full or self._group is not None:
            self._encode()
        spec = self._table.tensors[tensor]
        held = HeldTensor(tensor, spec, unit_view(old), unit_view(new))
        units = spec.units
        if held.old.numel() != units or held.new.numel() != units:
            raise ValueError(f"{spec.name}: {held.old.numel()} and {held.new.numel()} units, not {units}")
        self._held.append(held)
        self._bytes += units * spec.unit_bytes

    def look(self) -> Group:
        """What is held, and can be asked for what its weights say before it is encoded. It is a group now: nothing joins it."""
        if self._group is None:
            self._group = Group.of(self._table, self._tiling, self._held, self._device)
        return self._group

    def finish(self) -> EncodedDelta:
        """Encode what is held and close the last chunk."""
        self._encode()
        return self._totals.delta(self._table, self._packer.finish())

    def _encode(self) -> None:
        group = self.look()
        self._totals.nonfinite += sum(group.nonfinite)
        with current(self._device):
            coded = GroupCoder(group, self._choice, self._scratch, self._scratch_bytes).coded()
        for tensor, codec, frames in coded.sections():
            self._packer.add_frames(tensor, codec, frames)
            self._totals.take(tensor, codec, int(frames.changed.sum()), frames=len(frames))
        self._held, self._bytes, self._group = [], 0, None
