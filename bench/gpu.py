"""Whether a GPU is here for benchmarks that need one, and how long it takes. Run as plain scripts, they find this module beside them."""

from __future__ import annotations

from collections.abc import Callable

import torch


def require_gpu() -> None:
    """Leave with a sentence where torch finds no CUDA device."""
    if not torch.cuda.is_available():
        raise SystemExit(
            f"this benchmark needs a CUDA GPU, and this torch ({torch.__version__}) finds none; on a machine that has one, "
            "install torch's CUDA build (TORCH_INDEX=… make venv)"
        )


def milliseconds(run: Callable[[], object], times: int = 5) -> float:
    """The least of some, by device events."""
    run()
    best = float("inf")
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end))
    return best
