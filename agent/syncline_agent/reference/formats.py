"""How a checkpoint stores the values of one matrix: which tensors stand for it, by which names, and what of it each unit of
theirs stands for.

Pure. It looks at names, dtypes and shapes only, and refuses by name what the reference engine cannot widen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.layout import shape_of

FLOATS = ("BF16", "F16", "F32")
_SCALES = ("F32", "BF16")
_OF_ACTIVATIONS = ("input_scale", "input_global_scale", "k_scale", "v_scale")
_NIBBLES = 16
"""Numbers of NVFP4 that share a scale."""


class Format(Enum):
    """How the values of a matrix are stored."""

    PLAIN = "plain floats"
    FP8 = "FP8 with a scale a block, a row or a matrix"
    NVFP4 = "NVFP4"
    NVFP4_DIVIDED = "NVFP4 whose scale of all is divided by"


@dataclass(frozen=True, slots=True)
class Kept:
    """One of the tensors that a matrix is stored in."""

    name: str
    """Beyond the matrix's name."""
    role: str
    """The same, whatever the spelling."""
    dtype: str
    unit: tuple[int, ...]
    """Rows and columns of the matrix that a unit stands for, along each of the tensor's dimensions; 0: all of them. Without
    any it is one number for the matrix."""


@dataclass(frozen=True, slots=True)
class Stored:
    """All tensors of a matrix. Matrices whose `Stored` are equal can be one in memory."""

    format: Format
    kept: tuple[Kept, ...]
    """Weights first; then what it takes to widen them, in the format's order; then what is held and not computed with."""
    scales: int = 0
    """Of `kept`, those that it takes to widen the weights."""


def stored(table: TensorTable, base: str, of: tuple[int, int], *, block: tuple[int, int], stacked: bool) -> Stored:
    """How the matrix `base`, of rows and columns, is stored. `stacked`: it is spelled as all experts of a layer in one tensor
    are, whose names have no `.weight`. LayoutRefused, by name, for what cannot be widened."""
    return _Reader(table, base, of, block, stacked).read()


@dataclass(frozen=True, slots=True)
class _Reader:
    table: TensorTable
    base: str
    of: tuple[int, int]
    block: tuple[int, int]
    stacked: bool

    def read(self) -> Stored:
        weight = self._find("weight")
        if weight is None:
            packed = self._find("weight_packed")
            if packed is not None and not self.stacked:
                return self._nvfp4(Format.NVFP4_DIVIDED, packed, "weight_packed", "weight_global_scale")
            raise LayoutRefused(f"missing tensors: the config asks for {self._named('weight')} {list(self.of)}")
        if weight.dtype in FLOATS:
            return Stored(Format.PLAIN, (self._kept("weight", weight, (1, 1)),))
        if weight.dtype == "F8_E4M3":
            role = "weight_scale_inv" if self._find("weight_scale_inv") is not None else "weight_scale"
            scale = self._find(role)
            if scale is not None:
                kept = (self._kept("weight", weight, (1, 1)), self._kept(role, scale, self._grain(scale), _SCALES))
                return Stored(Format.FP8, kept + self._of_activations(), scales=1)
        if weight.dtype in ("U8", "F4") and not self.stacked:
            return self._nvfp4(Format.NVFP4, weight, "weight", "weight_scale_2")
        raise self._without_scales(weight)

    def _nvfp4(self, kind: Format, weight: TensorSpec, named: str, of_all: str) -> Stored:
        scale, all_over = self._find("weight_scale"), self._find(of_all)
        if scale is None or all_over is None or weight.dtype not in ("U8", "F4"):
            raise self._without_scales(weight)
        kept = (
            Kept(self._ending(named), "weight", weight.dtype, (1, 2)),
            self._kept("weight_scale", scale, (1, _NIBBLES), ("F8_E4M3",)),
            self._kept(of_all, all_over, (), ("F32",)),
        )
        return Stored(kind, kept + self._of_activations(), scales=2)

    def _without_scales(self, weight: TensorSpec) -> LayoutRefused:
        return LayoutRefused(
            f"{weight.name} is {weight.dtype} without the scales of FP8 (weight_scale_inv or weight_scale) or NVFP4"
            " (weight_scale and weight_scale_2; with weight_packed weight_global_scale); the reference engine cannot"
            " serve it"
        )

    def _named(self, role: str) -> str:
        return self.base + self._ending(role)

    def _ending(self, role: str) -> str:
        return role.removeprefix("weight") if self.stacked and role.startswith("weight") else f".{role}"

    def _find(self, role: str) -> TensorSpec | None:
        index = self.table.index.get(self._named(role))
        return None if index is None else self.table.tensors[index]

    def _kept(self, role: str, spec: TensorSpec, unit: tuple[int, ...], kinds: tuple[str, ...] = ()) -> Kept:
        if kinds and spec.dtype not in kinds:
            raise LayoutRefused(f"{spec.name} is {spec.dtype}, {' or '.join(kinds)} was expected")
        return Kept(self._ending(role), role, spec.dtype, unit)

    def _of_activations(self) -> tuple[Kept, ...]:
        """Held, so that the version is whole, and not computed with."""
        found = ((role, self._find(role)) for role in _OF_ACTIVATIONS)
        return tuple(self._kept(role, spec, (), ("F32",)) for role, spec in found if spec is not None)

    def _grain(self, scale: TensorSpec) -> tuple[int, ...]:
        """What a scale of FP8 is of, by its shape. One of no shape that is known is taken for one of blocks, and refused
        where that is looked for."""
        shape, (rows, _) = shape_of(scale), self.of
        if len(shape) == 1:
            return () if shape[0] == 1 else (1,)
        blocks = tuple(-(-n // per) for n, per in zip(self.of, self.block, strict=True))
        return (1, 0) if not self.stacked and shape == (rows, 1) and shape != blocks else self.block
