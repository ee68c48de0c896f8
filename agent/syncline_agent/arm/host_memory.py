"""Live weights that the CPU computes with: numpy stores that share the engine's own memory, changed by compiled loops.

It never copies a tensor; beside the stores it holds a shadow of each frame that is held in part, and what is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from syncline import delta, faults
from syncline.checkpoint import Checkpoint
from syncline.delta import Delta, Place, StagedTensor
from syncline.delta.warming import compile_reading
from syncline.errors import EngineUnavailable, LayoutRefused
from syncline.kernels.digest import digest_frame
from syncline.wire.digest import Digest, seeds, total
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.layout import Layout, end_of
from syncline_agent.arm.memory import Changes
from syncline_agent.arm.placing import InPlace, Part, Strewn, place
from syncline_agent.arm.shadows import Shadows, StrewnChanges
from syncline_agent.arm.strewn import HostStores, StrewnChange

Units = NDArray[Any]
"""A flat, contiguous row of unsigned units (wire.dtypes)."""
SLICE_UNITS = 1 << 20
"""Summed up by one core in about a millisecond."""
_PLACED = 1024
"""Tensors whose frames' places are remembered: hundreds of bytes a frame, too much for a hundred thousand experts."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What changes in one tensor, as far as it is held or shadowed."""

    tensor: int
    in_place: StagedTensor
    places: Mapping[int, Place]
    """Of its frames."""
    strewn: Mapping[int, StrewnChange]
    """By frame."""
    digests: Mapping[int, Digest]

    @property
    def changed(self) -> int:
        return self.in_place.changed + sum(change.changed for change in self.strewn.values())

    @property
    def nbytes(self) -> int:
        return self.in_place.nbytes + sum(change.nbytes for change in self.strewn.values())


@dataclass(frozen=True, slots=True)
class HostChanges:
    """Absolute bits for places of host memory (memory.Changes)."""

    by_tensor: Sequence[_Change]

    @property
    def tensors(self) -> Sequence[int]:
        return [change.tensor for change in self.by_tensor if change.changed]

    @property
    def changed(self) -> int:
        return sum(change.changed for change in self.by_tensor)

    @property
    def nbytes(self) -> int:
        return sum(change.nbytes for change in self.by_tensor)

    @property
    def digests(self) -> Mapping[int, Mapping[int, Digest]]:
        return {change.tensor: change.digests for change in self.by_tensor if change.changed}

    @property
    def sums(self) -> Mapping[int, Digest]:
        return {tensor: total(parts.values()) for tensor, parts in self.digests.items()}


