"""torch tensors as leaves, and the device that a trainer names. Knows torch, but no kernels; loaded only when the trainer
hands in a tensor or names a device."""

from __future__ import annotations

import os
from typing import Any

import torch
from numpy.typing import NDArray

from syncline.errors import LayoutRefused, Rejected
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
    if tensor.layout is not torch.strided:
        raise LayoutRefused(f"{name} is laid out as {tensor.layout}, which safetensors cannot hold; call .to_dense()")
    kind = DTYPES.get(tensor.dtype)
    if kind is None:
        instead = "call .dequantize()" if tensor.is_quantized else "convert it with .to(dtype)"
        raise LayoutRefused(f"{name}: {tensor.dtype} has no safetensors dtype; {instead} before publishing")
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


_CPU_ENCODES = "leave `device` out and the CPU encodes"


def usable_device(device: object) -> torch.device:
    """The device that weights are compared and encoded on. Rejected for what is none, or is not here.

    The CPU is one only in Triton's interpreter (TRITON_INTERPRET=1), for tests.
    """
    try:
        named = torch.device(device) if isinstance(device, str | torch.device) else None
    except RuntimeError:
        named = None
    if named is not None and named.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return named
    if named is None or named.type != "cuda":
        raise Rejected(f"device is a CUDA device such as 'cuda:0', not {device!r}; name one, or {_CPU_ENCODES}")
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        raise Rejected(
            f"device '{device}': this torch ({torch.__version__}) "
            + (
                f"finds no GPU; look at the driver and at CUDA_VISIBLE_DEVICES, or {_CPU_ENCODES}"
                if built
                else f"has no CUDA; install a CUDA build, or {_CPU_ENCODES}"
            )
        )
    count = torch.cuda.device_count()
    if named.index is not None and named.index >= count:
        raise Rejected(f"device '{device}' is not here: the last one is 'cuda:{count - 1}'; name one that is")
    return named
