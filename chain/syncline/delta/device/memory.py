"""Units between device and host, as integers on either side; and whose turn it is where a process sees several devices."""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.kernels.gpu.batch import unit_view
from syncline.wire.tiling import Frame


def current(device: torch.device) -> AbstractContextManager[None]:
    """Makes it the device that launches go to. They go to the process's current one otherwise, wherever the tensors lie: an error at
    best, and sums of memory that is still being written at worst.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def host_frame(flat: Tensor, frame: Frame) -> NDArray[Any]:
    """A frame's units in position order, copied to the host; `flat` is a tensor's integer view."""
    rows = flat.as_strided((frame.runs, frame.length), (frame.stride, 1), flat.storage_offset() + frame.base)
    return to_host(rows.reshape(-1))


def to_host(flat: Tensor) -> NDArray[Any]:
    """Flat unsigned units of an integer tensor."""
    units = flat.cpu().numpy()
    return units.view(np.dtype(f"u{units.itemsize}"))


def to_device(units: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Flat integer view on the device: of the very memory where a contiguous tensor already lies there."""
    if isinstance(units, Tensor):
        return unit_view(units.to(device))
    signed = units.dtype if units.itemsize == 1 else np.dtype(f"i{units.itemsize}")
    return torch.from_numpy(units.view(signed)).to(device)
