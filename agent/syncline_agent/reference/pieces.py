"""What one rank of a reference engine holds, as values: pieces of tensors, the parameters that they lie in, and the matrices
that parameters are. `slicing` says which; this only says what they are, and how the arm reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from syncline_agent.arm.layout import Block, row_major
from syncline_agent.reference.formats import Format


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor, and where it lies in a parameter. All numbers are units, as in arm.layout."""

    tensor: int
    start: tuple[int, ...]
    size: tuple[int, ...]
    at: tuple[int, ...]
    """Index of its first unit in the parameter."""
    axes: tuple[int, ...]
    """The parameter's dimension along which each of the tensor's lies."""

    def lies(self, shape: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Its first unit and its strides in a parameter of that shape, which lies row by row."""
        strides = row_major(shape)
        offset = sum(index * stride for index, stride in zip(self.at, strides, strict=True))
        return offset, tuple(strides[axis] for axis in self.axes)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One allocation, and what of the version lies in it; the rest is padding."""

    dtype: str
    """A safetensors name."""
    shape: tuple[int, ...]
    """In units."""
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights that are multiplied with at once: rows of several tensors below each other, of one expert or of many."""

    format: Format
    rows: tuple[int, ...]
    """Of each of the tensors."""
    columns: int
    scales: tuple[str, ...] = ()
    """Endings of the names of the parameters that it takes to widen the weights, in the format's order."""
    block: tuple[int, int] = (1, 1)
    """Rows and columns that share a scale; 0: all."""


@dataclass(frozen=True, slots=True)
class Slices:
    """All that one rank holds."""

    parameters: Mapping[str, Parameter]
    matrices: Mapping[str, Matrix]
    """By the beginning of their parameters' names."""
    apart: Mapping[str, Sequence[Sequence[str]]]
    """Matrices that are not one in memory because their tensors are stored in different ways: of each expert that is held
    (or of the only one), the matrices that stand in its place."""
    heads: int
    kv_heads: int
    vocab: range
    """Rows of embedding and head, padding included."""
    first_expert: int
    experts: int

    def blocks(self) -> list[Block]:
        """The same as the arm's layout has it: a store a parameter, in order."""
        found: list[Block] = []
        for store, parameter in enumerate(self.parameters.values()):
            for piece in joined(parameter.pieces):
                offset, strides = piece.lies(parameter.shape)
                found.append(Block(piece.tensor, piece.start, piece.size, store, offset, strides))
        return found


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The same units in fewer pieces: what continues a piece in tensor and parameter alike is part of it, so that a stack
    of experts that lies as it is stored is one."""
    found: list[Piece] = []
    for piece in pieces:
        found.append(piece)
        while len(found) > 1:
            both = _both(found[-2], found[-1])
            if both is None:
                break
            found[-2:] = [both]
    return found


def _both(one: Piece, other: Piece) -> Piece | None:
    if (one.tensor, one.axes) != (other.tensor, other.axes):
        return None
    differ = [d for d, (a, b) in enumerate(zip(one.start, other.start, strict=True)) if a != b]
    if len(differ) != 1:
        return None
    (along,) = differ
    if other.start[along] != one.start[along] + one.size[along]:
        return None
    if any(a != b for d, (a, b) in enumerate(zip(one.size, other.size, strict=True)) if d != along):
        return None
    moved = {d: b - a for d, (a, b) in enumerate(zip(one.at, other.at, strict=True)) if a != b}
    if moved != {one.axes[along]: one.size[along]}:
        return None
    size = tuple(n + (other.size[along] if d == along else 0) for d, n in enumerate(one.size))
    return replace(one, size=size)
