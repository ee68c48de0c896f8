"""Live weights on an accelerator, as torch stores: deltas are decoded there, and what is staged stays there until a commit writes it.

Staging and sweeping run on streams of their own beside the engine's; only `scatter` writes, once the device has nothing else to do. Frames
that do not lie as rows are staged on the host. It copies no tensor: beside the stores it holds what is staged, while staging a slab of
frames, and on the host a shadow of each frame that is held in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from syncline import faults
from syncline.checkpoint import Checkpoint
from syncline.delta import Delta
from syncline.delta.device.held import HeldFrame, HeldFrames
from syncline.delta.device.memory import to_device, to_host
from syncline.delta.device.parts import DevicePart, Sums
from syncline.delta.device.slabs import slab_bytes_of
from syncline.delta.device.staging import digests_of, stage_held, stage_whole_held
from syncline.delta.device.warming import warm_up
from syncline.errors import EngineUnavailable, LayoutRefused
from syncline.kernels.gpu.digest import sweep
from syncline.wire.digest import Digest
from syncline.wire.tiling import Tiling
from syncline_agent.arm.device_changes import DeviceChanges, DeviceWrite
from syncline_agent.arm.layout import Layout, end_of
from syncline_agent.arm.memory import Changes
from syncline_agent.arm.part_digests import PartDigests
from syncline_agent.arm.placing import InPlace, Part, place
from syncline_agent.arm.shadows import Shadows, StrewnChanges
from syncline_agent.arm.strewn import Units
from syncline_agent.arm.turns import short_turns

SLICE_UNITS = 1 << 26
"""What a sweep sums up at a time: well under a millisecond of a GPU, and enough that its launch is a small part of it."""
_DECODING = 4
"""Streams for decoders: a step that changes little is decoded by few threads, each of which takes long."""
_PLACED = 1024
"""Tensors whose frames' places are remembered, as for host memory."""


@dataclass(frozen=True, slots=True)
class _DeviceStores:
    """What the host reads of strewn frames (strewn.Stores): copies."""

    stores: Sequence[torch.Tensor]

    def box(self, spot: Any) -> Units:
        store = self.stores[spot.store]
        box = store.as_strided(spot.size, spot.strides, store.storage_offset() + spot.base)
        return to_host(box.reshape(-1)).reshape(spot.size)

    def take(self, store: int, places: NDArray[np.int64]) -> Units:
        flat = self.stores[store]
        return to_host(flat[torch.from_numpy(places).to(flat.device)])


