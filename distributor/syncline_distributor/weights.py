"""What a trainer hands to `publish`, seen as one source of flat unit views, a tensor at a time.

A source never holds more than one tensor beyond what the trainer itself holds: `units` may reuse its buffer, so a view
is good until the next call. Tensors of one storage are tied: they are one tensor with aliases.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from syncline.checkpoint.headers import METADATA
from syncline.checkpoint.ties import EMBEDDINGS, HEADS
from syncline.errors import LayoutRefused, TiedWeightsDiffer
from syncline.wire import dtypes
from syncline.wire.tensors import COLUMN_SPLIT, TensorSpec, TensorTable, split_axis, table_of

Files = Mapping[str, bytes | Path]
"""What belongs beside the weights in a servable checkpoint (config.json, tokenizer, …), by file name."""
UNIT_TYPES: Mapping[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_NUMPY_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
"""The names below the first two lines are those that extension dtypes for NumPy use."""


@runtime_checkable
class WeightSource(Protocol):
    """One set of weights to publish."""

    @property
    def table(self) -> TensorTable:
        """Names, dtypes, shapes and ties."""
        ...

    def units(self, tensor: int) -> NDArray[Any]:
        """The tensor's flat unit view; valid until the next call."""
        ...

    def files(self) -> Files:
        """Everything that is not weights."""
        ...

    def check(self) -> None:
        """Raise SourceNotReady when the source changed since its table was read."""
        ...


@dataclass(frozen=True, slots=True)
class Bits:
    """A tensor given by its bits, for dtypes that NumPy cannot name: `Bits("BF16", (4, 8), array_of_uint16)`."""

    dtype: str
    shape: tuple[int, ...]
    """In elements."""
    units: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One named tensor of a mapping."""

    dtype: str
    shape: tuple[int, ...]
    storage: tuple[Any, ...]
    """Equal for tensors that are the same bytes of the same memory."""
    read: Callable[[], NDArray[Any]]
    """Its flat units; copies only where it must (another device, strides)."""
    tensor: Any = None
    """The torch tensor that it is, for a base on a device; None for other leaves."""


@dataclass(slots=True)
class MappingWeights:
    """A state dict or a mapping of arrays."""

    leaves: Mapping[str, Leaf]
    beside: Files = field(default_factory=dict[str, "bytes | Path"])
    column_split: tuple[str, ...] = COLUMN_SPLIT
    table: TensorTable = field(init=False)

    def __post_init__(self) -> None:
        groups: dict[tuple[Any, ...], list[str]] = {}
        for name, leaf in self.leaves.items():
            empty = prod(leaf.shape) == 0
            groups.setdefault((name,) if empty else leaf.storage, []).append(name)
        self._tie_as_configured(groups)
        self.table = make_table(
            [(names, self.leaves[names[0]].dtype, self.leaves[names[0]].shape) for names in groups.values()],
            self.column_split,
        )

    def _tie_as_configured(self, groups: dict[tuple[Any, ...], list[str]]) -> None:
        if not tied_by_config(self.beside):
            return
        head = next((k for k, names in groups.items() if any(is_output_head(n) for n in names)), None)
        embedding = next((k for k, names in groups.items() if any(n.endswith(EMBEDDINGS) for n in names)), None)
        if head is None or embedding is None or head == embedding:
            return
        one, other = self.leaves[groups[head][0]], self.leaves[groups[embedding][0]]
        if (one.dtype, one.shape) != (other.dtype, other.shape) or not np.array_equal(one.read(), other.read()):
            raise TiedWeightsDiffer(
                f"{groups[head][0]} and {groups[embedding][0]} are tied in config.json but hold different bits; "
                "tie them in the model or set tie_word_embeddings to false"
            )
        groups[embedding] += groups.pop(head)

    def units(self, tensor: int) -> NDArray[Any]:
        spec = self.table.tensors[tensor]
        flat = self.leaves[spec.name].read()
        if flat.size != spec.units or flat.itemsize != spec.unit_bytes:
            raise LayoutRefused(
                f"{spec.name} gave {flat.size} units of {flat.itemsize} bytes, not {spec.units} of {spec.unit_bytes}"
            )
        return flat

    def files(self) -> Files:
        return self.beside

    def check(self) -> None:
        """A mapping belongs to the caller, who does not change it during a publish."""


def is_output_head(name: str) -> bool:
    """Whether a tied tensor of this name gives way to the embedding: engines load the embedding's name."""
    return name.endswith(HEADS)


