"""Frames in pinned host memory for kernels that run on a device: read across the bus while they are walked, without a copy.

A kernel has enough loads under way to fill the bus, so the bus is what bounds it; frames of any geometry can be read so, and no scratch
is needed. Nothing is copied or launched here.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from syncline.kernels.gpu.batch import FrameBatch


def reached_from(batch: FrameBatch, device: torch.device) -> FrameBatch:
    """The same frames, for kernels of `device`. ValueError where they lie in host memory that is not pinned.

    All of the batch's tensors must be pinned, and stay so while a kernel reads them; the first one is looked at.
    """
    check_reached(batch.anchor, device)
    places = {name: getattr(batch, name).to(device) for name in ("bases", "lengths", "strides", "units")}
    return replace(batch, **places)


def check_reached(units: Tensor, device: torch.device) -> None:
    """ValueError where kernels of `device` cannot read memory of another kind, because it is not pinned."""
    if device.type != units.device.type and not units.is_pinned():
        raise ValueError(f"{units.numel()} units on {units.device} cannot be reached from {device}: pin that memory")
