"""What the benchmark asks of vLLM's worker, in its process."""

from __future__ import annotations

from typing import Any

import torch


def device_memory(worker: Any) -> dict[str, int]:
    """Bytes of device memory: allocated now, and at most since this was asked last."""
    if not torch.cuda.is_available():
        return {"now": 0, "most": 0}
    found = {"now": torch.cuda.memory_allocated(), "most": torch.cuda.max_memory_allocated()}
    torch.cuda.reset_peak_memory_stats()
    return found
