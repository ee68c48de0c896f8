"""Whether an engine's own checksums prove that it holds a checkpoint, bit for bit.

An engine that gives the SHA-256 of each parameter's bytes is matched with what the checkpoint's tensors hash to, alone or
joined as engines join them, whole or as one rank's slice. Every parameter must match and every tensor must be in one that does;
anything else is not proven, and the reason names it. A wrong guess of how an engine joins tensors can therefore only leave a
version unproven. Reads the checkpoint, never the engine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncline.checkpoint import Checkpoint
from syncline.wire import dtypes
from syncline.wire.tensors import TensorTable

JOINED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Modules whose parameters an engine keeps behind one another in one."""
STACKED = {"w13_weight": ("gate_proj.weight", "up_proj.weight"), "w2_weight": ("down_proj.weight",)}
"""Parameters of an `experts` module that hold all experts behind one another."""
VOCABULARY_MULTIPLE = 64
"""Engines pad embeddings with zeros to a multiple of so many rows."""
_RANK = re.compile(r"dp(\d+):pp(\d+):pcp(\d+):tp(\d+):(.+)")


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one parameter would hash to if it were made in one way."""

    sha256: str
    parts: frozenset[tuple[str, int | None]]
    """(tensor, slice): the tensors it holds, whole (None) or one rank's part of them."""


Candidates = Mapping[str, Sequence[Candidate]]


def candidates(names: Iterable[str], checkpoint: Checkpoint) -> dict[str, list[Candidate]]:
    """For each of an engine's parameters, every way that it may be made of the checkpoint. Hashes all of it once."""
    ranked = {key: _ranked(key) for key in names}
    ways = 1 + max((tp for tp, _ in ranked.values()), default=0)
    known: dict[tuple[int, str], list[Candidate]] = {}
    for tp, name in ranked.values():
        if (tp, name) not in known:
            parts = components(name, checkpoint.table)
            known[tp, name] = list(_made(parts, checkpoint, tp, ways)) if parts else []
    return {key: known[rank] for key, rank in ranked.items()}


def unproven(checks: Mapping[str, str], made: Candidates, table: TensorTable) -> str | None:
    """Why the checksums do not prove the checkpoint that `made` was reckoned from; None when they do."""
    ways = 1 + max((_ranked(key)[0] for key in checks), default=0)
    seen: dict[str, set[int | None]] = {}
    for key, sha in checks.items():
        match = next((c for c in made.get(key, ()) if c.sha256 == sha), None)
        if match is None:
            return (
                f"the engine's parameter {key} is not the checkpoint's bits in any known way; it may be repacked, cast or "
                "derived, or it is wrong"
            )
        for tensor, part in match.parts:
            seen.setdefault(tensor, set()).add(part)
    for spec in table.tensors:
        held = seen.get(spec.name, set())
        if spec.units and None not in held and len(held) < ways:
            return f"no parameter of the engine holds all of tensor {spec.name}"
    return None


def components(name: str, table: TensorTable) -> list[str]:
    """The tensors that a parameter holds, in order, by their owners' names; empty when it cannot be told."""
    if name in table.index:
        return [_owner(name, table)]
    module, _, kind = name.rpartition(".")
    parent, _, leaf = module.rpartition(".")
    if leaf == "experts" and kind in STACKED:
        experts: list[str] = []
        while all(f"{module}.{len(experts) // len(STACKED[kind])}.{part}" in table.index for part in STACKED[kind]):
            number = len(experts) // len(STACKED[kind])
            experts += [_owner(f"{module}.{number}.{part}", table) for part in STACKED[kind]]
        return experts
    parts = [f"{parent}.{part}.{kind}" for part in JOINED.get(leaf, ())]
    return [_owner(part, table) for part in parts] if parts and all(part in table.index for part in parts) else []


def _owner(name: str, table: TensorTable) -> str:
    return table.tensors[table.index[name]].name


def _ranked(key: str) -> tuple[int, str]:
    found = _RANK.fullmatch(key)
    return (int(found[4]), found[5]) if found else (0, key)


def _made(parts: Sequence[str], checkpoint: Checkpoint, tp: int, ways: int) -> Iterator[Candidate]:
    whole, rows, columns = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    by_rows = by_columns = ways > 1
    shape: Sequence[int] = ()
    unit_bytes = 1
    for part in parts:
        spec = checkpoint.table.tensors[checkpoint.table.index[part]]
        shape, unit_bytes = dtypes.unit_shape(spec.dtype, spec.shape), spec.unit_bytes
        units = checkpoint.units(part).reshape(shape)
        whole.update(_bytes(units))
        by_rows = by_rows and units.ndim >= 1 and shape[0] % ways == 0
        by_columns = by_columns and units.ndim == 2 and shape[1] % ways == 0
        if by_rows:
            rows.update(_bytes(np.split(units, ways)[tp]))
        if by_columns:
            columns.update(_bytes(np.split(units, ways, axis=1)[tp]))
    yield Candidate(whole.hexdigest(), frozenset((part, None) for part in parts))
    if by_rows:
        yield Candidate(rows.hexdigest(), frozenset((part, tp) for part in parts))
    if by_columns:
        yield Candidate(columns.hexdigest(), frozenset((part, tp) for part in parts))
    if len(parts) == 1 and len(shape) == 2 and ways == 1 and shape[0] % VOCABULARY_MULTIPLE:
        whole.update(bytes(-shape[0] % VOCABULARY_MULTIPLE * shape[1] * unit_bytes))
        yield Candidate(whole.hexdigest(), frozenset((part, None) for part in parts))


def _bytes(units: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(units).reshape(-1).view(np.uint8).data
