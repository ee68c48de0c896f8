"""A view to encode: a tensor table and the units of its tensors. The real one is grpo-a's, which only a checkout has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncline.testing import grpo_a
from syncline.wire.tensors import TensorSpec, TensorTable, split_axis

Units = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a view."""

    dtype: str
    shape: tuple[int, ...]
    """In elements."""
    units: Units


@dataclass(frozen=True, slots=True)
class View:
    """Weights as an engine serves them."""

    table: TensorTable
    units: list[Units]
    """Of each tensor, flat, in the table's order."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> View:
        """From tensors by name, with the default split axes."""
        ordered = sorted(tensors.items())
        table = TensorTable(
            tensors=[
                TensorSpec(name=n, dtype=t.dtype, shape=list(t.shape), axis=split_axis(n, list(t.shape)))
                for n, t in ordered
            ]
        )
        return cls(table, [t.units.reshape(-1) for _, t in ordered])


@dataclass(frozen=True, slots=True)
class Flat:
    """Everything of one dtype in two views, end to end: formats and bounds beside ours know no tensors and pay for none."""

    dtype: str
    old: Units
    new: Units
    positions: NDArray[np.int64]
    """Where they differ."""

    @property
    def before(self) -> Units:
        return self.old[self.positions]

    @property
    def after(self) -> Units:
        return self.new[self.positions]


def flattened(old: View, new: View) -> list[Flat]:
    """Two views of one table, a dtype at a time."""
    found: list[Flat] = []
    for dtype in sorted({spec.dtype for spec in old.table.tensors}):
        of_dtype = [i for i, spec in enumerate(old.table.tensors) if spec.dtype == dtype]
        before, after = (np.concatenate([view.units[i] for i in of_dtype]) for view in (old, new))
        found.append(Flat(dtype, before, after, np.flatnonzero(before != after)))
    return found


def grpo_a_views() -> Iterator[View]:
    """The BF16 view before the first of the sixteen steps, and after each. NotFound outside a checkout."""
    for weights in chain([grpo_a.base()], grpo_a.steps()):
        yield View.of({name: Tensor("BF16", bits.shape, bits.reshape(-1)) for name, bits in weights.items()})


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest BF16, ties to even. Finite values only."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Values of BF16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
