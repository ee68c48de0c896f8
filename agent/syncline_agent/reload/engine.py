"""An engine behind its own reload route, as an `Engine`: stage looks at a checkpoint, commit has it loaded.

It takes versions whole only. The engine is paused for all of a reload and reads the folder under its shared lock. What the
engine is told is written to the node before it is told, so that whoever comes after a crash knows what is in doubt; an engine
in doubt stays paused until a reload has succeeded. Never materializes anything, never decides which version comes next.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from syncline import faults
from syncline.checkpoint import Checkpoint
from syncline.checkpoint.marker import OwnFiles, read_marker
from syncline.clock import Clock
from syncline.errors import (
    DigestMismatch,
    EngineUnavailable,
    EngineUncertain,
    FormatInvalid,
    LayoutRefused,
    SourceNotReady,
    SynclineError,
)
from syncline.versions import Policy
from syncline_agent.engine import (
    Applied,
    CommitResult,
    Crossing,
    EngineDescription,
    StageRequest,
    StageResult,
    Witness,
    nobody,
)
from syncline_agent.reload import proof
from syncline_agent.reload.base import Reloading
from syncline_agent.reload.routes import AnswerLost
from syncline_agent.reload.served import Served, ServedFile, fingerprint, stamp_of


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine that reloads is, and what it sees of this node."""

    pool: str
    pod: str
    node_dir: Path
    seen_as: Path | None = None
    """The node directory as the engine sees it; None: as this process does."""

    def told(self, folder: Path) -> str:
        """A folder of the node, in the engine's words."""
        if self.seen_as is None:
            return str(folder.absolute())
        return str(self.seen_as / folder.absolute().relative_to(self.node_dir.absolute()))


@dataclass(frozen=True, slots=True)
class _Staged:
    request: StageRequest
    folder: Path
    made: proof.Candidates | None
    """What the engine's checksums should be, where its parameters' names are known."""


