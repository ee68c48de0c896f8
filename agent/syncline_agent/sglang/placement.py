"""Which rank of which engine this process is, as SGLang says, and whether such an engine can be followed in place."""

from __future__ import annotations

from dataclasses import dataclass
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


def _size(parallel: Any, name: str) -> int:
    return int(getattr(parallel, name, None) or 1)
