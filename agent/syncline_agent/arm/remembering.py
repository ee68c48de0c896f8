"""Layouts that were probed before, as files: an engine that starts again as it was need not be probed again.

A file is named after a key of everything that can change where a loader puts things, and so is never wrong, only missing:
the digest of what is loaded would not tell two places of equal bits apart. Whatever cannot be read is no memory, and what
cannot be written is forgotten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3

from syncline.wire.tensors import TensorTable
from syncline_agent.arm.layout import Block
from syncline_agent.arm.probing import Probed, Store
from syncline_agent.arm.reading import span_of

FORMAT = 1


class Parameter(Protocol):
    """A tensor, as far as its place goes."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...
    def stride(self) -> tuple[int, ...]: ...
    def data_ptr(self) -> int: ...
    def element_size(self) -> int: ...


def key_of(table: TensorTable, parameters: Iterable[tuple[str, Parameter]], engine: Mapping[str, object]) -> str:
    """The name of a layout: `engine` is all that the engine was told and built with, as text."""
    held = [(name, list(p.shape), list(p.stride()), str(p.dtype)) for name, p in parameters]
    told = {name: str(value) for name, value in engine.items()}
    body = json.dumps([FORMAT, table.ref().blake3, held, told], sort_keys=True)
    return blake3(body.encode()).hexdigest()


def remember(folder: Path, key: str, probed: Probed) -> None:
    """Write a layout, whole or not at all. One with troubles is not kept. OSError where the folder cannot be written."""
    if probed.troubles:
        return
    stores = [[s.name, s.units, s.unit_bytes] for s in probed.stores]
    blocks = [[b.tensor, b.start, b.size, b.store, b.offset, b.strides] for b in probed.blocks]
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{key}.{os.getpid()}.new"
    new.write_text(json.dumps({"format": FORMAT, "stores": stores, "blocks": blocks}), encoding="ascii")
    new.replace(folder / f"{key}.json")


def recall(folder: Path, key: str, parameters: Iterable[tuple[str, Parameter]]) -> Probed | None:
    """The layout of that key, in these parameters; None where there is none."""
    held = dict(parameters)
    try:
        told = json.loads((folder / f"{key}.json").read_text(encoding="ascii"))
        stores = [Store(name, held[name].data_ptr(), units, width) for name, units, width in told["stores"]]
        blocks = [
            Block(tensor, tuple(start), tuple(size), store, offset, tuple(strides))
            for tensor, start, size, store, offset, strides in told["blocks"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    same = all(
        (span_of(held[store.name].shape, held[store.name].stride()), held[store.name].element_size())
        == (store.units, store.unit_bytes)
        for store in stores
    )
    return Probed(blocks, stores) if same and told.get("format") == FORMAT else None
