"""A `Memory` around another that is asked, before each read and write of weights, whether they may be touched now.

What is known without touching weights is answered as the inner one answers it. When and why not, subclasses say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager

from syncline.checkpoint import Checkpoint
from syncline.delta import Delta
from syncline.wire.digest import Digest
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.layout import Layout
from syncline_agent.arm.memory import Changes, Memory
from syncline_agent.arm.placing import Part


class GuardedMemory(ABC):
    """Touches weights within `_touching` only."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @abstractmethod
    def _touching(self) -> AbstractContextManager[object]:
        """Entered around each read or write; raises what the caller is to be told where it may not be."""

    @property
    def table(self) -> TensorTable:
        return self._memory.table

    @property
    def layout(self) -> Layout:
        return self._memory.layout

    @property
    def tiling(self) -> Tiling:
        return self._memory.tiling

    @property
    def slice_units(self) -> int:
        return self._memory.slice_units

    def parts(self, tensor: int) -> Sequence[Part]:
        return self._memory.parts(tensor)

    def digests(self, tensor: int, parts: range) -> Sequence[Digest]:
        with self._touching():
            return self._memory.digests(tensor, parts)

    def stage(self, deltas: Sequence[Delta], *, executor: Executor | None = None) -> Changes:
        with self._touching():
            return self._memory.stage(deltas, executor=executor)

    def stage_checkpoint(self, checkpoint: Checkpoint, *, executor: Executor | None = None) -> Changes:
        with self._touching():
            return self._memory.stage_checkpoint(checkpoint, executor=executor)

    def scatter(self, changes: Changes, *, undo: bool) -> None:
        with self._touching():
            self._memory.scatter(changes, undo=undo)

    def read_back(self, changes: Changes, *, undo: bool) -> Sequence[str]:
        with self._touching():
            return self._memory.read_back(changes, undo=undo)

    def warm_up(self) -> None:
        self._memory.warm_up()
