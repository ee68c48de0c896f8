"""The safetensors dtypes, seen as unsigned integers.

Syncline never computes with weights: a tensor is a row of *units*, little-endian unsigned integers of 1, 2, 4 or 8 bytes, and equal
bits are equal weights (-0.0 and NaN payloads included). A dtype narrower than a byte is packed, and its unit is the byte.
Source of names and widths: the safetensors format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from syncline.errors import FormatInvalid


@dataclass(frozen=True, slots=True)
class Dtype:
    """A safetensors dtype."""

    name: str
    bits: int
    """Bits an element."""
    unit_bytes: int
    """Width of the integer view: 1, 2, 4 or 8."""
    exponent_mask: int = 0
    """Bits that are all set in NaN and Inf, in the unit; 0 when the dtype has no such values or they are not told apart here."""


DTYPES = {
    d.name: d
    for d in (
        Dtype("BOOL", 8, 1),
        Dtype("F4", 4, 1),
        Dtype("F6_E2M3", 6, 1),
        Dtype("F6_E3M2", 6, 1),
        Dtype("U8", 8, 1),
        Dtype("I8", 8, 1),
        Dtype("F8_E5M2", 8, 1, 0x7C),
        Dtype("F8_E4M3", 8, 1, 0x7F),
        Dtype("F8_E8M0", 8, 1, 0xFF),
        Dtype("I16", 16, 2),
        Dtype("U16", 16, 2),
        Dtype("F16", 16, 2, 0x7C00),
        Dtype("BF16", 16, 2, 0x7F80),
        Dtype("I32", 32, 4),
        Dtype("U32", 32, 4),
        Dtype("F32", 32, 4, 0x7F80_0000),
        Dtype("C64", 64, 8),
        Dtype("F64", 64, 8, 0x7FF0_0000_0000_0000),
        Dtype("I64", 64, 8),
        Dtype("U64", 64, 8),
    )
}


def dtype(name: str) -> Dtype:
    """Look a dtype up by its safetensors name; FormatInvalid for one that v1 does not know."""
    try:
        return DTYPES[name]
    except KeyError:
        raise FormatInvalid(
            f"dtype {name!r} is not one of {', '.join(DTYPES)}; store its bits as one of them, packed ones as U8"
        ) from None


def unit_shape(dtype_name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Shape in units. A packed dtype's last dimension shrinks to bytes; where that is no whole number the tensor is one flat row.

    A 0-d tensor has shape (1,). FormatInvalid when the elements do not fill whole bytes.
    """
    kind = dtype(dtype_name)
    if not shape:
        if kind.bits % 8:
            raise FormatInvalid(f"a 0-d {dtype_name} does not fill a byte; pad it to {8 // gcd(kind.bits, 8)} elements")
        return (1,)
    if kind.bits % 8 == 0:
        return tuple(shape)
    total_bits = prod(shape) * kind.bits
    if total_bits % 8:
        raise FormatInvalid(
            f"{dtype_name} {list(shape)} does not fill whole bytes; pad it to a multiple of {8 // gcd(kind.bits, 8)} elements"
        )
    if shape[-1] * kind.bits % 8 == 0:
        return (*shape[:-1], shape[-1] * kind.bits // 8)
    return (total_bits // 8,)


def units(dtype_name: str, shape: Sequence[int]) -> int:
    """Number of units."""
    return prod(unit_shape(dtype_name, shape))


def size_bytes(dtype_name: str, shape: Sequence[int]) -> int:
    """Bytes of the tensor."""
    return units(dtype_name, shape) * dtype(dtype_name).unit_bytes