class DeviceMemory:
    """A `Memory` of torch stores on one device. The kernels run on a CPU's too, in Triton's interpreter."""

    slice_units = SLICE_UNITS

    def __init__(
        self,
        layout: Layout,
        tiling: Tiling,
        stores: Sequence[torch.Tensor],
        *,
        loaded: Callable[[str], Units] | None = None,
        slab_bytes: int | None = None,
        staged_bytes_max: int | None = None,
    ) -> None:
        """`stores`: flat integer tensors, in the layout's order; `loaded` as for HostMemory. Staging takes `staged_bytes_max` of device
        memory at most, where that is said, and twice `slab_bytes` (what fits the device) while it is under way. LayoutRefused by
        name."""
        _check_stores(layout, stores)
        self.table, self.layout, self.tiling = layout.table, layout, tiling
        self._stores, self._staged_bytes_max = stores, staged_bytes_max
        self._device = stores[0].device if stores else torch.device("cpu")
        self._slab_bytes = slab_bytes or slab_bytes_of(self._device)
        self._places = lru_cache(maxsize=_PLACED)(lambda tensor: place(layout, tensor, tiling))
        self._shadows = Shadows(layout, tiling, self._places, _DeviceStores(stores), loaded)
        self._strewn: set[int] = set()
        """Tensors with frames that do not lie as rows."""
        parts: dict[tuple[int, int], int] = {}
        self._held = HeldFrames.of(layout.table, tiling, stores, self._in_place(parts))
        self._parts_of = [
            np.array([parts[key] for key in zip(kind.tensors.tolist(), kind.indices.tolist(), strict=True)], np.int64)
            for kind in self._held.kinds
        ]
        """Which part a frame that lies as a row is in, by kind and row."""
        self._staging, self._sweeping = self._stream(), self._stream()
        decoding = [self._stream() for _ in range(_DECODING)]
        self._decoding = [stream for stream in decoding if stream is not None]
        self._synchronize()  # what was loaded is there, whatever stream it came by

    @property
    def shadow_bytes(self) -> int:
        """Host memory beside the stores, for as long as they live."""
        return self._shadows.nbytes

    def parts(self, tensor: int) -> Sequence[Part]:
        return self._places(tensor).parts

    def digests(self, tensor: int, parts: range) -> Sequence[Digest]:
        places, held = self._places(tensor), self._held.of_tensor(tensor)
        frames = [places.frames[places.parts[part].frame] for part in parts]
        found: dict[int, Digest] = {}
        with self._on(self._sweeping):
            if held is not None:
                kind, rows = self._held.kinds[held[0]], held[1]
                in_place = [frame.index for frame in frames if isinstance(frame, InPlace)]
                sums = sweep(*kind.launch(rows[in_place]))
                found = dict(zip(in_place, digests_of(sums), strict=True))
            return [
                found[frame.index] if isinstance(frame, InPlace) else self._shadows.digest(tensor, part, frame)
                for part, frame in zip(parts, frames, strict=True)
            ]

    def stage(self, deltas: Sequence[Delta], *, executor: Executor | None = None) -> DeviceChanges:
        self._check_room(deltas)
        return self._with_room(lambda: self._stage(deltas, executor))

    def stage_checkpoint(self, checkpoint: Checkpoint, *, executor: Executor | None = None) -> DeviceChanges:
        return self._with_room(lambda: self._stage_checkpoint(checkpoint))

    def scatter(self, changes: Changes, *, undo: bool) -> None:
        assert isinstance(changes, DeviceChanges)
        self._synchronize()  # steps that the host is done with may still read
        half = len(changes.parts) // 2
        with self._on(self._staging):
            for done, part in enumerate(changes.parts):
                if done == half:
                    faults.reach("apply.scattering")
                part.write(undo=undo)
            if not changes.parts:
                faults.reach("apply.scattering")
            for write in changes.writes:
                self._stores[write.store].index_copy_(0, write.places, write.old if undo else write.new)
        for tensor, strewn in changes.strewn.items():
            self._shadows.write(tensor, strewn, undo=undo)

    def read_back(self, changes: Changes, *, undo: bool) -> Sequence[str]:
        assert isinstance(changes, DeviceChanges)
        wrong: set[int] = set()
        with self._on(self._staging):
            found = [part.missing(undo=undo) for part in changes.parts]
            for part, missing in zip(changes.parts, found, strict=True):
                if bool(missing.any()):
                    wrong.update(part.tensors[missing.cpu().numpy() != 0].tolist())
            for write in changes.writes:
                if not torch.equal(self._stores[write.store][write.places], write.old if undo else write.new):
                    wrong.update(write.tensors)
        wrong.update(t for t, strewn in changes.strewn.items() if not self._shadows.stand(t, strewn, undo=undo))
        return [self.table.tensors[tensor].name for tensor in sorted(wrong)]

    def warm_up(self) -> None:
        with self._on(self._staging):
            warm_up(self.table, self._held)

    # --- what a change is made of

    def _stage(self, deltas: Sequence[Delta], executor: Executor | None) -> DeviceChanges:
        changing = sorted(self._strewn & {t for parsed in deltas for t in parsed.tensors})
        with self._on(self._staging):
            parts = stage_held(
                self.table,
                self._held,
                deltas,
                executor=executor,
                slab_bytes=self._slab_bytes,
                beside=self._decoding,
            )
            strewn = {tensor: self._shadows.stage(tensor, deltas, executor=executor) for tensor in changing}
            return self._changes(parts, strewn)

    def _stage_checkpoint(self, checkpoint: Checkpoint) -> DeviceChanges:
        names = [spec.name for spec in self.table.tensors]
        whole = lru_cache(maxsize=1)(lambda tensor: checkpoint.units(names[tensor]))
        with self._on(self._staging):
            parts = stage_whole_held(self.table, self._held, whole, slab_bytes=self._slab_bytes)
            strewn = {tensor: self._shadows.stage_whole(tensor, whole(tensor)) for tensor in sorted(self._strewn)}
            return self._changes(parts, strewn)

    def _in_place(self, parts: dict[tuple[int, int], int]) -> Iterator[HeldFrame]:
        """Frames that lie as rows; of each the part, by tensor and frame."""
        for tensor in range(len(self.table.tensors)):
            for held in self._places(tensor).frames.values():
                if isinstance(held, InPlace):
                    parts[tensor, held.index] = held.part
                    yield HeldFrame(tensor, held.index, held.frame, held.store, held.there)
                else:
                    self._strewn.add(tensor)

    def _changes(self, parts: Sequence[DevicePart], strewn: Mapping[int, StrewnChanges]) -> DeviceChanges:
        kept = {tensor: of_frame for tensor, of_frame in strewn.items() if of_frame}
        changes = DeviceChanges(parts, self._writes(kept), kept, self._digests_of(parts, strewn))
        self._check_bytes(changes.nbytes)
        return changes

    def _digests_of(self, parts: Sequence[DevicePart], strewn: Mapping[int, StrewnChanges]) -> PartDigests:
        changes = ((tensor, change) for tensor, own in strewn.items() for change in own.values() if change.changed)
        others = ((tensor, part, digest) for tensor, change in changes for part, digest in change.digests.items())
        return PartDigests.of(map(self._parts_in, parts), others)

    def _parts_in(self, part: DevicePart) -> tuple[NDArray[np.int64], NDArray[np.int64], Sums]:
        """Of its frames that change: tensor, number of the part, digest."""
        changed = part.counts > 0
        tensors = part.tensors[changed].astype(np.int64)
        kinds, rows = self._held.find(tensors, part.frames[changed])
        return tensors, self._parts_of[int(kinds[0])][rows] if kinds.size else rows, part.sums[changed]

    def _writes(self, strewn: Mapping[int, StrewnChanges]) -> list[DeviceWrite]:
        """What strewn frames write, store by store."""
        of_store: dict[int, list[tuple[int, Any]]] = {}
        for tensor, of_frame in strewn.items():
            for change in of_frame.values():
                for write in change.writes:
                    of_store.setdefault(write.store, []).append((tensor, write))
        return [
            DeviceWrite(
                sorted({tensor for tensor, _ in writes}),
                store,
                torch.from_numpy(np.concatenate([write.places for _, write in writes])).to(self._device),
                to_device(np.concatenate([write.new for _, write in writes]), self._device),
                to_device(np.concatenate([write.old for _, write in writes]), self._device),
            )
            for store, writes in sorted(of_store.items())
        ]

    # --- room

    def _check_room(self, deltas: Sequence[Delta]) -> None:
        """Refuse before decoding what will not fit: of one delta, its frames say how much it changes at least."""
        if self._staged_bytes_max is None or len(deltas) != 1:
            return
        said = deltas[0].columns
        kinds, rows = self._held.find(said.tensors, said.indices)
        least = 0
        for number, kind in enumerate(self._held.kinds):
            own = kinds == number
            units = np.minimum(said.changed[own], kind.units[rows[own]])
            least += 2 * kind.anchor.element_size() * int(units.sum())
        self._check_bytes(least)

    def _check_bytes(self, nbytes: int) -> None:
        if self._staged_bytes_max is not None and nbytes > self._staged_bytes_max:
            raise EngineUnavailable(
                f"the changes take {nbytes} bytes of device memory, {self._staged_bytes_max} are allowed for staging;"
                " nothing was written: allow more, or restart the engine from a checkpoint"
            )

    def _with_room(self, work: Callable[[], DeviceChanges]) -> DeviceChanges:
        try:
            return work()
        except torch.OutOfMemoryError as error:
            reason = str(error).split(" GPU ")[0]
        # Outside the handler: with the error goes what was staged so far, which its frames held.
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        raise EngineUnavailable(
            f"no room on {self._device} for the changes ({reason}); nothing was written: leave the engine less memory,"
            " or restart it from a checkpoint"
        )

    # --- streams

    def _stream(self) -> torch.cuda.Stream | None:
        return torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    @contextmanager
    def _on(self, stream: torch.cuda.Stream | None) -> Iterator[None]:
        """Work on this stream; it is done when the block ends."""
        with short_turns(), torch.cuda.stream(stream) if stream is not None else nullcontext():
            yield
            if stream is not None:
                stream.synchronize()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _check_stores(layout: Layout, stores: Sequence[torch.Tensor]) -> None:
    for tensor, spec in enumerate(layout.table.tensors):
        for block in layout.blocks[tensor]:
            if block.store >= len(stores):
                raise LayoutRefused(f"{spec.name} lies in store {block.store} of {len(stores)}")
            store = stores[block.store]
            if store.dim() != 1 or not store.is_contiguous() or store.is_floating_point() or store.is_complex():
                raise LayoutRefused(f"{spec.name} lies in store {block.store}, which is no flat row of integers")
            if store.element_size() != spec.unit_bytes or store.device != stores[0].device:
                raise LayoutRefused(
                    f"{spec.name} lies in store {block.store} of {store.dtype} on {store.device}; it needs units of"
                    f" {spec.unit_bytes} bytes on {stores[0].device}"
                )
            if end_of(block) > store.numel():
                raise LayoutRefused(f"{spec.name} lies beyond the {store.numel()} units of store {block.store}")