class HostMemory:
    """A `Memory` of numpy stores."""

    slice_units = SLICE_UNITS

    def __init__(
        self,
        layout: Layout,
        tiling: Tiling,
        stores: Sequence[Units],
        *,
        loaded: Callable[[str], Units] | None = None,
    ) -> None:
        """`stores`: flat and writable, in the layout's order. `loaded` gives a tensor by name, whole, at the version that
        the stores hold: what is not held of a frame is kept from it. It is not called later, and need not be given where
        every frame is held whole. LayoutRefused by name where the stores do not fit the layout."""
        _check_stores(layout, stores)
        self.table, self.layout, self.tiling = layout.table, layout, tiling
        self._stores = stores
        self._places = lru_cache(maxsize=_PLACED)(lambda tensor: place(layout, tensor, tiling))
        self._seeds = [seeds(spec.name) for spec in layout.table.tensors]
        self._shadows = Shadows(layout, tiling, self._places, HostStores(stores), loaded)

    @classmethod
    def whole(cls, table: TensorTable, tiling: Tiling, tensors: Mapping[str, Units]) -> Self:
        """Every owner of the table by its name, as flat units of its own. LayoutRefused by name where one does not fit."""
        check_fits(table, tensors)
        return cls(Layout.whole(table), tiling, [tensors[spec.name] for spec in table.tensors])

    @property
    def shadow_bytes(self) -> int:
        """Host memory beside the stores, for as long as they live."""
        return self._shadows.nbytes

    def parts(self, tensor: int) -> Sequence[Part]:
        return self._places(tensor).parts

    def digests(self, tensor: int, parts: range) -> Sequence[Digest]:
        places = self._places(tensor)
        return [self._digest(tensor, part, places.frames[places.parts[part].frame]) for part in parts]

    def stage(self, deltas: Sequence[Delta], *, executor: Executor | None = None) -> HostChanges:
        return _with_room(lambda: self._stage(deltas, executor))

    def stage_checkpoint(self, checkpoint: Checkpoint, *, executor: Executor | None = None) -> HostChanges:
        return _with_room(lambda: self._stage_checkpoint(checkpoint, executor))

    def _stage(self, deltas: Sequence[Delta], executor: Executor | None) -> HostChanges:
        changes: list[_Change] = []
        for tensor in sorted({t for parsed in deltas for t in parsed.tensors}):
            in_place = partial(self._in_place, tensor)
            staged = delta.stage_tensor(self.table, self.tiling, tensor, in_place, deltas, executor=executor)
            self._add(changes, staged, self._shadows.stage(tensor, deltas, executor=executor))
        return HostChanges(changes)

    def _stage_checkpoint(self, checkpoint: Checkpoint, executor: Executor | None) -> HostChanges:
        changes: list[_Change] = []
        for tensor, spec in enumerate(self.table.tensors):
            new = checkpoint.units(spec.name)
            in_place = partial(self._in_place, tensor)
            staged = delta.stage_whole(spec, self.tiling, tensor, in_place, new, executor=executor)
            self._add(changes, staged, self._shadows.stage_whole(tensor, new))
        return HostChanges(changes)

    def scatter(self, changes: Changes, *, undo: bool) -> None:
        assert isinstance(changes, HostChanges)
        half = len(changes.by_tensor) // 2
        for done, change in enumerate(changes.by_tensor):
            if done == half:
                faults.reach("apply.scattering")
            self._write(change, undo=undo)
        if not changes.by_tensor:
            faults.reach("apply.scattering")

    def read_back(self, changes: Changes, *, undo: bool) -> Sequence[str]:
        assert isinstance(changes, HostChanges)
        return [
            self.table.tensors[change.tensor].name
            for change in changes.by_tensor
            if not self._stands(change, undo=undo)
        ]

    def warm_up(self) -> None:
        compile_reading()
        for spec in {s.unit_bytes: s for s in self.table.tensors}.values():
            tiny = spec.model_copy(
                update={"shape": [8 * spec.unit_bytes], "dtype": f"U{8 * spec.unit_bytes}", "axis": 0}
            )
            old, new = (np.full(tiny.units, bits, f"<u{spec.unit_bytes}") for bits in (0, 1))
            memory = HostMemory.whole(TensorTable(tensors=[tiny]), self.tiling, {tiny.name: old})
            changes: list[_Change] = []
            memory._add(changes, delta.stage_whole(tiny, self.tiling, 0, old, new), {})
            memory._write(changes[0], undo=False)
            memory._stands(changes[0], undo=False)
            memory.digests(0, range(1))

    def _in_place(self, tensor: int, index: int) -> Place | None:
        frame = self._places(tensor).frames.get(index)
        return Place(self._stores[frame.store], frame.there) if isinstance(frame, InPlace) else None

    def _add(self, changes: list[_Change], in_place: StagedTensor, strewn: StrewnChanges) -> None:
        """Add what changes in a tensor, if anything does."""
        if not in_place.frames and not strewn:
            return
        places = self._places(in_place.tensor)
        digests: dict[int, Digest] = {}
        held: dict[int, Place] = {}
        for frame in in_place.frames:
            lies = places.frames[frame.frame]
            assert isinstance(lies, InPlace)
            held[frame.frame] = Place(self._stores[lies.store], lies.there)
            digests[lies.part] = frame.digest_change
        for change in strewn.values():
            digests |= change.digests
        changes.append(_Change(in_place.tensor, in_place, held, strewn, digests))

    def _write(self, change: _Change, *, undo: bool) -> None:
        spec = self.table.tensors[change.tensor]
        delta.scatter(spec, self.tiling, change.places.get, change.in_place, undo=undo)
        for strewn in change.strewn.values():
            for write in strewn.writes:
                self._stores[write.store][write.places] = write.old if undo else write.new
        self._shadows.write(change.tensor, change.strewn, undo=undo)

    def _stands(self, change: _Change, *, undo: bool) -> bool:
        spec = self.table.tensors[change.tensor]
        if not delta.read_back(spec, self.tiling, change.places.get, change.in_place, undo=undo):
            return False
        for strewn in change.strewn.values():
            for write in strewn.writes:
                if not np.array_equal(self._stores[write.store][write.places], write.old if undo else write.new):
                    return False
        return self._shadows.stand(change.tensor, change.strewn, undo=undo)

    def _digest(self, tensor: int, part: int, frame: InPlace | Strewn) -> Digest:
        if isinstance(frame, InPlace):
            return digest_frame(self._stores[frame.store], frame.there, frame.frame, self._seeds[tensor])
        return self._shadows.digest(tensor, part, frame)


def _with_room(work: Callable[[], HostChanges]) -> HostChanges:
    """EngineUnavailable where the host has no memory for what is staged: nothing is written by then."""
    try:
        return work()
    except MemoryError as error:
        reason = str(error) or "no reason given"
    # Outside the handler: with the error goes what was staged so far, which its frames held.
    raise EngineUnavailable(
        f"no host memory for the changes ({reason}); nothing was written: leave the engine's host more, or restart the"
        " engine from a checkpoint"
    )


def check_fits(table: TensorTable, tensors: Mapping[str, Units]) -> None:
    """Every owner of the table is there as flat writable units of its width and number, else LayoutRefused by name."""
    for spec in table.tensors:
        view = tensors.get(spec.name)
        if view is None:
            raise LayoutRefused(f"the engine has no tensor {spec.name}, which the version's table names")
        wanted = np.dtype(f"<u{spec.unit_bytes}")
        if view.dtype != wanted or view.shape != (spec.units,) or not view.flags.c_contiguous:
            raise LayoutRefused(
                f"tensor {spec.name} is {view.dtype} {view.shape} in the engine; {spec.dtype} {spec.shape} needs"
                f" {spec.units} contiguous units of {wanted}"
            )
        if not view.flags.writeable:
            raise LayoutRefused(f"tensor {spec.name} is read-only memory; the arm could not change it")


def _check_stores(layout: Layout, stores: Sequence[Units]) -> None:
    for tensor, spec in enumerate(layout.table.tensors):
        wanted = np.dtype(f"<u{spec.unit_bytes}")
        for block in layout.blocks[tensor]:
            if block.store >= len(stores):
                raise LayoutRefused(f"{spec.name} lies in store {block.store} of {len(stores)}")
            store = stores[block.store]
            if store.dtype != wanted or store.ndim != 1 or not store.flags.c_contiguous or not store.flags.writeable:
                raise LayoutRefused(
                    f"{spec.name} lies in store {block.store}, which is {store.dtype} {store.shape}; it needs a flat,"
                    f" contiguous, writable row of {wanted}"
                )
            if end_of(block) > store.size:
                raise LayoutRefused(f"{spec.name} lies beyond the {store.size} units of store {block.store}")
