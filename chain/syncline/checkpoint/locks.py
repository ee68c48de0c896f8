"""The lock of a checkpoint folder: many load at once, or one writes. Held by the kernel, so a killed process lets
go."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from syncline.errors import CheckpointBusy


@contextmanager
def shared(lock: Path) -> Generator[None]:
    """Wait until nobody writes; nobody does while this is held. FileNotFoundError when nobody ever did.

    The file is only read, so an engine may have the folder mounted read-only.
    """
    with _held(lock, fcntl.LOCK_SH, os.O_RDONLY):
        yield


@contextmanager
def exclusive(lock: Path) -> Generator[None]:
    """Take the folder for writing. CheckpointBusy when somebody reads or writes it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with _held(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDWR | os.O_CREAT):
        yield


@contextmanager
def exclusive_after_others(lock: Path) -> Generator[None]:
    """Wait until everybody else is done, then take the folder for writing."""
    with _held(lock, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT):
        yield


@contextmanager
def _held(lock: Path, how: int, flags: int) -> Generator[None]:
    descriptor = os.open(lock, flags | os.O_CLOEXEC, 0o660)
    try:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError as error:
            raise CheckpointBusy(f"{lock.parent.parent} is being read or written; try again when it is not") from error
        yield
    finally:
        os.close(descriptor)
