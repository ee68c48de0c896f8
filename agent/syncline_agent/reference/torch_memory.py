"""The engine's torch weights as the memory that an arm changes.

On the CPU they are numpy views that share the tensors' own memory. On another device the host cannot see them: reads are
copies made when asked for, writes and read-backs go by index, some frames at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from syncline.delta import StagedTensor
from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.memory import HostMemory, UnitMemory, Units

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


def memory_of(table: TensorTable, weights: Mapping[str, torch.Tensor]) -> UnitMemory:
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
        return HostMemory(table, {name: host_units(tensor) for name, tensor in flat.items()})
    return DeviceMemory(table, flat)


def host_units(integers: torch.Tensor) -> Units:
    """A CPU tensor of integers as unsigned units that share its memory."""
    array = integers.numpy()
    return array.view(np.dtype(f"<u{array.itemsize}"))


class DeviceMemory:
    """Flat integer tensors on an accelerator."""

    def __init__(self, table: TensorTable, tensors: Mapping[str, torch.Tensor]) -> None:
        self._table = table
        self._tensors = [tensors[spec.name] for spec in table.tensors]

    def units(self, tensor: int, start: int = 0, stop: int | None = None) -> Units:
        return host_units(self._tensors[tensor][start:stop].cpu())

    def scatter(self, tensor: int, tiling: Tiling, staged: StagedTensor, *, undo: bool) -> None:
        target = self._tensors[tensor]
        for places, bits in self._parts(tensor, tiling, staged, undo):
            target.index_copy_(0, places, bits)
        if target.is_cuda:
            torch.cuda.synchronize(target.device)  # the pause ends when the bits are there, not when they are asked for

    def read_back(self, tensor: int, tiling: Tiling, staged: StagedTensor, *, undo: bool) -> bool:
        source = self._tensors[tensor]
        return all(torch.equal(source[places], bits) for places, bits in self._parts(tensor, tiling, staged, undo))

    def _parts(
        self, tensor: int, tiling: Tiling, staged: StagedTensor, undo: bool
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Places in the tensor and the bits that belong there, frame by frame, on the device."""
        target = self._tensors[tensor]
        grid = self._table.tensors[tensor].grid(tiling)
        for part in staged.frames:
            frame = grid.frame(part.frame)
            relative = part.positions.astype(np.int64)
            places = frame.base + relative // frame.length * frame.stride + relative % frame.length
            bits = part.old if undo else part.new
            signed = bits.view(np.uint8 if bits.itemsize == 1 else np.dtype(f"<i{bits.itemsize}"))
            yield torch.from_numpy(places).to(target.device), torch.from_numpy(signed).to(target.device)
