"""Where live weights lie: reading and writing the units of a tensor in the memory that an engine computes with.

A `Memory` knows only places and bits; which bits, and when, is decided by `live`. `HostMemory` works on flat numpy
views that share the engine's own memory. It never copies a tensor and never writes outside `scatter`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from syncline import delta
from syncline.checkpoint import Checkpoint
from syncline.delta import Delta
from syncline.errors import LayoutRefused
from syncline.wire.digest import Digest
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.layout import Layout
from syncline_agent.arm.placing import Part

Units = NDArray[Any]
"""A flat, contiguous row of unsigned units (wire.dtypes)."""


class Changes(Protocol):
    """What a scatter will write. Only the memory that staged it knows more of it."""

    @property
    def tensors(self) -> Sequence[int]:
        """Tensors in whose held parts something changes, ascending."""
        ...

    @property
    def changed(self) -> int:
        """Units that a scatter writes into live memory."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory of the staged changes."""
        ...

    @property
    def digests(self) -> Mapping[int, Mapping[int, Digest]]:
        """By tensor and by part (its place in `Memory.parts`): what scattering adds to the digest of that part."""
        ...


class Memory(Protocol):
    """The tensors of a table, as far as a rank holds them.

    `stage`, `stage_checkpoint` and `digests` only read live memory and may run while the engine computes; `digests` and
    `scatter` never run at the same time (the caller holds one lock for both)."""

    @property
    def table(self) -> TensorTable: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def tiling(self) -> Tiling: ...

    def parts(self, tensor: int) -> Sequence[Part]:
        """What is held of the tensor, frame by frame, ascending (placing.py)."""
        ...

    def digests(self, tensor: int, parts: range) -> Sequence[Digest]:
        """Of each of these parts, read from live memory: its share of the tensor's digest."""
        ...

    def stage(self, deltas: Sequence[Delta], *, executor: Executor | None = None) -> Changes:
        """Decode a row of deltas, parsed against `table` and `tiling`, against live memory.

        FrameCorrupt, naming tensor and frame, when a payload does not decode against these weights."""
        ...

    def stage_checkpoint(self, checkpoint: Checkpoint, *, executor: Executor | None = None) -> Changes:
        """What differs between live memory, whatever it holds, and a checkpoint of the same table, which is locked."""
        ...

    def scatter(self, changes: Changes, *, undo: bool) -> None:
        """Write the staged new bits (old ones for an undo). No forward step runs; on return the bits are in memory.

        Reaches the kill point `apply.scattering` when about half is written."""
        ...

    def read_back(self, changes: Changes, *, undo: bool) -> Sequence[str]:
        """Names of the tensors in which a place does not hold what `scatter` wrote, read from the memory itself."""
        ...

    def warm_up(self) -> None:
        """Compile and load what `scatter` and `read_back` will run; touches no live memory."""
        ...


class UnitMemory(Protocol):
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
