"""The lock of a checkpoint folder: many load at once, or one writes. Held by the kernel, so a killed process lets
go; one that is stopped does not, so nobody waits for another without end.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from syncline.errors import CheckpointBusy

PATIENCE_SECONDS = 10.0
"""How long others are waited for: longer than a patch takes, too short for whoever asks to seem to hang."""
LOOK_SECONDS = 0.02


@contextmanager
def shared(lock: Path) -> Generator[None]:
    """Wait until nobody writes; nobody does while this is held. CheckpointBusy when somebody writes for longer than it
    is waited; FileNotFoundError when nobody ever did.

    The file is only read, so an engine may have the folder mounted read-only.
    """
    with _held(lock, fcntl.LOCK_SH, os.O_RDONLY, PATIENCE_SECONDS):
        yield


@contextmanager
def exclusive(lock: Path) -> Generator[None]:
    """Take the folder for writing. CheckpointBusy when somebody reads or writes it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with _held(lock, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT, 0.0):
        yield


@contextmanager
def exclusive_after_others(lock: Path) -> Generator[None]:
    """Wait until everybody else is done, then take the folder for writing. CheckpointBusy when that takes too long."""
    with _held(lock, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT, PATIENCE_SECONDS):
        yield


@contextmanager
def _held(lock: Path, how: int, flags: int, patience_seconds: float) -> Generator[None]:
    descriptor = os.open(lock, flags | os.O_CLOEXEC, 0o660)
    pause = threading.Event()
    looks = int(patience_seconds / LOOK_SECONDS)
    try:
        # Looked at again and again: a lock that is waited for in the kernel can be waited for without end only.
        while not _taken(descriptor, how):
            if looks == 0:
                raise CheckpointBusy(
                    f"{lock.parent.parent} is being read or written by another process; try again when it is not"
                )
            looks -= 1
            pause.wait(LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
