"""What the figures were measured on: printed above every table, so that a number never stands without its machine."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("syncline", "numpy", "numba", "zstandard", "lz4", "blake3")


def describe() -> str:
    """Processor, cores, memory and versions, a line each. No host name: results are kept in the repository."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return "\n".join(
        (
            f"machine   {_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB",
            f"software  Python {platform.python_version()}, {versions}",
        )
    )


def kind() -> str:
    """The machine in a file's name: processor and cores."""
    words = re.sub(r"[^a-z0-9]+", "-", _processor().lower()).strip("-")
    return f"{words}-{len(os.sched_getaffinity(0))}-cores"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
