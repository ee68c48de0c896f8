"""What the engine core asks of each worker, in whatever process that is: `collective_rpc` carries these functions there.

They come behind what the worker was told before, since a worker does one thing at a time.
"""

from __future__ import annotations

from typing import Any

import torch

from syncline_agent.vllm.rank import rank_of


def settle(worker: Any) -> None:
    """Return when the worker has nothing to do, and its device neither."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def doubt_of(worker: Any) -> str | None:
    """Why what the worker holds must not serve."""
    rank = rank_of(getattr(worker, "worker", worker))
    return None if rank is None else rank.error
