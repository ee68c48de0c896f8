"""Tensors of a checkpoint folder that Syncline owns, as read-only flat views of its files.

A view maps one tensor and nothing else, and its memory is given back when the last reference to the array goes: whoever
walks a checkpoint tensor by tensor holds one tensor's pages at a time, and those belong to the page cache. Only for
folders whose files nobody shortens; a source that somebody else writes is read by `folder.WeightFolder`.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncline.checkpoint.folder import WeightFolder
from syncline.checkpoint.headers import StoredTensor
from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorTable

Places = Mapping[str, tuple[str, StoredTensor]]
"""File name and place of each tensor."""


def places_of(path: Path, table: TensorTable) -> Places:
    """Where each tensor of the table lies in the folder. LayoutRefused when the folder holds other tensors."""
    with WeightFolder.open(path) as folder:
        places = folder.tensors
    wanted = {spec.name: (spec.dtype, tuple(spec.shape)) for spec in table.tensors}
    found = {name: (place.dtype, place.shape) for name, (_, place) in places.items()}
    if wanted != found:
        odd = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        name = odd[0]
        raise LayoutRefused(
            f"{path} does not hold the tensors of its version: {name} is {found.get(name, 'absent')}, "
            f"should be {wanted.get(name, 'absent')}, and {len(odd) - 1} more differ; materialize it again"
        )
    return places


def let_go(mapped: mmap.mmap | memoryview | NDArray[Any]) -> None:
    """Give back the memory of a mapped file, or of a view of one. The view stays good: what is read of it again comes
    from the page cache. Does nothing for other memory."""
    held: object = mapped
    while isinstance(held, np.ndarray):
        held = held.base  # pyright: ignore[reportUnknownMemberType]
    if isinstance(held, memoryview):
        held = held.obj
    if isinstance(held, mmap.mmap):
        held.madvise(mmap.MADV_DONTNEED)


def mapped_units(file: Path, place: StoredTensor) -> NDArray[Any]:
    """A tensor's units; not aligned in memory where the file does not align them."""
    kind = np.dtype(f"<u{place.unit_bytes}")
    if place.size == 0:
        return np.empty(0, kind)
    first_page = place.offset - place.offset % mmap.ALLOCATIONGRANULARITY
    with file.open("rb") as opened:
        mapping = mmap.mmap(
            opened.fileno(), place.offset + place.size - first_page, access=mmap.ACCESS_READ, offset=first_page
        )
    return np.frombuffer(mapping, np.uint8, place.size, offset=place.offset - first_page).view(kind)
