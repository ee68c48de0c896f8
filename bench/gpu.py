"""Whether a GPU is here for the benchmarks that need one. Run as plain scripts, they find this module beside them."""

from __future__ import annotations

import torch


def require_gpu() -> None:
    """Leave with a sentence where torch finds no CUDA device."""
    if not torch.cuda.is_available():
        raise SystemExit(
            f"this benchmark needs a CUDA GPU, and this torch ({torch.__version__}) finds none; on a machine that has one, "
            "install torch's CUDA build (TORCH_INDEX=… make venv)"
        )
