"""A base in pinned host memory, for a trainer whose GPU has no room for a second copy: kernels read it across the bus while they compare
and encode, and write a committed step into it. Knows torch; imported when asked for."""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.delta import Delta
from syncline.delta.device.pinned import pinned_units, write_delta
from syncline.errors import Rejected
from syncline.kernels.gpu.batch import unit_view
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_distributor.device_base import DeviceBase, own_tensor
from syncline_distributor.weights import WeightSource


class PinnedBase(DeviceBase):
    """Flat integer tensors in host memory that the device reaches into; of its own memory a bounded part is used, and only for a while."""

    def __init__(
        self,
        device: torch.device | str,
        *,
        executor: Executor | None = None,
        scratch: Path | None = None,
        room: Callable[[TensorTable, torch.device], list[Tensor]] = pinned_units,
    ) -> None:
        """`room` gives memory for all tensors of a table."""
        super().__init__(device, executor=executor, scratch=scratch)
        self._room = room
        self._rooms: list[Tensor] = []

    def forget(self) -> None:
        if self._rooms and self.device.type == "cuda":
            # torch gives this memory to whoever pins next, and knows nothing of kernels that reach into it: a step that failed may still
            # be writing. A device that fails here runs none any more.
            with suppress(RuntimeError):
                torch.cuda.synchronize(self.device)
        super().forget()
        self._rooms = []

    def _kept(self, tensor: int, units: NDArray[Any]) -> Tensor:
        kept = self._room_of(tensor)
        np.copyto(kept.numpy().view(units.dtype), units)
        return kept

    def _copied(self, source: WeightSource, tensor: int) -> Tensor:
        own = own_tensor(source, tensor)
        if own is None:
            return self._kept(tensor, source.units(tensor))
        return self._room_of(tensor).copy_(unit_view(own.contiguous()))

    def _change(self, delta: Delta, tiling: Tiling) -> None:
        write_delta(self.table, tiling, self.held, delta, device=self.device)

    def _room_of(self, tensor: int) -> Tensor:
        self._make_room()
        return self._rooms[tensor]

    def _make_room(self) -> None:
        if not self._rooms:
            try:
                self._rooms = self._room(self.table, self.device)
            except (RuntimeError, MemoryError) as error:
                raise Rejected(
                    f"base_memory 'host': {self.table.size_bytes} bytes of this machine's memory could not be pinned ({error}); "
                    "free some, raise the limit of the container, or keep the base on the device or leave `device` out"
                ) from error
