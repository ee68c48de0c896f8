"""The strewn frames of one rank: staged on the host, whatever memory they lie in, and the shadows of those held in part.

It reads live memory through `Stores` and writes none: what a change writes there is for the memory itself to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

import numpy as np

from syncline import delta
from syncline.delta import Delta, Place, StagedFrame
from syncline.errors import LayoutRefused
from syncline.kernels import frames as kernels
from syncline.wire.digest import Digest, seeds, total
from syncline.wire.tiling import Frame, Tiling
from syncline_agent.arm.layout import Layout, shape_of
from syncline_agent.arm.placing import Places, Strewn
from syncline_agent.arm.strewn import Stores, StrewnChange, Units, change_strewn, collect, digest_spot

StrewnChanges = Mapping[int, StrewnChange]
"""Of one tensor, by frame."""


class Shadows:
    """What is known of strewn frames beside the stores."""

    def __init__(
        self,
        layout: Layout,
        tiling: Tiling,
        places: Callable[[int], Places],
        stores: Stores,
        loaded: Callable[[str], Units] | None,
    ) -> None:
        """`loaded` as for a memory (host_memory.HostMemory). LayoutRefused by name where it is missing and needed."""
        self._table, self._tiling = layout.table, tiling
        self._places, self._stores = places, stores
        self._seeds = [seeds(spec.name) for spec in layout.table.tensors]
        self.units: dict[tuple[int, int], Units] = {}
        """By tensor and frame: all units of a frame that is held in part."""
        for tensor, spec in enumerate(layout.table.tensors):
            for frame in self.frames(tensor) if layout.holds_part(tensor) else ():
                if frame.is_whole:
                    continue
                if loaded is None:
                    raise LayoutRefused(
                        f"frame {frame.index} of {spec.name} is held in part; give the checkpoint that was loaded"
                    )
                self.units[tensor, frame.index] = kernels.view(loaded(spec.name), frame.frame).copy()

    @property
    def nbytes(self) -> int:
        return sum(shadow.nbytes for shadow in self.units.values())

    def frames(self, tensor: int) -> Iterator[Strewn]:
        """The tensor's strewn frames, ascending."""
        return (frame for frame in self._places(tensor).frames.values() if isinstance(frame, Strewn))

    def before(self, tensor: int, index: int) -> Place | None:
        """What a delta of a strewn frame is decoded against; None for any other frame."""
        frame = self._places(tensor).frames.get(index)
        if not isinstance(frame, Strewn):
            return None
        shadow = self.units.get((tensor, index))
        units = collect(frame, self._stores, None) if shadow is None else shadow
        return Place(units, Frame(0, 1, units.size, units.size))

    def stage(self, tensor: int, deltas: Sequence[Delta], *, executor: Executor | None) -> StrewnChanges:
        """What deltas change in the tensor's strewn frames."""
        if not any(True for _ in self.frames(tensor)):
            return {}
        before = partial(self.before, tensor)
        staged = delta.stage_tensor(self._table, self._tiling, tensor, before, deltas, executor=executor)
        return self.changes(tensor, staged.frames)

    def stage_whole(self, tensor: int, new: Units) -> StrewnChanges:
        """Where the tensor's strewn frames, or their shadows, are not those of a whole tensor."""
        found = (self._differing(tensor, frame, new) for frame in self.frames(tensor))
        return self.changes(tensor, [frame for frame in found if frame.positions.size])

    def changes(self, tensor: int, staged: Sequence[StagedFrame]) -> StrewnChanges:
        """What changes of whole strewn frames write where they are held."""
        of_frame: dict[int, StrewnChange] = {}
        for frame in staged:
            lies = self._places(tensor).frames[frame.frame]
            assert isinstance(lies, Strewn)
            of_frame[frame.frame] = change_strewn(
                lies,
                shape_of(self._table.tensors[tensor]),
                self._stores,
                frame,
                shadowed=(tensor, frame.frame) in self.units,
                seed=self._seeds[tensor],
            )
        return of_frame

    def write(self, tensor: int, changes: StrewnChanges, *, undo: bool) -> None:
        """Bring the shadows to where the writes bring live memory."""
        for index, change in changes.items():
            shadow = change.shadow
            if shadow is not None:
                self.units[tensor, index][shadow.positions] = shadow.old if undo else shadow.new

    def stand(self, tensor: int, changes: StrewnChanges, *, undo: bool) -> bool:
        """Whether the shadows hold what `write` wrote."""
        for index, change in changes.items():
            shadow = change.shadow
            if shadow is not None:
                found = self.units[tensor, index][shadow.positions]
                if not np.array_equal(found, shadow.old if undo else shadow.new):
                    return False
        return True

    def digest(self, tensor: int, part: int, frame: Strewn) -> Digest:
        """What the held units of one part of the frame add to the tensor's digest, read from live memory."""
        shape, seed = shape_of(self._table.tensors[tensor]), self._seeds[tensor]
        return total(digest_spot(spot, shape, self._stores, seed) for spot in frame.spots if spot.part == part)

    def _differing(self, tensor: int, frame: Strewn, new: Units) -> StagedFrame:
        wanted, shadow = kernels.view(new, frame.frame), self.units.get((tensor, frame.index))
        found = collect(frame, self._stores, shadow)
        differs = found != wanted
        if shadow is not None:
            differs |= shadow != wanted
        positions = np.flatnonzero(differs).astype(np.uint32)
        old = (found if shadow is None else shadow)[positions]
        return StagedFrame(frame.index, positions, wanted[positions], old, Digest())
