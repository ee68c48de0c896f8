"""A base in device memory, for a trainer whose weights are on a GPU: only encoded bytes leave it. Knows torch; imported when asked for."""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syncline.delta import Delta, EncodedDelta
from syncline.delta.device.encoding import DeviceEncoder
from syncline.delta.device.group import digests
from syncline.delta.device.held import HeldFrames
from syncline.delta.device.memory import current, to_device, to_host
from syncline.delta.device.staging import DeviceStaged, stage_held
from syncline.wire.digest import Digest
from syncline.wire.tiling import Tiling
from syncline_distributor.bases import MemoryBase
from syncline_distributor.changes import Change, Step, StepEncoder, damaged
from syncline_distributor.torch_weights import usable_device
from syncline_distributor.weights import MappingWeights, WeightSource

PACKERS = 4
"""Threads that put chunks together and hash them."""
DECODING = 4
"""Streams that the base's own delta is decoded on."""


class DeviceBase(MemoryBase):
    """Flat integer tensors on one device: as much of its memory as the weights take."""

    def __init__(
        self, device: torch.device | str, *, executor: Executor | None = None, scratch: Path | None = None
    ) -> None:
        super().__init__(executor=executor, scratch=scratch)
        self.device = usable_device(device)
        if self.device.type == "cuda" and self.device.index is None:  # this one, whichever is current later
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._decoding: list[torch.cuda.Stream] = []
        """Where a delta has few lanes, a launch of one group's leaves a device mostly idle."""
        if self.device.type == "cuda":
            self._decoding = [torch.cuda.Stream(self.device) for _ in range(DECODING)]
        self._frames: HeldFrames | None = None
        """Where the tensors' frames lie: they stay where they are until all is forgotten."""

    def units(self, tensor: int) -> NDArray[Any]:
        return to_host(self._units[tensor])

    def held(self, tensor: int) -> Tensor:
        """The tensor's flat units on the device; only read."""
        return self._units[tensor]

    def step(self, step: Step) -> StepEncoder:
        return DeviceStep(self, step)

    def forget(self) -> None:
        super().forget()
        self._frames = None

    def _kept(self, tensor: int, units: NDArray[Any]) -> Tensor:
        return to_device(np.array(units, copy=True), self.device)

    def _copied(self, source: WeightSource, tensor: int) -> Tensor:
        return on_device(source, tensor, self.device).clone()

    def _change(self, delta: Delta, tiling: Tiling) -> None:
        if self._frames is None:
            self._frames = HeldFrames.whole(self.table, tiling, list(enumerate(self._units)))
        with current(self.device):
            DeviceStaged(stage_held(self.table, self._frames, [delta], beside=self._decoding)).scatter()

    def _digests(self) -> Iterator[Digest]:
        tiling = Tiling()  # a digest does not depend on how its tensor is cut
        held = HeldFrames.whole(self.table, tiling, list(enumerate(self._units)), device=self.device)
        found = digests(held, self.device)
        return (found.get(tensor, Digest()) for tensor, _ in enumerate(self.table.tensors))


class DeviceStep:
    """Weights and base in device memory."""

    def __init__(self, base: DeviceBase, step: Step) -> None:
        self._base = base
        self._table = step.table
        self._packers = ThreadPoolExecutor(PACKERS, "syncline-pack")
        self._encoder = DeviceEncoder(
            step.table,
            step.tiling,
            device=base.device,
            choice=step.choice,
            nonce=step.nonce,
            sink=step.sink,
            executor=self._packers,
        )

    def changes(self, source: WeightSource, before: Sequence[Digest], *, verify: bool) -> Iterator[Change]:
        last = len(self._table.tensors) - 1
        for tensor in range(last + 1):
            self._encoder.add(tensor, self._base.held(tensor), on_device(source, tensor, self._base.device))
            if self._encoder.full or tensor == last:  # the last may fill a group: it is told once all the same
                yield from self._seen(before, verify=verify)

    def _seen(self, before: Sequence[Digest], *, verify: bool) -> Iterator[Change]:
        """Of the tensors that are held: the device is waited for once, and nothing of them is encoded yet."""
        group = self._encoder.look()
        if verify:
            for held, found in zip(group.tensors, group.digests(before=True), strict=True):
                if found != before[held.tensor]:
                    raise damaged(held.spec)
        yield from map(Change, group.digests(), group.nonfinite)

    def finish(self) -> EncodedDelta:
        with self._packers:
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
