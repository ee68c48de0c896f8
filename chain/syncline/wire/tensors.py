"""The tensor table: names, dtypes, shapes, split axes and ties of a view.

A table is one content-addressed object that every version with the same tensors shares, so a manifest stays small. Tensors are sorted
by name; a tensor's place in that order is its index everywhere else in the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from syncline.errors import FormatInvalid, LayoutRefused
from syncline.wire import dtypes
from syncline.wire.digest import Digest
from syncline.wire.limits import (
    ALIASES_MAX,
    DIMENSION_MAX,
    FORMAT,
    MANIFEST_MAX_BYTES,
    TENSOR_DIMS_MAX,
    TENSOR_NAME_MAX_BYTES,
    TENSORS_MAX,
)
from syncline.wire.records import ObjectRef, Part, Record, VersionManifest
from syncline.wire.tiling import FrameGrid, Tiling, grid


def _short(name: str) -> str:
    if not name or len(name.encode("utf-8")) > TENSOR_NAME_MAX_BYTES or "\0" in name:
        raise ValueError(f"a tensor name has 1 to {TENSOR_NAME_MAX_BYTES} bytes and no NUL")
    return name


TensorName = Annotated[str, StringConstraints(min_length=1), AfterValidator(_short)]
Dimension = Annotated[int, Field(ge=0, le=DIMENSION_MAX)]


class TensorSpec(Part):
    """One stored tensor, with the names that are tied to it."""

    name: TensorName
    dtype: str
    shape: Annotated[list[Dimension], Field(max_length=TENSOR_DIMS_MAX)]
    """In elements."""
    axis: Annotated[int, Field(ge=0, lt=TENSOR_DIMS_MAX)]
    """Split axis; 0 for a 0-d tensor."""
    aliases: Annotated[list[TensorName], Field(max_length=ALIASES_MAX)] = Field(default_factory=list[TensorName])
    """Other names of the same storage, sorted; they are in no digest and no frame of their own."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.dtype not in dtypes.DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is unknown")
        if self.axis >= max(1, len(self.shape)):
            raise ValueError(f"axis {self.axis} is not one of {len(self.shape)} dimensions")
        if dtypes.units(self.dtype, self.shape) > DIMENSION_MAX:
            raise ValueError("too many units")
        return self

    @property
    def units(self) -> int:
        return dtypes.units(self.dtype, self.shape)

    @property
    def unit_bytes(self) -> int:
        return dtypes.dtype(self.dtype).unit_bytes

    @property
    def size_bytes(self) -> int:
        return self.units * self.unit_bytes

    def grid(self, tiling: Tiling) -> FrameGrid:
        """How the tensor is cut. A packed tensor whose rows are not whole bytes is one flat row and is cut along it."""
        shape = dtypes.unit_shape(self.dtype, self.shape)
        axis = self.axis if len(shape) == max(1, len(self.shape)) else 0
        return grid(shape, axis, tiling)


@dataclass(frozen=True, slots=True, eq=False)
class Grids:
    """How all tensors of a table are cut, an entry a tensor."""

    grids: Sequence[FrameGrid]
    counts: NDArray[np.int64]
    """Frames."""
    least_units: NDArray[np.int64]
    """No frame has fewer."""


class TensorTable(Record):
    """All tensors of a view, sorted by name (code points)."""

    max_bytes: ClassVar[int] = MANIFEST_MAX_BYTES
    format: Literal["syncline/1"] = FORMAT
    kind: Literal["tensors"] = "tensors"
    tensors: Annotated[list[TensorSpec], Field(max_length=TENSORS_MAX)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [t.name for t in self.tensors]
        if names != sorted(set(names)):
            raise ValueError("tensors must be sorted by name, each once")
        every = names + [a for t in self.tensors for a in t.aliases]
        if len(every) != len(set(every)):
            raise ValueError("an alias repeats another name")
        if any(t.aliases != sorted(t.aliases) for t in self.tensors):
            raise ValueError("aliases must be sorted")
        return self

    @cached_property
    def index(self) -> dict[str, int]:
        """Index of a tensor by its name or by an alias."""
        return {n: i for i, t in enumerate(self.tensors) for n in (t.name, *t.aliases)}

    def grids(self, tiling: Tiling) -> Grids:
        """Made once a tiling: a run has one, and every delta is read by it."""
        if tiling not in self._grids:
            grids = [spec.grid(tiling) for spec in self.tensors]
            counts, least = ([grid.count for grid in grids], [grid.least_units for grid in grids])
            self._grids[tiling] = Grids(grids, np.array(counts, np.int64), np.array(least, np.int64))
        return self._grids[tiling]

    @cached_property
    def _grids(self) -> dict[Tiling, Grids]:
        return {}

    @property
    def units(self) -> int:
        return sum(t.units for t in self.tensors)

    @property
    def size_bytes(self) -> int:
        return sum(t.size_bytes for t in self.tensors)

    def ref(self) -> ObjectRef:
        """Where the table is stored."""
        data = self.encode()
        return ObjectRef(blake3=blake3(data).hexdigest(), size=len(data))


_ENTRY_BYTES = 400
"""Of a tensor's entry without its names, at most."""
_MERGE = "stack small tensors into larger ones (the experts of a layer, say), or publish fewer"


def table_of(specs: list[TensorSpec]) -> TensorTable:
    """A table to be published. LayoutRefused for more tensors than one may have, in number or in bytes."""
    if len(specs) > TENSORS_MAX:
        raise LayoutRefused(f"{len(specs)} tensors are more than {TENSORS_MAX}; {_MERGE}")
    table = TensorTable(tensors=specs)
    longest = sum(_ENTRY_BYTES + 6 * sum(len(n.encode()) + 1 for n in (s.name, *s.aliases)) for s in specs)
    if longest > TensorTable.max_bytes:  # else there is no need to write it out to know
        try:
            table.encode()
        except FormatInvalid as error:
            raise LayoutRefused(f"{len(specs)} tensors with their names are too many: {error}; {_MERGE}") from error
    return table


def digests_for(table: TensorTable, manifest: VersionManifest) -> list[Digest]:
    """A version's tensor digests, in the order of its table. FormatInvalid unless there is one a tensor."""
    digests = manifest.digests()
    if len(digests) != len(table.tensors):
        raise FormatInvalid(
            f"version {manifest.version} of {manifest.run}/{manifest.view} has {len(digests)} tensor digests for "
            f"{len(table.tensors)} tensors; do not use it"
        )
    return digests


COLUMN_SPLIT = ("o_proj.weight", "down_proj.weight", "out_proj.weight", "dense_4h_to_h.weight", "w2.weight")
"""Endings of names that tensor parallelism cuts by columns; every other tensor is cut by rows."""


def split_axis(name: str, shape: list[int], column_split: tuple[str, ...] = COLUMN_SPLIT) -> int:
    """Default split axis: the last dimension for names that end as `column_split` says, else the first."""
    if len(shape) >= 2 and prod(shape) > 0 and name.endswith(column_split):
        return len(shape) - 1
    return 0
