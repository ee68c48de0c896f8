"""Writing a journal's changes into files: read a stretch, set the new units in it, write it back.

Every written value is absolute, so patching may stop anywhere and start over. Scratch is bounded: a stretch of rows, or
one frame. Nothing is synced here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncline.checkpoint.journal import Change
from syncline.errors import SourceInvalid

STRETCH_UNITS = 1 << 20


def patch(descriptors: list[int], changes: Iterable[Change]) -> None:
    """Write all changes; `descriptors` are the open files by the index that changes name."""
    for (file, _), group in groupby(changes, key=lambda c: (c.file, c.offset)):
        for frames in _same_rows(group):
            if frames[0].frame.runs > 1 and frames[0].frame.stride <= STRETCH_UNITS:
                _patch_rows(descriptors[file], frames)
            else:
                for change in frames:
                    _patch_runs(descriptors[file], change)


def _same_rows(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Frames that are bands of columns together, since each touches every row; any other frame by itself."""
    for (runs, _), group in groupby(changes, key=lambda c: (c.frame.runs, c.frame.stride)):
        if runs == 1:
            yield from ([change] for change in group)
        else:
            yield list(group)


def _patch_rows(descriptor: int, changes: list[Change]) -> None:
    """Bands of columns: walk the tensor by stretches of rows and set what each band changes in them."""
    runs, stride = changes[0].frame.runs, changes[0].frame.stride
    step = max(1, STRETCH_UNITS // stride)
    for first in range(0, runs, step):
        last = min(runs, first + step)
        parts: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
        for change in changes:
            length = change.frame.length
            low, high = np.searchsorted(change.positions, [first * length, last * length])
            if low < high:
                positions = change.positions[low:high].astype(np.int64)
                units = change.frame.base + positions // length * stride + positions % length
                parts.append((units, change.new[low:high]))
        if parts:
            _set_units(descriptor, changes[0].offset, parts)


def _patch_runs(descriptor: int, change: Change) -> None:
    """One run of consecutive units at a time."""
    frame = change.frame
    at = 0
    while at < len(change.positions):
        run = int(change.positions[at]) // frame.length
        end = int(np.searchsorted(change.positions, (run + 1) * frame.length))
        units = change.positions[at:end].astype(np.int64) + (frame.base + run * (frame.stride - frame.length))
        _set_units(descriptor, change.offset, [(units, change.new[at:end])])
        at = end


def _set_units(descriptor: int, offset: int, parts: list[tuple[NDArray[np.int64], NDArray[Any]]]) -> None:
    low = min(int(units[0]) for units, _ in parts)
    high = max(int(units[-1]) for units, _ in parts) + 1
    stretch = np.empty(high - low, dtype=parts[0][1].dtype)
    view = stretch.view(np.uint8).data
    start = offset + low * stretch.itemsize
    _whole(os.preadv, descriptor, view, start)
    for units, new in parts:
        stretch[units - low] = new
    _whole(os.pwritev, descriptor, view, start)


def _whole(call: Any, descriptor: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        count: int = call(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise SourceInvalid("a checkpoint file became shorter than its header says; materialize it again")
        done += count
