"""Freed memory, given back to the system. The C library keeps what a publish or a skip delta used in pieces, and the next
one would come on top of what the last one left. Owns no memory itself."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Does nothing where the C library cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
