"""Bytes as the port takes them: flat views of whatever holds memory, and large sources read part by part.

Nothing here copies more than one part of a large source, and nothing keeps a view after its call.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer

from syncline.errors import StoreMisused
from syncline.store.base import WeightStore

COMPARE_BYTES = 8 << 20
"""How much of a large object is read at a time when it is compared with its source."""


class PartSource(Protocol):
    """A large object before it is in a store."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> Buffer:
        """Exactly these bytes; safe from several threads at once. StoreMisused when the source shrank."""
        ...


def flat_view(data: Buffer) -> memoryview:
    """All bytes of a C-contiguous buffer, whatever its element type."""
    view = memoryview(data)
    if view.nbytes == 0:
        return memoryview(bytearray())  # a view with a zero in its shape cannot be cast
    if not view.c_contiguous:
        raise StoreMisused("the buffer is not contiguous; pass a contiguous copy")
    return view.cast("B")


def writable_view(buffer: Buffer) -> memoryview:
    """The same, for a buffer that is to be filled."""
    view = flat_view(buffer)
    if view.nbytes and view.readonly:
        raise StoreMisused("the buffer to read into is read-only")
    return view


@contextmanager
def open_source(source: Path | Buffer) -> Generator[PartSource]:
    """A file or a buffer as parts."""
    if not isinstance(source, Path):
        yield _MemorySource(flat_view(source))
        return
    try:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreMisused(f"{source} cannot be read: {error.strerror}; give a file that exists") from error
    try:
        yield FileSource(source, fd)
    finally:
        os.close(fd)


def holds_same_bytes(store: WeightStore, key: str, source: PartSource) -> bool:
    """Whether the object `key` is byte for byte the source; reads it in bounded pieces."""
    if store.head(key).size != source.size:
        return False
    for offset in range(0, source.size, COMPARE_BYTES):
        length = min(COMPARE_BYTES, source.size - offset)
        theirs = bytearray(length)
        store.get_range_into(key, offset, theirs)
        if theirs != source.read(offset, length):
            return False
    return True


class _MemorySource:
    def __init__(self, view: memoryview) -> None:
        self._view = view

    @property
    def size(self) -> int:
        return self._view.nbytes

    def read(self, offset: int, length: int) -> Buffer:
        return self._view[offset : offset + length]


class FileSource:
    """An open file whose size is the one it had when it was opened."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self.fd = fd
        self._size = os.fstat(fd).st_size

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> Buffer:
        part = bytearray(length)
        fill_from_file(self.fd, offset, memoryview(part), name=str(self._path))
        return part


def fill_from_file(fd: int, offset: int, view: memoryview, *, name: str) -> None:
    """Fill the view from an open file, or StoreMisused when the file ends before."""
    done = 0
    while done < view.nbytes:
        count = os.preadv(fd, [view[done:]], offset + done)
        if count == 0:
            raise StoreMisused(f"{name} ends at byte {offset + done}, {view.nbytes} bytes from {offset} were asked for")
        done += count