class ReloadEngine:
    """One engine that serves versions by loading them."""

    def __init__(
        self,
        routes: Reloading,
        place: Place,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        witness: Witness = nobody,
        executor: Executor | None = None,
    ) -> None:
        """`witness` is told of every load, and of an engine that is found away, or to serve what nobody here loaded; which tokens
        came before it nobody counts."""
        self._routes = routes
        self._place = place
        self._clock = clock
        self._log = log
        self._witness = witness
        self._told: Applied | None = None
        """What the witness takes to be served."""
        self._executor = executor
        self._file = ServedFile(place.node_dir / "reload.json")
        self._served = self._file.read()
        self._boot = OwnFiles(place.node_dir / "checkpoint").marker
        self._staged: _Staged | None = None
        self._names: tuple[str, ...] = ()
        self._lock = threading.Lock()
        """Held by whoever may change what is known of the engine."""

    # --- the contract of Engine ------------------------------------------------------------------------------------

    def describe(self) -> EngineDescription:
        try:
            stamp = self._routes.stamp()
        except SynclineError:
            self._tell(None)
            raise
        served = self._served
        known = served is not None and served.stamp == stamp and not served.pending
        self._tell(served.applied if served is not None and known else None)
        if served is not None and known:
            return self._description(served.applied, unprovable=served.unproven)
        if served is not None and served.pending:
            doubt = f"a reload of version {served.version} began and its end was not seen; it is loaded again"
        else:
            doubt = f"the engine serves weights under {stamp!r}, which nobody here loaded; they are loaded again"
        return self._description(self._claim(), error=doubt)

    def stage(self, request: StageRequest) -> StageResult:
        started = self._clock.monotonic()
        self._staged = None
        if request.checkpoint is None:
            raise LayoutRefused(f"{self._routes.kind} at {self._place.pod} reloads versions whole; bring a checkpoint")
        self._routes.check()
        checkpoint = Checkpoint.open(request.checkpoint)
        with checkpoint.reading():
            _check_holds(checkpoint, request)
            found = checkpoint.digest(executor=self._executor).hex
            if found != request.target_digest:
                raise DigestMismatch(
                    f"{request.checkpoint} has digest {found}, version {request.target} has {request.target_digest}"
                )
            made = proof.candidates(self._names, checkpoint) if self._names else None
            units = checkpoint.table.units
            size = sum(spec.size_bytes for spec in checkpoint.table.tensors)
        self._staged = _Staged(request, request.checkpoint, made)
        return StageResult(request.target, units, size, self._clock.monotonic() - started)

    def commit(self, target: int, policy: Policy) -> CommitResult:
        staged = self._staged
        if staged is None or staged.request.target != target:
            raise EngineUnavailable(f"version {target} is not staged; stage it again")
        self._staged = None
        checkpoint = Checkpoint.open(staged.folder)
        with self._lock, checkpoint.reading():
            _check_holds(checkpoint, staged.request)
            return self._reload(staged, checkpoint, policy)

    def undo(self, version: int, policy: Policy = Policy.KEEP) -> CommitResult:
        raise LayoutRefused(f"an engine that reloads keeps nothing to undo to; version {version} is loaded whole")

    def discard(self) -> None:
        self._staged = None

    def sweep(self) -> Applied:
        """As far as the engine tells: its checksums are those of the load. DigestMismatch when they are not."""
        with self._lock:
            served, stamp = self._served, self._routes.stamp()
            if served is None or served.pending or served.stamp != stamp:
                raise EngineUncertain(f"the engine serves {stamp!r}, and nobody here saw it loaded")
            if served.checks is not None:
                checks = self._routes.checks()
                if checks is None or fingerprint(checks) != served.checks:
                    self._note(served.model_copy(update={"pending": True}))
                    raise DigestMismatch(f"the engine's checksums are not those of version {served.version} any more")
            return served.applied

    # --- a reload --------------------------------------------------------------------------------------------------

    def _reload(self, staged: _Staged, checkpoint: Checkpoint, policy: Policy) -> CommitResult:
        request = staged.request
        before = self._served
        served = Served(
            lineage=request.lineage,
            view=request.view,
            version=request.target,
            digest=request.target_digest,
            stamp=stamp_of(request.view, request.target, request.target_digest),
            proven=False,
            unproven=self._routes.unprovable,
            checks=None,
            pending=True,
        )
        started = self._clock.monotonic()
        self._note(served)
        try:
            self._routes.pause(policy)
            faults.reach("apply.ready")
            self._routes.load(self._place.told(staged.folder), served.stamp)
        except EngineUncertain:
            raise  # it stays paused: what it holds is no version for sure
        except AnswerLost:
            self._back_to(None)  # the engine may come to this pause after it was resumed: a reload ends it for sure
            raise
        except SynclineError:
            self._back_to(before)
            raise
        faults.reach("apply.scattered")
        try:
            served = self._seen(served, staged, checkpoint)
            self._tell(served.applied)
            self._routes.resume()
        except SynclineError as error:
            raise EngineUncertain(f"version {request.target} was loaded, and then: {error}") from error
        pause_seconds = self._clock.monotonic() - started
        self._note(served)
        if served.unproven is not None:
            self._log.warning("loaded a version that cannot be proven", version=served.version, reason=served.unproven)
        return CommitResult(request.target, request.target_digest, pause_seconds)

    def _back_to(self, before: Served | None) -> None:
        """Nothing was changed: let the engine go on with what it had. Where it does not, or nobody knows (None), what was
        noted stays and it is loaded again."""
        try:
            self._routes.resume()
        except SynclineError as error:
            self._log.warning("could not resume the engine", reason=str(error))
            return
        if before is not None and not before.pending:
            self._note(before)

    def _seen(self, served: Served, staged: _Staged, checkpoint: Checkpoint) -> Served:
        """What the engine shows of the load."""
        stamp = self._routes.stamp()
        if stamp != served.stamp:
            raise EngineUncertain(f"the engine says that it serves {stamp!r}, not {served.stamp!r}")
        checks = self._routes.checks()
        why = self._routes.unprovable or self._unproven(checks, staged, checkpoint)
        return served.model_copy(
            update={
                "checks": None if checks is None else fingerprint(checks),
                "proven": why is None,
                "unproven": why,
                "pending": False,
            }
        )

    def _unproven(self, checks: Mapping[str, str] | None, staged: _Staged, checkpoint: Checkpoint) -> str | None:
        if checks is None:
            return "the engine gives no checksums of its weights"
        names = tuple(sorted(checks))
        made = staged.made
        if made is None or names != self._names:
            made = proof.candidates(names, checkpoint)
            self._names = names
        return proof.unproven(checks, made, checkpoint.table)

    # --- what is known ---------------------------------------------------------------------------------------------

    def _tell(self, held: Applied | None) -> None:
        if held != self._told:
            before, self._told = self._told, held
            self._witness(Crossing(before, held, None, None))

    def _note(self, served: Served) -> None:
        self._file.write(served)
        self._served = served

    def _claim(self) -> Applied | None:
        """What an engine that nobody here loaded probably started from; never proven."""
        try:
            marker = read_marker(self._boot)
        except FormatInvalid:
            marker = None
        if marker is None:
            return None
        return Applied(marker.lineage, marker.view, marker.version, marker.digest, proven=False)

    def _description(
        self, applied: Applied | None, *, error: str | None = None, unprovable: str | None = None
    ) -> EngineDescription:
        return EngineDescription(
            self._routes.kind,
            self._place.pool,
            self._place.pod,
            1,
            applied,
            None if applied is None else error,
            reloads=True,
            unprovable=unprovable,
        )


def _check_holds(checkpoint: Checkpoint, request: StageRequest) -> None:
    marker = checkpoint.marker
    if marker is None:
        raise SourceNotReady(f"{checkpoint.path} holds no version; it is materialized again")
    held = (marker.lineage, marker.view, marker.version, marker.digest)
    if held != (request.lineage, request.view, request.target, request.target_digest):
        raise EngineUnavailable(
            f"{checkpoint.path} holds version {marker.version}, not {request.target}; stage it again"
        )
