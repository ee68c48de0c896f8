"""A model's tensors in other memory for a while: its loader writes there, and what the engine computes with is not touched.

The memory is on the host, as large as the model's share on this rank, and let go of at the end. Addresses of the live memory
stay what they were, which captured graphs depend on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

import torch

from syncline_agent.arm.probing import Probed, Store


class Scratch:
    """Where each live storage stands in for itself."""

    def __init__(self) -> None:
        self._live: dict[int, torch.UntypedStorage] = {}
        """By the live storage's address: its stand-in."""

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same view of the same storage, elsewhere. What it holds is not copied."""
        live = tensor.untyped_storage()
        other = self._live.get(live.data_ptr())
        if other is None:
            other = self._live[live.data_ptr()] = torch.UntypedStorage(live.nbytes(), device="cpu")
        made = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return made.set_(other, tensor.storage_offset(), tensor.size(), tensor.stride())

    def translated(self, probed: Probed) -> Probed:
        """What was probed in scratch memory, with the addresses of the live one."""
        starts = [(other.data_ptr(), other.nbytes(), live) for live, other in self._live.items()]

        def moved(store: Store) -> Store:
            for start, size, live in starts:
                if start <= store.pointer < start + max(size, 1):
                    return replace(store, pointer=live + store.pointer - start)
            return store

        return replace(probed, stores=[moved(store) for store in probed.stores])


@contextmanager
def aside(model: torch.nn.Module) -> Iterator[Scratch]:
    """All parameters and buffers of a model lie in scratch memory. No forward step may run."""
    scratch = Scratch()
    lives: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        with torch.no_grad():
            for tensor in chain(model.parameters(), model.buffers()):
                if not tensor.is_meta:
                    live = tensor.data
                    tensor.data = scratch.stand_in(live)
                    lives.append((tensor, live))
        yield scratch
    finally:
        for tensor, live in lives:
            tensor.data = live
