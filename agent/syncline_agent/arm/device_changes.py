"""What stands ready in an accelerator's memory until a commit writes it (memory.Changes). `device_memory` makes and writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from syncline.delta.device.parts import DevicePart
from syncline.wire.digest import Digest
from syncline_agent.arm.part_digests import PartDigests
from syncline_agent.arm.shadows import StrewnChanges


@dataclass(frozen=True, slots=True)
class DeviceWrite:
    """Bits for single places of one store."""

    tensors: Sequence[int]
    store: int
    places: torch.Tensor
    """int64."""
    new: torch.Tensor
    old: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.places.nbytes + self.new.nbytes + self.old.nbytes


@dataclass(frozen=True, slots=True)
class DeviceChanges:
    """Absolute bits for places of device memory (memory.Changes)."""

    parts: Sequence[DevicePart]
    writes: Sequence[DeviceWrite]
    strewn: Mapping[int, StrewnChanges]
    """By tensor, for the shadows; what it writes to live memory is in `writes`."""
    digests: PartDigests

    @property
    def tensors(self) -> Sequence[int]:
        return list(self.digests)

    @property
    def sums(self) -> Mapping[int, Digest]:
        return self.digests.sums

    @property
    def changed(self) -> int:
        return sum(int(part.counts.sum()) for part in self.parts) + sum(write.places.numel() for write in self.writes)

    @property
    def nbytes(self) -> int:
        """Of device memory, and of the host's for the shadows."""
        shadows = sum(
            change.shadow.nbytes for of_frame in self.strewn.values() for change in of_frame.values() if change.shadow
        )
        return sum(part.nbytes for part in self.parts) + sum(write.nbytes for write in self.writes) + shadows
