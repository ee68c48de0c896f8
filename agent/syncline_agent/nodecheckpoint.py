"""The node's checkpoint: what an engine starts from and what heals one.

`NodeCheckpoint` owns `<node-dir>/checkpoint` and `<node-dir>/back`; the follower calls it to join, to go back and to
heal, `Background` to advance it. One lock orders the two threads; other processes (an engine that is loading) are
held off by the checkpoint's own file lock. Weight bytes pass through in bounded memory; nothing here touches an
engine.
"""

from __future__ import annotations

import mmap
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from structlog.typing import FilteringBoundLogger

from syncline.chain import ChainReader, DeltaStep, Plan, SkipStep, plan
from syncline.checkpoint import Checkpoint, Marker, let_go, materialize
from syncline.checkpoint.advancing import forget
from syncline.checkpoint.download import STREAMS
from syncline.checkpoint.locks import exclusive
from syncline.checkpoint.marker import OwnFiles
from syncline.delta import Delta
from syncline.delta.warming import compile_for
from syncline.errors import CheckpointBusy, DigestMismatch, LineageChanged, SynclineError
from syncline.versions import Link
from syncline.wire.records import ChunkRef, RunRecord
from syncline.wire.tensors import TensorTable
from syncline_agent.examining import Examination
from syncline_agent.fetch import Fetcher
from syncline_agent.nodefiles import NodeFiles
from syncline_agent.once import OnceLog

StartsFrom: TypeAlias = Callable[[int], None]


def unheard(version: int) -> None:
    """Nobody need know."""
    del version


@dataclass(frozen=True, slots=True)
class Chain:
    """A run's view as one node reads it."""

    run: RunRecord
    reader: ChainReader
    fetcher: Fetcher

    @property
    def lineage(self) -> str:
        return self.run.lineage


@dataclass(frozen=True, slots=True)
class Contents:
    """What a checkpoint folder holds."""

    marker: Marker
    table: TensorTable