def owner_first(names: list[str]) -> list[str]:
    """Names of one storage, its owner first: the embedding rather than the output head, then the first by code
    point."""
    return sorted(names, key=lambda n: (is_output_head(n), n))


def make_table(groups: list[tuple[list[str], str, tuple[int, ...]]], column_split: tuple[str, ...]) -> TensorTable:
    """A table from (names of one storage, dtype, shape). LayoutRefused for what the format or a servable checkpoint
    cannot hold."""
    if not groups:
        raise LayoutRefused("there are no tensors to publish; no engine could load such a version")
    specs: list[TensorSpec] = []
    for names, dtype, shape in groups:
        owner, *aliases = owner_first(names)
        if METADATA in names:
            raise LayoutRefused(f"a tensor cannot be called {METADATA}: safetensors keeps that name for itself")
        axis = split_axis(owner, list(shape), column_split)
        try:
            specs.append(TensorSpec(name=owner, dtype=dtype, shape=list(shape), axis=axis, aliases=sorted(aliases)))
        except ValueError as error:
            raise LayoutRefused(f"tensor {owner!r} ({dtype} {list(shape)}) cannot be published: {error}") from error
    return table_of(sorted(specs, key=lambda s: s.name))


def tied_by_config(files: Files) -> bool:
    """Whether config.json says that input and output embeddings are one tensor."""
    raw = files.get("config.json")
    if raw is None:
        return False
    try:
        config: Any = json.loads(raw if isinstance(raw, bytes) else raw.read_bytes())
    except (ValueError, OSError):
        return False
    return isinstance(config, dict) and bool(config.get("tie_word_embeddings", False))  # pyright: ignore[reportUnknownMemberType]


def flat_units(array: NDArray[Any], unit_bytes: int) -> NDArray[Any]:
    """The array's bytes as one flat row of units, without a copy where it is C-contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(UNIT_TYPES[unit_bytes])


def leaf(name: object, value: object) -> Leaf:
    """A mapping's value as a leaf. LayoutRefused for what is no tensor, or has no name."""
    if not isinstance(name, str):
        raise LayoutRefused(f"{name!r} is a {type(name).__name__}; a tensor's name is a string")
    if not name:
        raise LayoutRefused("a tensor has an empty name; give it one")
    if isinstance(value, Bits):
        expected = dtypes.dtype(value.dtype).unit_bytes
        if value.units.itemsize != expected or value.units.size != dtypes.units(value.dtype, value.shape):
            raise LayoutRefused(
                f"{name}: {value.dtype} {list(value.shape)} needs "
                f"{dtypes.units(value.dtype, value.shape)} units of {expected} bytes, "
                f"not {value.units.size} of {value.units.itemsize}"
            )
        if value.units.dtype.byteorder == ">":
            raise LayoutRefused(f"{name}: the units are big-endian; give them in little-endian order")
        return Leaf(
            value.dtype, value.shape, _memory(value.units, value.dtype), lambda: flat_units(value.units, expected)
        )
    if isinstance(value, np.ndarray):
        array: NDArray[Any] = value  # pyright: ignore[reportUnknownVariableType]
        kind = _NUMPY_NAMES.get(array.dtype.name)
        if kind is None or array.dtype.byteorder == ">":
            raise LayoutRefused(
                f"{name}: NumPy dtype {array.dtype} is not one of {', '.join(_NUMPY_NAMES)}; give Bits instead"
            )
        return Leaf(kind, array.shape, _memory(array, kind), lambda: flat_units(array, dtypes.dtype(kind).unit_bytes))
    torch_module = sys.modules.get("torch")
    if torch_module is not None and isinstance(value, torch_module.Tensor):
        from syncline_distributor import torch_weights  # torch is loaded already: the trainer's own

        return torch_weights.leaf(name, cast(Any, value))
    instead = (
        "pass model.state_dict(), flat: one tensor a name"
        if isinstance(value, Mapping)
        else "make it one, or leave it out"
    )
    raise LayoutRefused(f"{name} is a {type(value).__name__}, not a torch.Tensor, a NumPy array or Bits; {instead}")


def _memory(array: NDArray[Any], kind: str) -> tuple[Any, ...]:
    return ("cpu", array.__array_interface__["data"][0], kind, array.shape, array.strides)


def mapping_weights(
    mapping: Mapping[str, object], *, files: Files | None = None, column_split: tuple[str, ...] = COLUMN_SPLIT
) -> MappingWeights:
    """A source from a state dict or a mapping of arrays."""
    return MappingWeights({name: leaf(name, value) for name, value in mapping.items()}, files or {}, column_split)
