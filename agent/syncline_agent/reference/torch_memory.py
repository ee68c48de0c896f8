"""The engine's torch weights as the memory that an arm changes.

On the CPU they are numpy views that share the tensors' own memory. On another device the host cannot see them: reads are
copies made when asked for, writes and read-backs go by index, some frames at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from syncline import faults
from syncline.checkpoint import Checkpoint
from syncline.delta import Delta, Place, StagedTensor, stage_tensor, stage_whole
from syncline.errors import LayoutRefused
from syncline.kernels.digest import digest_frame
from syncline.wire.digest import Digest, seeds
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Frame, Tiling
from syncline_agent.arm.host_memory import HostMemory, Units
from syncline_agent.arm.layout import Layout
from syncline_agent.arm.memory import Changes, Memory
from syncline_agent.arm.placing import Part, place

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DTYPES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
}


def memory_of(table: TensorTable, tiling: Tiling, weights: Mapping[str, torch.Tensor]) -> Memory:
    """The weights as memory; LayoutRefused by name where they are not what the table says."""
    flat: dict[str, torch.Tensor] = {}
    for spec in table.tensors:
        tensor = weights.get(spec.name)
        if tensor is None:
            raise LayoutRefused(f"the engine has no tensor {spec.name}, which the version's table names")
        if _DTYPES.get(tensor.dtype) != spec.dtype or list(tensor.shape) != spec.shape or not tensor.is_contiguous():
            raise LayoutRefused(
                f"tensor {spec.name} is {tensor.dtype} {list(tensor.shape)} in the engine, {spec.dtype} {spec.shape} in"
                " the version; start the engine from a checkpoint of this view"
            )
        for alias in spec.aliases:
            if alias in weights and weights[alias].data_ptr() != tensor.data_ptr():
                raise LayoutRefused(f"{alias} is tied to {spec.name}, but the engine holds it a second time")
        flat[spec.name] = tensor.detach().reshape(-1).view(_INTEGERS[spec.unit_bytes])
    unknown = sorted(set(weights) - set(table.index))
    if unknown:
        raise LayoutRefused(f"the engine has a tensor {unknown[0]}, which the version's table does not name")
    if all(tensor.device.type == "cpu" for tensor in flat.values()):
        return HostMemory.whole(table, tiling, {name: host_units(tensor) for name, tensor in flat.items()})
    return DeviceMemory(table, tiling, flat)


def host_units(integers: torch.Tensor) -> Units:
    """A CPU tensor of integers as unsigned units that share its memory."""
    array = integers.numpy()
    return array.view(np.dtype(f"<u{array.itemsize}"))


@dataclass(frozen=True, slots=True)
class _Changes:
    """Every frame is held whole: a part is a frame."""

    staged: Sequence[StagedTensor]

    @property
    def tensors(self) -> Sequence[int]:
        return [staged.tensor for staged in self.staged]

    @property
    def changed(self) -> int:
        return sum(staged.changed for staged in self.staged)

    @property
    def nbytes(self) -> int:
        return sum(staged.nbytes for staged in self.staged)

    @property
    def digests(self) -> Mapping[int, Mapping[int, Digest]]:
        return {staged.tensor: {f.frame: f.digest_change for f in staged.frames} for staged in self.staged}


class DeviceMemory:
    """Flat integer tensors on an accelerator, each whole."""

    def __init__(self, table: TensorTable, tiling: Tiling, tensors: Mapping[str, torch.Tensor]) -> None:
        self.table, self.tiling, self.layout = table, tiling, Layout.whole(table)
        self._tensors = [tensors[spec.name] for spec in table.tensors]
        self._grids = [spec.grid(tiling) for spec in table.tensors]
        self._parts = [place(self.layout, tensor, tiling).parts for tensor in range(len(table.tensors))]

    def parts(self, tensor: int) -> Sequence[Part]:
        return self._parts[tensor]

    def digests(self, tensor: int, parts: range) -> Sequence[Digest]:
        seed = seeds(self.table.tensors[tensor].name)
        found: list[Digest] = []
        for part in parts:
            at = self._copied(tensor, part)
            found.append(digest_frame(at.flat, at.frame, self._grids[tensor].frame(part), seed))
        return found

    def stage(self, deltas: Sequence[Delta], *, executor: Executor | None = None) -> _Changes:
        changing = sorted({t for parsed in deltas for t in parsed.tensors})
        return _changes(
            stage_tensor(self.table, self.tiling, t, partial(self._copied, t), deltas, executor=executor)
            for t in changing
        )

    def stage_checkpoint(self, checkpoint: Checkpoint, *, executor: Executor | None = None) -> _Changes:
        return _changes(
            stage_whole(spec, self.tiling, t, partial(self._copied, t), checkpoint.units(spec.name), executor=executor)
            for t, spec in enumerate(self.table.tensors)
        )

    def scatter(self, changes: Changes, *, undo: bool) -> None:
        assert isinstance(changes, _Changes)
        half = len(changes.staged) // 2
        for done, staged in enumerate(changes.staged):
            if done == half:
                faults.reach("apply.scattering")
            target = self._tensors[staged.tensor]
            for places, bits in self._places(staged, undo):
                target.index_copy_(0, places, bits)
        if not changes.staged:
            faults.reach("apply.scattering")
        for device in {t.device for t in self._tensors if t.is_cuda}:
            torch.cuda.synchronize(device)  # the pause ends when the bits are there, not when they are asked for

    def read_back(self, changes: Changes, *, undo: bool) -> Sequence[str]:
        assert isinstance(changes, _Changes)
        return [
            self.table.tensors[staged.tensor].name
            for staged in changes.staged
            if not all(
                torch.equal(self._tensors[staged.tensor][places], bits) for places, bits in self._places(staged, undo)
            )
        ]

    def warm_up(self) -> None:
        pass  # nothing is compiled: writes go by index

    def _copied(self, tensor: int, index: int) -> Place:
        frame = self._grids[tensor].frame(index)
        flat = self._tensors[tensor]
        rows = flat.as_strided((frame.runs, frame.length), (frame.stride, 1), flat.storage_offset() + frame.base)
        units = host_units(rows.reshape(-1).cpu())
        return Place(units, Frame(0, 1, units.size, units.size))

    def _places(self, staged: StagedTensor, undo: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Places in the tensor and the bits that belong there, frame by frame, on the device."""
        target, grid = self._tensors[staged.tensor], self._grids[staged.tensor]
        for part in staged.frames:
            frame = grid.frame(part.frame)
            relative = part.positions.astype(np.int64)
            places = frame.base + relative // frame.length * frame.stride + relative % frame.length
            bits = part.old if undo else part.new
            signed = bits.view(np.uint8 if bits.itemsize == 1 else np.dtype(f"<i{bits.itemsize}"))
            yield torch.from_numpy(places).to(target.device), torch.from_numpy(signed).to(target.device)


def _changes(staged: Iterator[StagedTensor]) -> _Changes:
    return _Changes([of_tensor for of_tensor in staged if of_tensor.changed])
