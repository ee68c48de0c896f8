"""Where Python's time goes, written to a file."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LINES = 40


@contextmanager
def profiled(path: str | None) -> Iterator[None]:
    """Of this thread, while the block lasts; nothing where there is no path."""
    if path is None:
        yield
        return
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        with Path(path).open("w", encoding="utf-8") as file:
            pstats.Stats(profile, stream=file).strip_dirs().sort_stats("tottime").print_stats(LINES)
