"""The tensors that a loader is fed while it is probed: names, shapes and types of the checkpoint's, and bits that tell a tensor's
number or each unit's position.

A digit of a number is as many bits as a unit has. Makes one tensor at a time, and never looks at what a loader does with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.layout import shape_of

Load = Callable[[Iterable[tuple[str, torch.Tensor]]], object]

DTYPES = {
    "BOOL": torch.bool,
    "F4": getattr(torch, "float4_e2m1fn_x2", torch.uint8),
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MARK = 0x5555_5555_5555_5555


def feed(
    load: Load, table: TensorTable, device: torch.device, write: Callable[[int, TensorSpec, torch.Tensor], object]
) -> None:
    """Have the loader load every tensor of the table, each as `write` fills it when it is asked for. LayoutRefused when it does
    not take them."""

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for index, spec in enumerate(table.tensors):
            out = torch.empty(spec.units, dtype=INTEGERS[spec.unit_bytes], device=device)
            write(index, spec, out)
            kind = DTYPES.get(spec.dtype)
            if kind is None:
                raise LayoutRefused(f"tensor {spec.name} is {spec.dtype}, which torch has no type for")
            yield spec.name, out.view(kind).reshape(shape_of(spec) if spec.shape else ())

    try:
        load(tensors())
    except LayoutRefused:
        raise
    except Exception as error:
        raise LayoutRefused(
            f"the engine's loader does not take tensors that spell their positions ({type(error).__name__}: {error})"
        ) from error


def marked(index: int, spec: TensorSpec, out: torch.Tensor) -> None:
    """The same everywhere: what holds it afterwards was touched."""
    out.fill_(cut(MARK, 0, out))


def scattered(index: int, spec: TensorSpec, out: torch.Tensor) -> None:
    """Bits of either sign and any size, in no order."""
    numbers = torch.arange(out.numel(), dtype=torch.int64, device=out.device) * -0x61C8864680B583EB + index * 0x2545F491
    out.copy_(numbers >> 24)


def cut(number: int, digit: int, out: torch.Tensor) -> int:
    """A digit of the number, as wide as the units of `out`, as their signed integer."""
    width = 8 * out.element_size()
    low = number >> (digit * width) & ((1 << width) - 1)
    return low - (1 << width) if low >> (width - 1) else low


def spell(out: torch.Tensor, digit: int) -> None:
    """Digit `digit` of each unit's position: the lowest counts up and begins anew, a higher one stays for a run."""
    width = 8 * out.element_size()
    if width > 16:
        torch.arange(out.numel(), dtype=out.dtype, device=out.device, out=out)
        return
    runs, run = -(-out.numel() // (1 << width)), 1 << width
    if digit == 0:
        line = torch.arange(min(run, out.numel()), dtype=torch.int64, device=out.device).to(out.dtype)
        lines = line.expand(runs, -1)
    else:
        numbers = torch.arange(runs, dtype=torch.int64, device=out.device) >> (width * (digit - 1))
        lines = numbers.to(out.dtype).unsqueeze(1).expand(-1, min(run, out.numel()))
    whole = out.numel() // run * run
    if whole:
        out[:whole].view(-1, run).copy_(lines[: whole // run])
    if whole < out.numel():
        out[whole:].copy_(lines[-1][: out.numel() - whole])
