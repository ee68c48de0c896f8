"""What a dtype's bits mean to the context coder: its contexts, and the order in which a step is small. Source: wire/FORMAT.md, Units."""

from __future__ import annotations

from syncline.kernels.clock import NIBBLES, PLAIN, SIGNED, Alphabet

_CODE = Alphabet(8, 0, 255, PLAIN)
_FP8 = Alphabet(8, 0, 255, SIGNED)

ALPHABETS = {
    "BF16": Alphabet(16, 7, 255, SIGNED),
    "F16": Alphabet(16, 10, 31, SIGNED),
    "F32": Alphabet(32, 23, 255, SIGNED),
    "F8_E4M3": _FP8,
    "F8_E5M2": _FP8,
    "F4": Alphabet(8, 0, 255, NIBBLES),
    "F8_E8M0": _CODE,
    "U8": _CODE,
    "I8": _CODE,
    "BOOL": _CODE,
    "F6_E2M3": _CODE,
    "F6_E3M2": _CODE,
    "I16": Alphabet(16, 0, 0, PLAIN),
    "U16": Alphabet(16, 0, 0, PLAIN),
    "I32": Alphabet(32, 0, 0, PLAIN),
    "U32": Alphabet(32, 0, 0, PLAIN),
}
"""Dtypes that the codec takes, by safetensors name; units of eight bytes have none."""
