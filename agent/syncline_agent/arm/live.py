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

from syncline import faults
from syncline.clock import Clock, SystemClock
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, FrameCorrupt, LayoutRefused
from syncline.wire.digest import Digest
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_agent.arm.asked import check_asked
from syncline_agent.arm.host_memory import HostMemory, Units
from syncline_agent.arm.layout import Band
from syncline_agent.arm.memory import Memory
from syncline_agent.arm.staging import Digests, Staged, by_band, read_digests, stage, sum_of
from syncline_agent.arm.sweeping import Walks
from syncline_agent.engine import Applied, StageRequest, StageResult


@dataclass(frozen=True, slots=True)
class _Switch:
    """One change of version: a commit, or the undo of one."""

    before: Applied
    after: Applied
    staged: Staged
    undo: bool = False


class LiveWeights:
    """The weights of one rank, which holds the view whole or parts of it.

    A rank of parts claims a version and says what its parts sum to; that they are the version's, together with those of
    the others, is said to it (`proved`). From then on it stays proven as one that holds everything does.
    """

    def __init__(
        self,
        table: TensorTable,
        tiling: Tiling,
        memory: Memory | Mapping[str, Units],
        *,
        clock: Clock | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`memory` may be flat views by owner's name: every tensor whole, in host memory."""
        self.table = table
        self._memory = HostMemory.whole(table, tiling, memory) if isinstance(memory, Mapping) else memory
        if self._memory.table != table or self._memory.tiling != tiling:
            raise ValueError("the memory was made for another table or tiling")
        self._tiling = tiling
        self._clock = clock or SystemClock()
        self._executor = executor
        self._lock = threading.Lock()  # guards the memory while it is written or a slice of it is read, and all state
        self._sweeping = threading.Lock()
        self._digests: Digests = []
        """What the bands of each tensor should sum to."""
        self._walks = Walks(self._memory, self._lock, self._clock)
        self._impatient = 0
        """Sweeps that wait for another to end: that one no longer rests."""
        self._doubts = 0
        self._vouched = False
        """That the digests of what is held are the applied version's is known, and not only claimed."""
        self._swept = False
        """Memory was found to have these digests since the last load, undo or failure."""
        self._applied: Applied | None = None
        self._error: str | None = None
        self._version: int | None = None
        self._staged: _Switch | None = None
        self._ready: _Switch | None = None
        self._written: _Switch | None = None
        self._kept: _Switch | None = None
        self._stays: int | None = None
        """An undo to this version is ready, which is what is held: others have written where this rank has not."""

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
    def in_service(self) -> bool:
        """Proven, and nothing in doubt."""
        applied = self._applied
        return self._error is None and applied is not None and applied.proven

    @property
    def is_whole(self) -> bool:
        """All of the view is held here."""
        return self._memory.layout.is_whole

    @property
    def holds(self) -> Sequence[tuple[Band, Digest]] | None:
        """The bands that this rank holds, with the digest of each in what is applied; None for the view whole."""
        if self.is_whole:
            return None
        with self._lock:
            digests, unconfirmed = self._digests, self._written
            if unconfirmed is not None:
                digests = unconfirmed.staged.after if unconfirmed.undo else unconfirmed.staged.before
            return by_band(self._memory.layout, digests)

    def prove(self, lineage: str, view: str, version: int, digest: str) -> Applied:
        """Say that memory was loaded with `version`, and prove it by a digest of all of it, where that is held.

        DigestMismatch when it holds other weights: the claim stands unproven and the replica is out of service, so that
        it can be made whole from a checkpoint. A rank of parts only claims.
        """
        digests = read_digests(self._memory)
        found = sum_of(digests).hex
        with self._lock:
            self._digests = digests
            self._doubts += 1
            self._staged = self._ready = self._written = self._kept = None
            self._version = version
            self._error = None
            self._swept = True
            self._vouched = self._memory.layout.is_whole
            self._applied = Applied(lineage, view, version, digest, proven=self._vouched and found == digest)
            if self._vouched and found != digest:
                self._swept = False
                self._error = (
                    f"other base weights: memory has digest {found}, version {view}@{version} has {digest};"
                    " start from a checkpoint of this version, or stage one"
                )
                raise DigestMismatch(self._error)
            return self._applied

    def proved(self, version: int, digest: str) -> Applied:
        """The word that what all ranks hold was summed up, and is this version. EngineUnavailable when it is not what is
        applied here, or when only a sweep could tell what is: after an undo or a failure."""
        with self._lock:
            applied = self._applied
            if applied is None or (applied.version, applied.digest) != (version, digest):
                raise EngineUnavailable(f"version {version} with digest {digest} is not what is applied here")
            self._vouched = True
            if self._error is not None or not self._swept:
                raise EngineUnavailable(
                    f"version {version} was not swept here since the last undo or failure; sweep first"
                )
            self._applied = replace(applied, proven=True)
            return self._applied

    def warm_up(self) -> None:
        """Compile what a pause will run, on memory of its own."""
        self._memory.warm_up()

    def stage(self, request: StageRequest) -> StageResult:
        """Decode and check the changes; the contract is `Engine.stage`'s. Only reads live memory."""
        started = self._clock.monotonic()
        self.discard()
        before = check_asked(request, self._applied, error=self._error, table=self.table, tiling=self._tiling)
        try:
            staged = stage(request, self._memory, self._digests, self._executor)
        except (FrameCorrupt, DigestMismatch):
            if request.checkpoint is None:
                # Raises if it is memory that is wrong, and not the delta.
                self._sweep_tensors(0.0, self._memory.slice_units)
            raise
        after = Applied(request.lineage, request.view, request.target, request.target_digest, proven=before.proven)
        self._staged = _Switch(before, after, staged)
        layout = self._memory.layout
        return StageResult(
            request.target,
            staged.changes.changed,
            staged.changes.nbytes,
            self._clock.monotonic() - started,
            None if layout.is_whole else [digest for _, digest in by_band(layout, staged.after)],
        )

    def discard(self) -> None:
        """Drop what is staged or ready."""
        self._staged = self._ready = self._stays = None

    def ready(self, target: int) -> None:
        """`scatter(target)` may follow. EngineUnavailable when `target` is not what is staged."""
        if self._staged is None or self._staged.after.version != target:
            raise EngineUnavailable(f"version {target} is not staged; stage it again")
        self._ready = self._staged

    def ready_undo(self, version: int) -> None:
        """`scatter(version)` may follow, and goes back; it writes nothing where nothing was written since. LayoutRefused when
        that commit is not kept any more."""
        kept, applied = self._kept, self._applied
        untouched = self._written is None and self._error is None and self._version == version
        if untouched and applied is not None and applied.version == version:
            self.discard()
            self._stays = version
            return
        if kept is None or kept.before.version != version:
            come_from = "none" if kept is None else str(kept.before.version)
            raise LayoutRefused(f"version {version} cannot be undone to; kept: {come_from}; stage it from a checkpoint")
        self.discard()
        self._ready = _Switch(kept.after, kept.before, kept.staged, undo=True)

    def scatter(self, target: int) -> None:
        """Write the bits of `target`, which is ready. No forward step may run. After its first write a failure is
        EngineUncertain. `confirm` must follow before anything computed with the new bits may leave the engine."""
        if self._stays == target:
            return
        switch = self._ready
        if switch is None or switch.after.version != target:
            raise EngineUnavailable(f"version {target} is not ready; nothing was written")
        with self._lock:
            healthy = self._error is None
            if switch.undo and self._applied is not None:
                self._doubts += 1
                self._swept = False
                self._applied = replace(self._applied, proven=False)  # nothing computed from here on may leave
            self._staged = self._ready = None
            self._kept = switch if healthy and not switch.undo else (self._kept if switch.undo else None)
            try:
                self._memory.scatter(switch.staged.changes, undo=switch.undo)
                faults.reach("apply.scattered")
            except Exception as error:
                self._walks.anew()
                self._doubt(f"writing version {target} failed half-way ({error}); undo, or stage it from a checkpoint")
                raise EngineUncertain(str(self._error)) from error
            self._walks.written(switch.staged.changes, undo=switch.undo)
            self._version = target
            self._digests = switch.staged.before if switch.undo else switch.staged.after
            self._written = switch

    def confirm(self, target: int) -> Applied:
        """Read back every place that `scatter` wrote; from here on `target` is applied. EngineUncertain when a place
        holds anything else, or cannot be read."""
        if self._stays == target and self._applied is not None:
            self._stays = None
            return self._applied
        switch = self._written
        if switch is None or switch.after.version != target:
            raise EngineUncertain(f"version {target} was not written; nothing to confirm")
        try:
            bad = self._memory.read_back(switch.staged.changes, undo=switch.undo)
        except Exception as error:  # a device out of memory: the bits are there, and nobody has seen them
            with self._lock:
                self._not_confirmed(switch, f"was written and cannot be read back ({error}); undo it, or sweep")
            raise EngineUncertain(str(self._error)) from error
        with self._lock:
            if bad:
                self._not_confirmed(switch, f"reads back wrong in {bad[0]} ({len(bad)} tensors); undo it")
                raise EngineUncertain(str(self._error))
            self._written = None
            if switch.undo:
                self._kept = None
                self._doubts += 1
            elif self._error is not None:
                self._doubt(f"version {target} was written over memory in doubt ({self._error}); a sweep decides")
            assert self._applied is not None
            proven = self._applied.proven and self._error is None and not switch.undo
            self._applied = replace(switch.after, proven=proven)
            return self._applied

    def _not_confirmed(self, switch: _Switch, why: str) -> None:
        """What was written is what is held, as far as anything is known of it. The caller holds the lock."""
        self._written = None
        self._applied = switch.after
        self._doubt(f"version {switch.after.version} {why}")

    def unsettle(self, why: str) -> None:
        """Somebody else had this memory, and it may hold anything: out of service until a sweep matches."""
        with self._lock:
            self._walks.anew()
            self._doubt(why)

    def sweep(self, *, rest: float = 0.0, slice_units: int | None = None) -> Applied:
        """Digest all live memory, a slice at a time, and compare it with what the applied version should be.

        Sleeps `rest` times as long as each slice took, unless another sweep waits for this one. Commits may come between
        two slices, as often as they like. A match proves the version and ends a doubt, unless something was written that
        is not read back yet; DigestMismatch, naming the tensor, when memory holds something else: out of service.
        """
        with self._lock:
            self._impatient += 1
        with self._sweeping:
            with self._lock:
                self._impatient -= 1
                doubts = self._doubts
                if self._applied is None:
                    raise EngineUnavailable("the engine holds no version yet; load a checkpoint first")
            self._sweep_tensors(rest, slice_units or self._memory.slice_units)
            with self._lock:
                found = sum_of(self._digests).hex
                whole = self._memory.layout.is_whole
                if whole and self._written is None and found != self._applied.digest:
                    self._doubt(f"memory sums to digest {found}, version {self._applied.version} has another")
                    raise DigestMismatch(str(self._error))
                if doubts == self._doubts and self._written is None:
                    self._error = None
                    self._swept = True
                    self._applied = replace(self._applied, proven=self._vouched)
                return self._applied

    def _sweep_tensors(self, rest: float, slice_units: int) -> None:
        for tensor in range(len(self.table.tensors)):
            self._walks.through(
                tensor,
                slice_units=slice_units,
                rest=lambda: 0.0 if self._impatient else rest,
                arrived=partial(self._compare, tensor),
            )

    def _compare(self, tensor: int, found: Sequence[Digest]) -> None:
        if list(found) != list(self._digests[tensor]):
            name = self.table.tensors[tensor].name
            self._doubt(f"live bits of {name} are not version {self._version}'s; stage a checkpoint")
            raise DigestMismatch(str(self._error))

    def _doubt(self, error: str) -> None:
        """Out of service, and what was staged on memory that was thought to be good is void; what was staged after that was
        compared with the bits themselves. The caller holds the lock."""
        if self._error is None:
            self._staged = self._ready = None
        self._doubts += 1
        self._swept = False
        self._error = error
        if self._applied is not None:
            self._applied = replace(self._applied, proven=False)
