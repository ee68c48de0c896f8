"""Live weights that the CPU computes with: numpy stores that share the engine's own memory, changed by compiled loops.

It never copies a tensor; beside the stores it holds a shadow of each frame that is held in part, and what is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from syncline import delta, faults
from syncline.checkpoint import Checkpoint
from syncline.delta import Delta, Place, StagedFrame, StagedTensor
from syncline.errors import LayoutRefused
from syncline.kernels import frames as kernels
from syncline.kernels.digest import digest_frame
from syncline.wire.digest import Digest, seeds, total
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Frame, Tiling
from syncline_agent.arm.layout import Layout, end_of, shape_of
from syncline_agent.arm.memory import Changes
from syncline_agent.arm.placing import InPlace, Part, Strewn, place
from syncline_agent.arm.strewn import StrewnChange, change_strewn, collect, digest_spot

Units = NDArray[Any]
"""A flat, contiguous row of unsigned units (wire.dtypes)."""
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


class HostMemory:
    """A `Memory` of numpy stores."""

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
        self._shadows: dict[tuple[int, int], Units] = {}
        for tensor, spec in enumerate(layout.table.tensors):
            for frame in self._strewn(tensor) if layout.holds_part(tensor) else ():
                if frame.is_whole:
                    continue
                if loaded is None:
                    raise LayoutRefused(
                        f"frame {frame.index} of {spec.name} is held in part; give the checkpoint that was loaded"
                    )
                self._shadows[tensor, frame.index] = kernels.view(loaded(spec.name), frame.frame).copy()

    @classmethod
    def whole(cls, table: TensorTable, tiling: Tiling, tensors: Mapping[str, Units]) -> Self:
        """Every owner of the table by its name, as flat units of its own. LayoutRefused by name where one does not fit."""
        check_fits(table, tensors)
        return cls(Layout.whole(table), tiling, [tensors[spec.name] for spec in table.tensors])

    @property
    def shadow_bytes(self) -> int:
        """Host memory beside the stores, for as long as they live."""
        return sum(shadow.nbytes for shadow in self._shadows.values())

    def parts(self, tensor: int) -> Sequence[Part]:
        return self._places(tensor).parts

    def digests(self, tensor: int, parts: range) -> Sequence[Digest]:
        places = self._places(tensor)
        return [self._digest(tensor, part, places.frames[places.parts[part].frame]) for part in parts]

    def stage(self, deltas: Sequence[Delta], *, executor: Executor | None = None) -> HostChanges:
        changes: list[_Change] = []
        for tensor in sorted({t for parsed in deltas for t in parsed.tensors}):
            before = partial(self._before, tensor)
            staged = delta.stage_tensor(self.table, self.tiling, tensor, before, deltas, executor=executor)
            frames = self._places(tensor).frames
            in_place = [f for f in staged.frames if isinstance(frames[f.frame], InPlace)]
            strewn = [f for f in staged.frames if isinstance(frames[f.frame], Strewn)]
            self._add(changes, tensor, in_place, strewn)
        return HostChanges(changes)

    def stage_checkpoint(self, checkpoint: Checkpoint, *, executor: Executor | None = None) -> HostChanges:
        changes: list[_Change] = []
        for tensor, spec in enumerate(self.table.tensors):
            new = checkpoint.units(spec.name)
            in_place = partial(self._in_place, tensor)
            staged = delta.stage_whole(spec, self.tiling, tensor, in_place, new, executor=executor)
            strewn = [self._differing(tensor, frame, new) for frame in self._strewn(tensor)]
            self._add(changes, tensor, staged.frames, [frame for frame in strewn if frame.positions.size])
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
        for spec in {s.unit_bytes: s for s in self.table.tensors}.values():
            tiny = spec.model_copy(
                update={"shape": [8 * spec.unit_bytes], "dtype": f"U{8 * spec.unit_bytes}", "axis": 0}
            )
            old, new = (np.full(tiny.units, bits, f"<u{spec.unit_bytes}") for bits in (0, 1))
            memory = HostMemory.whole(TensorTable(tensors=[tiny]), self.tiling, {tiny.name: old})
            changes: list[_Change] = []
            memory._add(changes, 0, delta.stage_whole(tiny, self.tiling, 0, old, new).frames, [])
            memory._write(changes[0], undo=False)
            memory._stands(changes[0], undo=False)
            memory.digests(0, range(1))

    def _strewn(self, tensor: int) -> Iterator[Strewn]:
        return (frame for frame in self._places(tensor).frames.values() if isinstance(frame, Strewn))

    def _in_place(self, tensor: int, index: int) -> Place | None:
        frame = self._places(tensor).frames.get(index)
        return Place(self._stores[frame.store], frame.there) if isinstance(frame, InPlace) else None

    def _before(self, tensor: int, index: int) -> Place | None:
        """What a delta of the frame is decoded against."""
        frame = self._places(tensor).frames.get(index)
        if not isinstance(frame, Strewn):
            return self._in_place(tensor, index)
        shadow = self._shadows.get((tensor, index))
        units = collect(frame, self._stores, None) if shadow is None else shadow
        return Place(units, Frame(0, 1, units.size, units.size))

    def _differing(self, tensor: int, frame: Strewn, new: Units) -> StagedFrame:
        """Where the frame's live units, or those of its shadow, are not those of the whole tensor `new`."""
        wanted, shadow = kernels.view(new, frame.frame), self._shadows.get((tensor, frame.index))
        found = collect(frame, self._stores, shadow)
        differs = found != wanted
        if shadow is not None:
            differs |= shadow != wanted
        positions = np.flatnonzero(differs).astype(np.uint32)
        return StagedFrame(
            frame.index, positions, wanted[positions], (found if shadow is None else shadow)[positions], Digest()
        )

    def _add(
        self, changes: list[_Change], tensor: int, in_place: Sequence[StagedFrame], strewn: Sequence[StagedFrame]
    ) -> None:
        """Add what changes in a tensor, if anything does."""
        if not in_place and not strewn:
            return
        spec, places = self.table.tensors[tensor], self._places(tensor)
        digests: dict[int, Digest] = {}
        held: dict[int, Place] = {}
        for frame in in_place:
            lies = places.frames[frame.frame]
            assert isinstance(lies, InPlace)
            held[frame.frame] = Place(self._stores[lies.store], lies.there)
            digests[lies.part] = frame.digest_change
        of_frame: dict[int, StrewnChange] = {}
        for frame in strewn:
            lies = places.frames[frame.frame]
            assert isinstance(lies, Strewn)
            shadowed = (tensor, frame.frame) in self._shadows
            of_frame[frame.frame] = change = change_strewn(
                lies, shape_of(spec), self._stores, frame, shadowed=shadowed, seed=self._seeds[tensor]
            )
            digests |= change.digests
        whole = StagedTensor(
            tensor,
            in_place,
            sum(int(frame.positions.size) for frame in in_place),
            total(frame.digest_change for frame in in_place),
        )
        changes.append(_Change(tensor, whole, held, of_frame, digests))

    def _write(self, change: _Change, *, undo: bool) -> None:
        spec = self.table.tensors[change.tensor]
        delta.scatter(spec, self.tiling, change.places.get, change.in_place, undo=undo)
        for index, strewn in change.strewn.items():
            for write in strewn.writes:
                self._stores[write.store][write.places] = write.old if undo else write.new
            shadow = strewn.shadow
            if shadow is not None:
                self._shadows[change.tensor, index][shadow.positions] = shadow.old if undo else shadow.new

    def _stands(self, change: _Change, *, undo: bool) -> bool:
        spec = self.table.tensors[change.tensor]
        if not delta.read_back(spec, self.tiling, change.places.get, change.in_place, undo=undo):
            return False
        for index, strewn in change.strewn.items():
            for write in strewn.writes:
                if not np.array_equal(self._stores[write.store][write.places], write.old if undo else write.new):
                    return False
            shadow = strewn.shadow
            if shadow is not None:
                found = self._shadows[change.tensor, index][shadow.positions]
                if not np.array_equal(found, shadow.old if undo else shadow.new):
                    return False
        return True

    def _digest(self, tensor: int, part: int, frame: InPlace | Strewn) -> Digest:
        if isinstance(frame, InPlace):
            return digest_frame(self._stores[frame.store], frame.there, frame.frame, self._seeds[tensor])
        shape = shape_of(self.table.tensors[tensor])
        return total(
            digest_spot(spot, shape, self._stores, self._seeds[tensor]) for spot in frame.spots if spot.part == part
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
