"""The experts of a layer as one tensor a matrix: `experts.gate_up_proj` and `experts.down_proj`, as newer trainers and
checkpoints have them, in either orientation.

Pure. Which orientation it is follows from both shapes together, which no model has in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorTable
from syncline_agent.arm.layout import shape_of
from syncline_agent.reference.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Stack:
    """How the experts of a layer are stacked."""

    prefix: str
    """Of both names."""
    experts: int
    turned: bool
    """Columns come before rows: weights are multiplied from the right."""

    @property
    def gate_up(self) -> str:
        return self.prefix + "gate_up_proj"

    def order(self, of_matrix: Sequence[int]) -> tuple[int, ...]:
        """What is said of rows and columns, in the tensor's order."""
        return tuple(reversed(of_matrix)) if self.turned else tuple(of_matrix)

    def shape(self, of_matrix: Sequence[int]) -> tuple[int, ...]:
        return (self.experts, *self.order(of_matrix))


def stack_of(config: ModelConfig, table: TensorTable, mlp: str) -> Stack | None:
    """How the experts of the layer whose MLP's names begin so are stacked; None where each has tensors of its own.
    LayoutRefused, with the shapes, where neither orientation fits."""
    stacks = [Stack(mlp + "experts.", config.experts, turned) for turned in (False, True)]
    names = stacks[0].gate_up, stacks[0].prefix + "down_proj"
    indices = [table.index.get(name) for name in names]
    if indices == [None, None]:
        return None
    found = [None if index is None else shape_of(table.tensors[index]) for index in indices]
    wide = [(2 * config.expert_intermediate, config.hidden), (config.hidden, config.expert_intermediate)]
    for stack in stacks:
        if found == [stack.shape(of) for of in wide]:
            return stack
    said = [
        f"{name} is {'missing' if shape is None else list(shape)}" for name, shape in zip(names, found, strict=True)
    ]
    raise LayoutRefused(
        f"{' and '.join(said)}; the config asks for {' and '.join(str(list(stacks[0].shape(of))) for of in wide)},"
        " or for both with the last two dimensions turned around"
    )
