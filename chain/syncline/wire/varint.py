"""Writing varints: unsigned LEB128 in its shortest form (FORMAT.md, section 5). Readers bound different things."""

from __future__ import annotations


def put_varint(out: bytearray, value: int) -> None:
    """Append a value >= 0."""
    if value < 0:
        raise ValueError(f"{value} cannot be written: sections or frames are out of order")
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
