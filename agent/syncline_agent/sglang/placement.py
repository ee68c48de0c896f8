"""Which rank of which engine this process is, as SGLang says, and whether such an engine can be followed in place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Placement:
    """One scheduler's place."""

    rank: int
    ranks: int
    unfit: str | None
    """Why an engine like this is not followed in place; None for one that is."""


def placement_of(parallel: Any) -> Placement:
    """From what `sglang.srt.runtime_context.get_parallel()` gives: sizes and this process's ranks."""
    unfit = None
    if _size(parallel, "pp_size") > 1:
        unfit = "engines of several pipeline stages are not followed in place yet"
    elif _size(parallel, "dp_size") > 1 or _size(parallel, "num_dp_ranks") > 1:
        unfit = "data-parallel engines are not followed in place yet; run one engine a replica"
    return Placement(parallel.tp_rank, parallel.tp_size, unfit)


def start_of(launcher: int, processes: Path = Path("/proc")) -> str | None:
    """What all schedulers of one start of an engine share: the process that launched them, by its number and by when it
    began. None where the kernel does not tell."""
    try:
        told = (processes / str(launcher) / "stat").read_text("utf-8", "replace")
        return f"{launcher}-{int(told.rpartition(')')[2].split()[19])}"  # after the name, which may hold anything
    except (OSError, IndexError, ValueError):
        return None


def _size(parallel: Any, name: str) -> int:
    return int(getattr(parallel, name, None) or 1)
