"""What the engine core asks of each worker, in whatever process that is: `collective_rpc` carries these functions there.

They come behind what the worker was told before, since a worker does one thing at a time.
"""

from __future__ import annotations

from typing import Any

import torch


def settle(worker: Any) -> None:
    """Return when the worker has nothing to do, and its device neither."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
