"""Where live weights lie: reading and writing the units of a tensor in the memory that an engine computes with.

A `Memory` knows only places and bits; which bits, and when, is decided by `live`. `HostMemory` works on flat numpy
views that share the engine's own memory. It never copies a tensor and never writes outside `scatter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from syncline import delta
from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling

Units = NDArray[Any]
"""A flat, contiguous row of unsigned units (wire.dtypes)."""


class Memory(Protocol):
    """The tensors of a table, by index."""

    def units(self, tensor: int, start: int = 0, stop: int | None = None) -> Units:
        """Units [start, stop) of the tensor as they are now: a view, or a copy where the host cannot see the memory.
        Only read it."""
        ...

    def scatter(self, tensor: int, tiling: Tiling, staged: delta.StagedTensor, *, undo: bool) -> None:
        """Write the staged new bits (old ones for an undo) at their places."""
        ...

    def read_back(self, tensor: int, tiling: Tiling, staged: delta.StagedTensor, *, undo: bool) -> bool:
        """Whether every place that `scatter` wrote holds what it should, read from the memory itself."""
        ...


class HostMemory:
    """Numpy views of memory that the CPU computes with."""

    def __init__(self, table: TensorTable, tensors: Mapping[str, Units]) -> None:
        check_fits(table, tensors)
        self._table = table
        self._views = [tensors[spec.name] for spec in table.tensors]

    def units(self, tensor: int, start: int = 0, stop: int | None = None) -> Units:
        return self._views[tensor][start:stop]

    def scatter(self, tensor: int, tiling: Tiling, staged: delta.StagedTensor, *, undo: bool) -> None:
        delta.scatter(self._table.tensors[tensor], tiling, self._views[tensor], staged, undo=undo)

    def read_back(self, tensor: int, tiling: Tiling, staged: delta.StagedTensor, *, undo: bool) -> bool:
        return delta.read_back(self._table.tensors[tensor], tiling, self._views[tensor], staged, undo=undo)


def check_fits(table: TensorTable, tensors: Mapping[str, Units]) -> None:
    """Every owner of the table is there as flat writable units of its width and number, else LayoutRefused by name."""
    for spec in table.tensors:
        view = tensors.get(spec.name)
        if view is None:
            raise LayoutRefused(f"the engine has no tensor {spec.name}, which the version's table names")
        wanted = np.dtype(f"<u{spec.unit_bytes}")
        if view.dtype != wanted or view.shape != (spec.units,) or not view.flags.c_contiguous:
            raise LayoutRefused(
                f"tensor {spec.name} is {view.dtype} {view.shape} in the engine; {spec.dtype} {spec.shape} needs"
                f" {spec.units} contiguous units of {wanted}"
            )
        if not view.flags.writeable:
            raise LayoutRefused(f"tensor {spec.name} is read-only memory; the arm could not change it")
