"""An engine's torch stores as the memory that an arm changes: the host's own where they lie there, else a device's.

Only looks at where they lie. On a host without an accelerator nothing of one is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from syncline.wire.tiling import Tiling
from syncline_agent.arm.host_memory import HostMemory, Units
from syncline_agent.arm.layout import Layout
from syncline_agent.arm.memory import Memory


def memory_of_stores(
    layout: Layout,
    tiling: Tiling,
    stores: Sequence[torch.Tensor],
    *,
    loaded: Callable[[str], Units] | None = None,
) -> Memory:
    """`stores`: flat integer tensors, in the layout's order; `loaded` as for HostMemory. LayoutRefused by name."""
    if all(store.device.type == "cpu" for store in stores):
        return HostMemory(layout, tiling, [host_units(store) for store in stores], loaded=loaded)
    from syncline_agent.arm.device_memory import DeviceMemory

    return DeviceMemory(layout, tiling, stores, loaded=loaded)


def host_units(integers: torch.Tensor) -> Units:
    """A CPU tensor of integers as unsigned units that share its memory."""
    array = integers.numpy()
    return array.view(np.dtype(f"<u{array.itemsize}"))
