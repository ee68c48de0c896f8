"""Live weights: the one place where the bits that an engine computes with are changed, and proven.

It owns what a replica may claim: which version is applied, whether that is proven, and why it is out of service. It
knows no sockets, requests or stores, and starts no thread. `stage` and `sweep` only read and may run while the engine
computes; `scatter` writes and must run when no forward step does. Calls come one at a time, except `sweep` and the
properties, which may come from any thread at any time.

A version is proven as DESIGN section 5 says: (a) `stage` predicts the digest from the staged changes and refuses
another than the target's; (b) `confirm` reads back every written place; (c) a `sweep` of all live memory has matched
since the last load, undo or failure. Between `scatter` and `confirm` the engine may compute, but must let nothing out.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from syncline import faults
from syncline.clock import Clock, SystemClock
from syncline.delta import StagedTensor, stage_whole
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, FrameCorrupt, LayoutRefused
from syncline.wire.digest import Digest, total
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.asked import check_asked
from syncline_agent.arm.layout import Band
from syncline_agent.arm.memory import HostMemory, UnitMemory, Units
from syncline_agent.arm.staging import Staged, stage
from syncline_agent.arm.sweeping import SLICE_UNITS, Walks, units_digest
from syncline_agent.engine import Applied, StageRequest, StageResult


@dataclass(frozen=True, slots=True)
class _Switch:
    """One change of version: a commit, or the undo of one."""

    before: Applied
    after: Applied
    staged: Staged
    undo: bool = False

    @property
    def tensors(self) -> list[StagedTensor]:
        return self.staged.tensors


class LiveWeights:
    """The weights of one rank, which holds the whole view."""

    def __init__(
        self,
        table: TensorTable,
        tiling: Tiling | None,
        tensors: Mapping[str, Units] | UnitMemory,
        *,
        clock: Clock | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`tensors`: flat views by owner's name, or another kind of memory. `tiling` None: the first stage tells it."""
        self.table = table
        self._tiling = tiling
        self._memory: UnitMemory = HostMemory(table, tensors) if isinstance(tensors, Mapping) else tensors
        self._clock = clock or SystemClock()
        self._executor = executor
        self._lock = threading.Lock()  # guards the memory while it is written or a slice of it is read, and all state
        self._sweeping = threading.Lock()
        self._digests: list[Digest] = []
        self._walks = Walks(table, self._memory, self._lock, self._clock)
        self._impatient = 0
        """Sweeps that wait for another to end: that one no longer rests."""
        self._doubts = 0
        self._applied: Applied | None = None
        self._error: str | None = None
        self._version: int | None = None
        self._staged: _Switch | None = None
        self._ready: _Switch | None = None
        self._written: _Switch | None = None
        self._kept: _Switch | None = None

    @property
    def applied(self) -> Applied | None:
        """The version whose bits were written and read back last; None before `prove`."""
        return self._applied

    @property
    def error(self) -> str | None:
        """Why the replica is out of service, in words."""
        return self._error

    @property
    def version(self) -> int | None:
        """The version that a forward step computes with now: what its tokens are stamped with."""
        return self._version

    @property
    def holds(self) -> Sequence[tuple[Band, Digest]] | None:
        """The bands of a rank that holds parts, with what each adds to its tensor's digest now; None for the view whole."""
        return None

    @property
    def in_service(self) -> bool:
        """Proven, and nothing in doubt."""
        applied = self._applied
        return self._error is None and applied is not None and applied.proven

    def prove(self, lineage: str, view: str, version: int, digest: str) -> Applied:
        """Say that memory was loaded with `version`, and prove it by a digest of all of it.

        DigestMismatch when it holds other weights: the claim stands unproven and the replica is out of service, so that
        it can be made whole from a checkpoint.
        """
        self._digests = [units_digest(s, self._memory.units(i)) for i, s in enumerate(self.table.tensors)]
        found = total(self._digests).hex
        with self._lock:
            self._doubts += 1
            self._staged = self._ready = self._written = self._kept = None
            self._version = version
            self._applied = Applied(lineage, view, version, digest, proven=found == digest)
            self._error = None
            if found != digest:
                self._error = (
                    f"other base weights: memory has digest {found}, version {view}@{version} has {digest};"
                    " start from a checkpoint of this version, or stage one"
                )
                raise DigestMismatch(self._error)
            return self._applied

    def proved(self, version: int, digest: str) -> Applied:
        """The agent's word that all ranks together hold this version. EngineUnavailable when it is not what is applied
        here, or when only a sweep could tell what is."""
        with self._lock:
            applied = self._applied
            if applied is None or (applied.version, applied.digest) != (version, digest) or not applied.proven:
                raise EngineUnavailable(f"version {version} is not what is applied and swept here; sweep first")
            return applied

    def warm_up(self) -> None:
        """Compile what a pause will run, on memory of its own, for each width of unit that the table has."""
        for spec in {s.unit_bytes: s for s in self.table.tensors}.values():
            tiny = spec.model_copy(
                update={"shape": [8 * spec.unit_bytes], "dtype": f"U{8 * spec.unit_bytes}", "axis": 0}
            )
            old, new = (np.full(tiny.units, bits, f"<u{spec.unit_bytes}") for bits in (0, 1))
            staged = stage_whole(tiny, Tiling(), 0, old, new)
            memory = HostMemory(TensorTable(tensors=[tiny]), {tiny.name: old})
            memory.scatter(0, Tiling(), staged, undo=False)
            memory.read_back(0, Tiling(), staged, undo=False)

    def stage(self, request: StageRequest) -> StageResult:
        """Decode and check the changes; the contract is `Engine.stage`'s. Only reads live memory."""
        started = self._clock.monotonic()
        self.discard()
        before = check_asked(request, self._applied, error=self._error, table=self.table, tiling=self._tiling)
        self._tiling = request.tiling
        try:
            staged = stage(self.table, request, self._memory, self._digests, self._executor)
        except (FrameCorrupt, DigestMismatch):
            if request.checkpoint is None:
                self._sweep_tensors(0.0, SLICE_UNITS)  # raises if it is memory that is wrong, and not the delta
            raise
        after = Applied(request.lineage, request.view, request.target, request.target_digest, proven=before.proven)
        self._staged = _Switch(before, after, staged)
        return StageResult(request.target, staged.changed, staged.nbytes, self._clock.monotonic() - started)

    def discard(self) -> None:
        """Drop what is staged or ready."""
        self._staged = self._ready = None

    def ready(self, target: int) -> None:
        """`scatter(target)` may follow. EngineUnavailable when `target` is not what is staged."""
        if self._staged is None or self._staged.after.version != target:
            raise EngineUnavailable(f"version {target} is not staged; stage it again")
        self._ready = self._staged

    def ready_undo(self, version: int) -> None:
        """`scatter(version)` may follow, and goes back. LayoutRefused when that commit is not kept any more."""
        kept = self._kept
        if kept is None or kept.before.version != version:
            come_from = "none" if kept is None else str(kept.before.version)
            raise LayoutRefused(f"version {version} cannot be undone to; kept: {come_from}; stage it from a checkpoint")
        self.discard()
        self._ready = _Switch(kept.after, kept.before, kept.staged, undo=True)

    def scatter(self, target: int) -> None:
        """Write the bits of `target`, which is ready. No forward step may run. After its first write a failure is
        EngineUncertain. `confirm` must follow before anything computed with the new bits may leave the engine."""
        switch = self._ready
        if switch is None or switch.after.version != target:
            raise EngineUnavailable(f"version {target} is not ready; nothing was written")
        assert self._tiling is not None  # `stage` set it
        with self._lock:
            healthy = self._error is None
            if switch.undo and self._applied is not None:
                self._applied = replace(self._applied, proven=False)  # nothing computed from here on may leave
            self._staged = self._ready = None
            self._kept = switch if healthy and not switch.undo else (self._kept if switch.undo else None)
            try:
                self._write(switch, self._tiling)
            except Exception as error:
                self._doubt(f"writing version {target} failed half-way ({error}); undo, or stage it from a checkpoint")
                raise EngineUncertain(str(self._error)) from error
            self._walks.written(switch.tensors, self._tiling, undo=switch.undo)
            self._version = target
            self._digests = list(switch.staged.digests_before if switch.undo else switch.staged.digests_after)
            self._written = switch

    def _write(self, switch: _Switch, tiling: Tiling) -> None:
        half = len(switch.tensors) // 2
        for done, staged in enumerate(switch.tensors):
            if done == half:
                faults.reach("apply.scattering")
            self._memory.scatter(staged.tensor, tiling, staged, undo=switch.undo)
        if not switch.tensors:
            faults.reach("apply.scattering")
        faults.reach("apply.scattered")

    def confirm(self, target: int) -> Applied:
        """Read back every place that `scatter` wrote; from here on `target` is applied. EngineUncertain when a place
        holds anything else, or cannot be read."""
        switch = self._written
        if switch is None or switch.after.version != target:
            raise EngineUncertain(f"version {target} was not written; nothing to confirm")
        assert self._tiling is not None
        try:
            bad = [
                self.table.tensors[staged.tensor].name
                for staged in switch.tensors
                if not self._memory.read_back(staged.tensor, self._tiling, staged, undo=switch.undo)
            ]
        except Exception as error:  # a device out of memory: the bits are there, and nobody has seen them
            with self._lock:
                self._written = None
                self._doubt(f"version {target} was written and cannot be read back ({error}); undo it, or sweep")
            raise EngineUncertain(str(self._error)) from error
        with self._lock:
            self._written = None
            if bad:
                self._doubt(f"version {target} reads back wrong in {bad[0]} ({len(bad)} tensors); undo it")
                raise EngineUncertain(str(self._error))
            if switch.undo:
                self._kept = None
                self._doubts += 1
            elif self._error is not None:
                self._doubt(f"version {target} was written over memory in doubt ({self._error}); a sweep decides")
            assert self._applied is not None
            proven = self._applied.proven and self._error is None and not switch.undo
            self._applied = replace(switch.after, proven=proven)
            return self._applied

    def sweep(self, *, rest: float = 0.0, slice_units: int = SLICE_UNITS) -> Applied:
        """Digest all live memory, a slice at a time, and compare it with what the applied version should be.

        Sleeps `rest` times as long as each slice took, unless another sweep waits for this one. Commits may come between
        two slices, as often as they like. A match proves the version
        and ends a doubt; DigestMismatch, naming the tensor, when memory holds something else: out of service.
        """
        with self._lock:
            self._impatient += 1
        with self._sweeping:
            with self._lock:
                self._impatient -= 1
                doubts = self._doubts
                if self._applied is None:
                    raise EngineUnavailable("the engine holds no version yet; load a checkpoint first")
            self._sweep_tensors(rest, slice_units)
            with self._lock:
                found = total(self._digests).hex
                if self._written is None and found != self._applied.digest:
                    self._doubt(f"memory sums to digest {found}, version {self._applied.version} has another")
                    raise DigestMismatch(str(self._error))
                if doubts == self._doubts:
                    self._error = None
                    self._applied = replace(self._applied, proven=True)
                return self._applied

    def _sweep_tensors(self, rest: float, slice_units: int) -> None:
        for tensor in range(len(self.table.tensors)):
            self._walks.through(
                tensor,
                slice_units=slice_units,
                rest=lambda: 0.0 if self._impatient else rest,
                arrived=partial(self._compare, tensor),
            )

    def _compare(self, tensor: int, found: Digest) -> None:
        if found != self._digests[tensor]:
            name = self.table.tensors[tensor].name
            self._doubt(f"live bits of {name} are not version {self._version}'s; stage a checkpoint")
            raise DigestMismatch(str(self._error))

    def _doubt(self, error: str) -> None:
        """Out of service, and what was staged on such memory is void. The caller holds the lock."""
        self._staged = self._ready = None
        self._doubts += 1
        self._error = error
        if self._applied is not None:
            self._applied = replace(self._applied, proven=False)
