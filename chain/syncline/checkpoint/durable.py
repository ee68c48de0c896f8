"""Files that survive a crash at any point: write beside, sync, rename, sync the folder. And a full disk by its name."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from syncline.errors import DiskFull

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def naming_full_disk(path: Path) -> Generator[None]:
    """DiskFull, naming `path`, in place of the operating system's error."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"no room to write {path} ({error.strerror}); free space or choose another disk") from error
        raise


def write_durably(path: Path, data: bytes) -> None:
    """Replace the file as a whole; on return it survives a power loss."""
    beside = path.with_name(path.name + ".new")
    with naming_full_disk(path):
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    sync_folder(path.parent)


def remove_durably(path: Path) -> None:
    """Remove the file, if it is there; on return it stays removed."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make renames and removals in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming_full_disk(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
