"""Live memory that is looked for before it is read or written: parameters that an engine has moved since they were mapped are
refused by name, and never written where nobody reads.

SGLang moves parameters when it wakes from sleep, ends a weight update of packed weights, or offloads. This looks at addresses only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import torch

from syncline.checkpoint import Checkpoint
from syncline.delta import Delta
from syncline.errors import LayoutRefused
from syncline.wire.digest import Digest
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.layout import Layout
from syncline_agent.arm.memory import Changes, Memory
from syncline_agent.arm.placing import Part


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    held: Mapping[str, torch.Tensor | None]
    name: str
    address: int | None


class Still:
    """A `Memory` of a model whose parameters must be where they were when this was made."""

    def __init__(self, memory: Memory, model: torch.nn.Module) -> None:
        self._memory = memory
        # By the modules' own tables, in which an engine also puts new parameters: a look at all takes part of a pause.
        self._places = [
            _Place(f"{path}.{name}" if path else name, module._parameters, name, _address(parameter))
            for path, module in model.named_modules()
            for name, parameter in module._parameters.items()
        ]

    def check(self) -> None:
        """LayoutRefused, naming one, when a parameter is gone or lies elsewhere."""
        for place in self._places:
            if _address(place.held.get(place.name)) != place.address:
                raise LayoutRefused(
                    f"the engine moved {place.path} since its layout was found; start it again from the node checkpoint"
                )

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
        self.check()
        return self._memory.digests(tensor, parts)

    def stage(self, deltas: Sequence[Delta], *, executor: Executor | None = None) -> Changes:
        self.check()
        return self._memory.stage(deltas, executor=executor)

    def stage_checkpoint(self, checkpoint: Checkpoint, *, executor: Executor | None = None) -> Changes:
        self.check()
        return self._memory.stage_checkpoint(checkpoint, executor=executor)

    def scatter(self, changes: Changes, *, undo: bool) -> None:
        self.check()
        self._memory.scatter(changes, undo=undo)

    def read_back(self, changes: Changes, *, undo: bool) -> Sequence[str]:
        self.check()
        return self._memory.read_back(changes, undo=undo)

    def warm_up(self) -> None:
        self._memory.warm_up()


def _address(parameter: torch.Tensor | None) -> int | None:
    return None if parameter is None or parameter.is_meta else parameter.data_ptr()
