"""zstd and lz4 with every size known and bounded before a byte is allocated."""

from __future__ import annotations

import threading
from typing import Protocol, cast

import zstandard
from lz4 import block as _untyped_lz4_block  # pyright: ignore[reportMissingTypeStubs]

from syncline.errors import FrameCorrupt

ZSTD_LEVEL = 1
"""Higher levels gain little on deltas and cost five times the time (EVIDENCE: level 1 is the field's choice too)."""


class _LZ4Block(Protocol):
    """The calls of lz4.block that are used here; the package has no types."""

    LZ4BlockError: type[Exception]

    def compress(self, source: bytes | memoryview, *, store_size: bool) -> bytes: ...

    def decompress(self, source: bytes | memoryview, *, uncompressed_size: int) -> bytes: ...


_lz4 = cast(_LZ4Block, _untyped_lz4_block)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=False, write_content_size=True)
        self.expand = zstandard.ZstdDecompressor(max_window_size=1 << 27)


_contexts = _PerThread()


def zstd_compress(data: bytes | memoryview) -> bytes:
    """One zstd frame that states its content size."""
    return _contexts.compress.compress(data)


def zstd_expand(data: memoryview, *, at_most: int) -> bytes:
    """Content of exactly one zstd frame that states a size of at most `at_most` bytes; FrameCorrupt otherwise."""
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= at_most:
            raise FrameCorrupt(f"a zstd frame states {size} bytes where at most {at_most} fit")
        content = _contexts.expand.decompress(data, max_output_size=max(size, 1), allow_extra_data=False)
    except (zstandard.ZstdError, ValueError) as error:
        raise FrameCorrupt(f"a zstd frame does not expand: {error}") from error
    if len(content) != size:
        raise FrameCorrupt(f"a zstd frame states {size} bytes and holds {len(content)}")
    return content


def lz4_compress(data: bytes | memoryview) -> bytes:
    """One lz4 block without a size prefix."""
    return _lz4.compress(data, store_size=False)


def lz4_expand(data: memoryview, *, size: int) -> bytes:
    """Content of exactly `size` bytes of one lz4 block; FrameCorrupt otherwise."""
    try:
        content = _lz4.decompress(data, uncompressed_size=size)
    except (_lz4.LZ4BlockError, ValueError, MemoryError) as error:
        raise FrameCorrupt(f"an lz4 block does not expand: {error}") from error
    if len(content) != size:
        raise FrameCorrupt(f"an lz4 block holds {len(content)} bytes, not {size}")
    return content
