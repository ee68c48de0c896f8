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
    """A leaf whose `read` brings the tensor to the CPU when it is called, never before.

    LayoutRefused for what holds no bits of its own: a wrapper, a tensor without data, one whose memory was given back.
    """
    if _dispatch(type(tensor)) is not _dispatch(torch.Tensor) or tensor.is_nested:
        raise LayoutRefused(
            f"{name} is a {type(tensor).__name__}, which is no plain tensor; gather it first (full_tensor, dequantize)"
        )
    kind = DTYPES.get(tensor.dtype)
    if kind is None or tensor.layout is not torch.strided:
        raise LayoutRefused(
            f"{name}: {tensor.dtype} ({tensor.layout}) has no safetensors dtype; convert it before publishing"
        )
    if tensor.is_meta or tensor.untyped_storage().nbytes() < _storage_needed(tensor):
        raise LayoutRefused(
            f"{name} has no memory behind it (a meta tensor, or one whose shards were freed); gather it before publishing"
        )
    shape = tuple(tensor.shape)
    if kind == "F4":  # two codes a byte; safetensors counts elements
        shape = (*shape[:-1], shape[-1] * 2)
    storage = (str(tensor.device), tensor.data_ptr(), kind, shape, tuple(tensor.stride()))
    return Leaf(kind, shape, storage, lambda: _units(tensor, dtypes.dtype(kind).unit_bytes), tensor)


def _units(tensor: torch.Tensor, unit_bytes: int) -> NDArray[Any]:
    # Lazy conjugation and negation are in no bit of the memory until they are resolved.
    plain = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().view(UNIT_TYPES[unit_bytes])


def _storage_needed(tensor: torch.Tensor) -> int:
    """Bytes of storage up to the tensor's last element."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()


def _dispatch(kind: type[torch.Tensor]) -> object:
    """What a tensor class does with operations: a wrapper has a handler of its own."""
    return getattr(kind, "__torch_dispatch__", None)