class NodeCheckpoint:
    """The servable checkpoint on this node's disk."""

    def __init__(
        self, files: NodeFiles, log: FilteringBoundLogger, *, executor: Executor | None = None, streams: int = STREAMS
    ) -> None:
        self.path = files.root / "checkpoint"
        self.back = files.root / "back"
        self._files = files
        self._log = log
        self._trying = OnceLog(log)
        self._executor = executor
        self._streams = streams
        self._lock = threading.RLock()
        self._marker: Marker | None = None
        self._loaded = False
        self._examination = Examination(self.path, files.root / "checkpoint.files")

    def marker(self) -> Marker | None:
        """What the checkpoint holds; None when there is none that is whole. The first call recovers from a crash."""
        if self._loaded:
            return self._marker  # without the lock: an advance that takes minutes must not hold up who only asks
        with self._lock:
            if not self._loaded:
                self._marker = Checkpoint.open(self.path).marker if self.path.is_dir() else None
                self._loaded = True
            return self._marker

    def version(self, lineage: str, view: str) -> int | None:
        """Version on disk, when it is one of this lineage and view."""
        marker = self.marker()
        if marker is None or (marker.lineage, marker.view) != (lineage, view):
            return None
        return marker.version

    def check_lineage(self, chain: Chain) -> None:
        """LineageChanged when the disk holds another training under the same run name."""
        marker = self.marker()
        if marker is not None and marker.run == chain.run.run and marker.lineage != chain.lineage:
            raise LineageChanged(
                f"{self.path} holds run {marker.run} of lineage {marker.lineage}, the store now holds lineage "
                f"{chain.lineage} under that name: the run name was reused; remove {self.path} to follow the new run"
            )

    def join(
        self, chain: Chain, version: int, *, vetoed: Collection[int] = (), starts_from: StartsFrom = unheard
    ) -> None:
        """Make a version the node's checkpoint, whatever was there before. `starts_from` hears, before anything is
        fetched, of the oldest version that the way needs."""
        with self._writing():
            self.check_lineage(chain)
            self._examination.rewriting()
            self._trying.info("joining", run=chain.run.run, version=version)
            made = self._materialized(chain, version, self.path, vetoed, starts_from)
            self._examination.written()
        if self._executor is not None:
            # While an engine loads. At the first advance it would keep the interpreter from commits, and requests wait for those.
            self._executor.submit(compile_for, {spec.dtype for spec in made.table.tensors})

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Whatever comes of it, what is remembered afterwards is what the disk says: a failure may have left no version."""
        with self._lock:
            try:
                yield
            finally:
                if self.path.is_dir():
                    self._marker, self._loaded = self._on_disk(), True

    def _on_disk(self) -> Marker | None:
        try:
            return Checkpoint.open(self.path).marker
        except CheckpointBusy:
            return None  # somebody mends it now; whoever writes here next looks again

    def examine(self) -> None:
        """See whether an engine could open the checkpoint; if not, it holds nothing any more and is made anew.

        Looks at headers and sizes only, so it may be called at every turn. Leaves alone what is being written or read.
        """
        if not self._lock.acquire(blocking=False):
            return  # an advance: it knows what it does, and may take minutes
        try:
            marker = self.marker()
            damage = None if marker is None else self._examination.damage(marker)
            if damage is None:
                return
            with self._writing(), exclusive(OwnFiles(self.path).lock):
                forget(self.path)
            self._log.warning(f"the checkpoint in {self.path} is damaged ({damage}); writing it again")
        except CheckpointBusy:
            return
        finally:
            self._lock.release()

    def distrust(self) -> None:
        """Read all of the checkpoint; if it is not what its marker says, it holds nothing any more and is made anew."""
        with self._writing():
            checkpoint = Checkpoint.open(self.path)
            if checkpoint.marker is not None and checkpoint.digest().hex != checkpoint.marker.digest:
                self._log.error("found a damaged checkpoint", version=checkpoint.marker.version, folder=str(self.path))
                with exclusive(OwnFiles(self.path).lock):
                    forget(self.path)

    def second(
        self, chain: Chain, version: int, *, vetoed: Collection[int] = (), starts_from: StartsFrom = unheard
    ) -> Path:
        """Another checkpoint beside the node's own, for going back; `drop_second` when it has served. `starts_from` is
        `join`'s."""
        with self._lock:
            self._materialized(chain, version, self.back, vetoed, starts_from)
            return self.back

    def _materialized(
        self, chain: Chain, version: int, path: Path, vetoed: Collection[int], starts_from: StartsFrom
    ) -> Checkpoint:
        def planned(way: Plan) -> None:
            if way.start is not None:
                starts_from(way.start.version)

        made = materialize(
            chain.reader,
            version,
            path,
            executor=self._executor,
            vetoed=vetoed,
            streams=self._streams,
            log=cast(FilteringBoundLogger, self._trying),
            planned=planned,
        )
        self._trying.over()
        return made

    def contents(self, folder: Path) -> Contents:
        """What one of this node's checkpoint folders holds, without asking the store. DigestMismatch when nothing
        whole."""
        checkpoint = Checkpoint.open(folder)
        if checkpoint.marker is None:
            raise DigestMismatch(f"{folder} holds no whole version; it is materialized again")
        return Contents(checkpoint.marker, checkpoint.table)

    def drop_second(self) -> None:
        """Remove the second checkpoint."""
        if self.back.exists():
            # Renamed first: a half-removed folder must never look like a checkpoint.
            doomed = self.back.with_name(".back.removed")
            shutil.rmtree(doomed, ignore_errors=True)
            self.back.rename(doomed)
            shutil.rmtree(doomed)

    def advance(self, chain: Chain, version: int) -> bool:
        """Bring the checkpoint to `version`, by chunks that are on the node as far as they are. False when it is beyond."""
        with self._writing():
            self.examine()
            marker = self.marker()
            held = self.version(chain.lineage, chain.reader.keys.view)
            if marker is None or held is None:
                self.join(chain, version)
                return True
            if held >= version:
                return held == version
            way = plan(marker.link, version, chain.reader)
            if way.start is not None:
                # A version of other tensors lies between: only an anchor leads over it.
                self.join(chain, version)
                return True
            chunks = chunks_of(way)
            with self._files.holding(ref.blake3 for ref in chunks):
                chain.fetcher.fetch(chain.reader.keys, chunks)
                checkpoint = Checkpoint.open(self.path)
                maps = {ref.blake3: self._files.map(ref.blake3) for ref in chunks}

                def passed() -> None:
                    # A row of deltas is mapped, and only what is being decoded of it may count as this node's memory.
                    for chunk in maps.values():
                        let_go(chunk)

                deltas: list[Delta] = []
                for step in way.deltas:
                    deltas.append(self._parsed(chain, step, maps))
                    passed()
                checkpoint.advance([step.manifest for step in way.deltas], deltas, passed=passed)
            return True

    def _parsed(self, chain: Chain, step: DeltaStep | SkipStep, maps: Mapping[str, mmap.mmap]) -> Delta:
        chunks = [(ref, maps[ref.blake3]) for ref in step.chunks]
        return Delta.parse(chain.reader.table(step.manifest), chain.run.tiling.tiling, chunks)


def chunks_of(way: Plan) -> list[ChunkRef]:
    """Every chunk that a plan's deltas need."""
    return [ref for step in way.deltas for ref in step.chunks]


def path_chunks(chain: Chain, boot: int | None, applied: int, budget_bytes: int) -> list[str]:
    """Chunks that lead from the node checkpoint to what is applied, the oldest first, as far as a budget allows.

    They are on the node already: kept, the checkpoint's next advance fetches nothing.
    """
    if boot is None or boot >= applied:
        return []
    try:
        way = plan(Link(chain.lineage, boot, None, 1), applied, chain.reader)
    except SynclineError:
        return []
    names: list[str] = []
    for ref in chunks_of(way):
        budget_bytes -= ref.size
        if budget_bytes < 0:
            break
        names.append(ref.blake3)
    return names
