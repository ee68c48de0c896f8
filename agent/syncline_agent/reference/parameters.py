"""The memory of a rank's weights: allocated as its slices say, filled from a checkpoint, and handed to the arm as it is.

It owns the only copy of the weights. It never converts: what the file says bit for bit is what lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from syncline.wire import dtypes
from syncline.wire.tensors import TensorTable
from syncline_agent.arm.layout import Layout, shape_of
from syncline_agent.arm.spelling import DTYPES
from syncline_agent.reference.pieces import Piece, Slices

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Parameters:
    """All parameters of one rank; their padding is zero."""

    def __init__(self, slices: Slices, table: TensorTable, *, device: str) -> None:
        self.slices = slices
        self._table = table
        self.stores = [
            torch.zeros(parameter.shape, dtype=_INTEGERS[dtypes.dtype(parameter.dtype).unit_bytes], device=device)
            for parameter in slices.parameters.values()
        ]
        self._by_name = dict(zip(slices.parameters, self.stores, strict=True))

    def __getitem__(self, name: str) -> torch.Tensor:
        """A parameter as the numbers that it stands for; packed ones as bytes. It shares the memory."""
        kind = self.slices.parameters[name].dtype
        return self._by_name[name].view(torch.uint8 if kind == "F4" else DTYPES[kind])

    def find(self, name: str) -> torch.Tensor | None:
        """The parameter, where the model has it."""
        return self[name] if name in self._by_name else None

    def fill(self, units: Callable[[str], NDArray[Any]]) -> None:
        """Load every piece; `units` gives a tensor's flat row of unsigned units."""
        of_tensor: dict[int, list[tuple[torch.Tensor, Piece]]] = {}
        for parameter, store in zip(self.slices.parameters.values(), self.stores, strict=True):
            for piece in parameter.pieces:
                offset, strides = piece.lies(parameter.shape)
                there = store.as_strided(piece.size, strides, offset)
                of_tensor.setdefault(piece.tensor, []).append((there, piece))
        for tensor, places in of_tensor.items():
            spec = self._table.tensors[tensor]
            whole = units(spec.name).reshape(shape_of(spec))
            for there, piece in places:
                box = whole[tuple(slice(low, low + n) for low, n in zip(piece.start, piece.size, strict=True))]
                signed = torch.from_numpy(box.copy().view(f"<i{box.itemsize}" if box.itemsize > 1 else "u1"))
                there.copy_(signed)

    def layout(self) -> Layout:
        """Where everything lies, for the arm."""
        return Layout.of(self._table, self.slices.blocks())

    def flat_stores(self) -> list[torch.Tensor]:
        """The stores of `layout`, in order."""
        return [store.reshape(-1) for store in self.stores]
