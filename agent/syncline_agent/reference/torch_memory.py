"""The engine's torch weights as the memory that an arm changes: every tensor whole, in the storage that the engine computes with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.layout import Layout
from syncline_agent.arm.memory import Memory
from syncline_agent.arm.torch_stores import memory_of_stores

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
    return memory_of_stores(Layout.whole(table), tiling, [flat[spec.name] for spec in table.tensors])
