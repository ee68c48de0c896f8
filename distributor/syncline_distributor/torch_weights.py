"""torch tensors as leaves. The only module of the distributor that knows torch, loaded only when the trainer hands in
a tensor."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from syncline.errors import LayoutRefused
from syncline.wire import dtypes
from syncline_distributor.weights import UNIT_TYPES, Leaf

# By name, because older builds lack the newest ones.
_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32",
    "float64": "F64", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4",
}  # fmt: skip
DTYPES = {getattr(torch, torch_name): name for torch_name, name in _NAMES.items() if hasattr(torch, torch_name)}


def leaf(name: str, tensor: torch.Tensor) -> Leaf:
    """A leaf whose `read` brings the tensor to the CPU when it is called, never before."""
    kind = DTYPES.get(tensor.dtype)
    if kind is None or tensor.layout is not torch.strided:
        raise LayoutRefused(
            f"{name}: {tensor.dtype} ({tensor.layout}) has no safetensors dtype; convert it before publishing"
        )
    shape = tuple(tensor.shape)
    if kind == "F4":  # two codes a byte; safetensors counts elements
        shape = (*shape[:-1], shape[-1] * 2)
    storage = (str(tensor.device), tensor.data_ptr(), kind, shape, tuple(tensor.stride()))
    return Leaf(kind, shape, storage, lambda: _units(tensor, dtypes.dtype(kind).unit_bytes))


def _units(tensor: torch.Tensor, unit_bytes: int) -> NDArray[Any]:
    plain = tensor.detach().to("cpu").contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().view(UNIT_TYPES[unit_bytes])
