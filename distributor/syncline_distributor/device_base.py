"""A base in device memory, for a trainer whose weights are on a GPU: only encoded bytes leave it. Knows torch; imported when asked for."""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.delta import Delta, EncodedDelta
from syncline.delta.device.encoding import DeviceEncoder
from syncline.delta.device.memory import current, to_device, to_host
from syncline.delta.device.staging import digest, stage
from syncline.wire.digest import Digest
from syncline.wire.tensors import TensorSpec
from syncline.wire.tiling import Tiling
from syncline_distributor.bases import MemoryBase
from syncline_distributor.changes import Change, Step, StepEncoder, damaged
from syncline_distributor.torch_weights import usable_device
from syncline_distributor.weights import MappingWeights, WeightSource


class DeviceBase(MemoryBase):
    """Flat integer tensors on one device: as much of its memory as the weights take."""

    def __init__(
        self, device: torch.device | str, *, executor: Executor | None = None, scratch: Path | None = None
    ) -> None:
        super().__init__(executor=executor, scratch=scratch)
        self.device = usable_device(device)
        if self.device.type == "cuda" and self.device.index is None:  # this one, whichever is current later
            self.device = torch.device("cuda", torch.cuda.current_device())

    def units(self, tensor: int) -> NDArray[Any]:
        return to_host(self._units[tensor])

    def held(self, tensor: int) -> Tensor:
        """The tensor's flat units on the device; only read."""
        return self._units[tensor]

    def step(self, step: Step) -> StepEncoder:
        return DeviceStep(self, step)

    def _kept(self, tensor: int, units: NDArray[Any]) -> Tensor:
        return to_device(np.array(units, copy=True), self.device)

    def _copied(self, source: WeightSource, tensor: int) -> Tensor:
        return on_device(source, tensor, self.device).clone()

    def _change(self, delta: Delta, tiling: Tiling) -> None:
        with current(self.device):
            stage(self.table, tiling, self.held, delta).scatter()

    def _digest(self, spec: TensorSpec, units: Tensor) -> Digest:
        return self.digest(spec, units)

    def digest(self, spec: TensorSpec, flat: Tensor) -> Digest:
        """Tensor digest of units on the device. Waits for it."""
        with current(self.device):
            return digest(spec, self._tiling, flat, self.device)

    _tiling = Tiling()  # a digest does not depend on how its tensor is cut


class DeviceStep:
    """Weights and base in device memory."""

    def __init__(self, base: DeviceBase, step: Step) -> None:
        self._base = base
        self._table = step.table
        self._tiling = step.tiling
        self._encoder = DeviceEncoder(
            step.table, step.tiling, device=base.device, choice=step.choice, nonce=step.nonce, sink=step.sink
        )

    def add(self, tensor: int, source: WeightSource, before: Digest, *, verify: bool) -> Change:
        spec = self._table.tensors[tensor]
        if verify and self._base.digest(spec, self._base.held(tensor)) != before:
            raise damaged(spec)
        new = on_device(source, tensor, self._base.device)
        return Change(
            self._base.digest(spec, new),
            self._encoder.add(tensor, self._base.held(tensor), new),
        )

    def finish(self) -> EncodedDelta:
        return self._encoder.finish()


def on_device(source: WeightSource, tensor: int, device: torch.device) -> Tensor:
    """A tensor's flat units on the device: the trainer's own memory where it lies there, else a copy."""
    own = own_tensor(source, tensor)
    if own is not None:
        return to_device(own.to(device).contiguous(), device)
    return to_device(np.array(source.units(tensor), copy=True), device)


def own_tensor(source: WeightSource, tensor: int) -> Tensor | None:
    """The trainer's own tensor, with the bits that it stands for; None for weights that are none of torch's."""
    if not isinstance(source, MappingWeights):
        return None
    own = source.leaves[source.table.tensors[tensor].name].tensor
    return None if own is None else own.detach().resolve_conj().resolve_neg()
