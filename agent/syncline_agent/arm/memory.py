"""What an arm asks of the memory that an engine computes with: read it, stage changes against it, write them.

A `Memory` knows places and bits; which bits, and when, is decided by `live`. None copies a tensor, and none writes
outside `scatter`. `host_memory` is the one of numpy stores, `device_memory` that of an accelerator's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from syncline.checkpoint import Checkpoint
from syncline.delta import Delta
from syncline.wire.digest import Digest
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.layout import Layout
from syncline_agent.arm.placing import Part


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

    @property
    def sums(self) -> Mapping[int, Digest]:
        """By tensor: the same of all its parts together."""
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

    @property
    def slice_units(self) -> int:
        """About a millisecond of summing up: how much a sweep may read while a commit waits. A slice is at least one part."""
        ...

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
        """Compile and load what `scatter` and `read_back` will run, and what reads a delta; touches no live memory."""
        ...
