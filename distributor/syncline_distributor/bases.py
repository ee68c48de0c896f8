"""What the next delta is taken against: the weights of the newest version that this writer knows to be committed.

`MemoryBase` is the trainer's own copy (the SDK); `DiskBase` a journaled checkpoint in a state directory, for the
service that must not hold a model. Both advance by decoding the very chunks that were published, so a base is what a
replica would hold, whatever happened to the trainer's tensors meanwhile; both find their way to any version from the
store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from syncline.chain import AnchorStep, ChainReader, plan
from syncline.checkpoint import Checkpoint, materialize
from syncline.checkpoint.advancing import PUBLISHER_POINTS
from syncline.delta import MAPPED_SPAN_BYTES, Delta, digest_tensor, scatter, stage_tensor
from syncline.errors import DigestMismatch, FormatInvalid
from syncline.versions import Link
from syncline.wire.digest import Digest
from syncline.wire.records import ChunkRef, VersionManifest
from syncline.wire.tensors import TensorTable, digests_for
from syncline.wire.tiling import Tiling
from syncline_distributor.changes import HostStep, Step, StepEncoder
from syncline_distributor.disk import bring, parse_delta, tiling_of
from syncline_distributor.uploading import FolderSpool, MemorySpool, Spool
from syncline_distributor.weights import Files, WeightSource
from syncline_distributor.whole import beside_weights, spool_folder

log = structlog.get_logger()


class Base(Protocol):
    """The weights of one committed version."""

    @property
    def manifest(self) -> VersionManifest | None:
        """The version that is held; None when nothing is."""
        ...

    @property
    def table(self) -> TensorTable:
        """Of what is held."""
        ...

    @property
    def spool(self) -> Spool:
        """Where chunks wait until the base has advanced."""
        ...

    @property
    def scratch(self) -> Path | None:
        """A folder for large files on their way; None for the system's own."""
        ...

    @property
    def landing(self) -> Path | None:
        """Where the files of a whole upload stay, to become the base; None when the base does not want them."""
        ...

    def units(self, tensor: int) -> NDArray[Any]:
        """The tensor's flat units; only read."""
        ...

    def step(self, step: Step) -> StepEncoder:
        """An encoder of the next delta against what is held."""
        ...

    def files(self) -> Files:
        """What belongs beside the weights, as the held version came with it."""
        ...

    def load(self, reader: ChainReader, manifest: VersionManifest) -> None:
        """Come to `manifest` from whatever is held, and prove its digest. ChainBroken or Corrupt when the store has no
        way there."""
        ...

    def advance(self, reader: ChainReader, manifest: VersionManifest, chunks: Spool) -> None:
        """Come from the held version to the one just committed."""
        ...

    def replace(self, reader: ChainReader, manifest: VersionManifest, source: WeightSource) -> None:
        """Come to an anchor-only version just committed."""
        ...

    def forget(self) -> None:
        """Hold nothing."""
        ...


def link_of(manifest: VersionManifest) -> Link:
    """What the rules need to know of a manifest."""
    return Link(manifest.lineage, manifest.version, manifest.base, manifest.epoch)


class MemoryBase:
    """Arrays of this process, for a trainer that publishes itself."""

    _units: list[Any]

    def __init__(self, *, executor: Executor | None = None, scratch: Path | None = None) -> None:
        self._executor = executor
        self._units = []
        self._files: dict[str, bytes | Path] = {}
        self.manifest: VersionManifest | None = None
        self.table = TensorTable(tensors=[])
        self.spool: Spool = MemorySpool()
        self.scratch = scratch
        self.landing: Path | None = None

    def units(self, tensor: int) -> NDArray[Any]:
        return self._units[tensor]

    def step(self, step: Step) -> StepEncoder:
        return HostStep(self, step, executor=self._executor)

    def files(self) -> Files:
        return self._files

    def load(self, reader: ChainReader, manifest: VersionManifest) -> None:
        held = self.manifest
        if held is not None and held.identity() == manifest.identity():
            return
        way = plan(None if held is None else link_of(held), manifest.version, reader)
        if isinstance(way.start, AnchorStep):
            self._materialize(reader, manifest)
        else:
            for step in way.deltas:
                self._apply(step.manifest, step.chunks, reader, tiling_of(reader))
        self._prove(manifest)

    def advance(self, reader: ChainReader, manifest: VersionManifest, chunks: Spool) -> None:
        self._apply(manifest, manifest.chunks, chunks, tiling_of(reader))

    def replace(self, reader: ChainReader, manifest: VersionManifest, source: WeightSource) -> None:
        self.forget()
        self.table = source.table
        self._units = [self._copied(source, i) for i in range(len(self.table.tensors))]
        self._files = {n: f if isinstance(f, bytes) else f.read_bytes() for n, f in source.files().items()}
        self.manifest = manifest
        self._prove(manifest)

    def forget(self) -> None:
        self.manifest = None
        self._units = []

    def _apply(
        self, manifest: VersionManifest, refs: Sequence[ChunkRef], chunks: Spool | ChainReader, tiling: Tiling
    ) -> None:
        delta = parse_delta(self.table, tiling, refs, chunks, executor=self._executor)
        self.manifest = None  # a mix until the last tensor is done
        self._change(delta, tiling)
        self.manifest = manifest

    def _make_room(self) -> None:
        """For all tensors of the table, before anything is brought."""

    def _materialize(self, reader: ChainReader, manifest: VersionManifest) -> None:
        self.forget()
        self.table = reader.table(manifest)
        self._make_room()
        with spool_folder(self.scratch) as folder:
            checkpoint = materialize(
                reader, manifest.version, folder / "checkpoint", executor=self._executor, vetoed=()
            )
            self.table = checkpoint.table
            self._units = [self._kept(i, checkpoint.units(s.name)) for i, s in enumerate(self.table.tensors)]
            self._files = {
                n: p.read_bytes() for n, p in beside_weights(folder / "checkpoint").items() if isinstance(p, Path)
            }
        self.manifest = manifest

    def _prove(self, manifest: VersionManifest) -> None:
        try:
            digests = digests_for(self.table, manifest)
        except FormatInvalid:
            self.forget()
            raise
        for spec, found, wanted in zip(self.table.tensors, self._digests(), digests, strict=True):
            if found != wanted:
                self.forget()
                raise DigestMismatch(
                    f"the publisher's base does not hold version {manifest.version}: {spec.name} has another digest"
                )

    # --- where the arrays are: a base on a device has its own

    def _kept(self, tensor: int, units: NDArray[Any]) -> Any:
        """A copy of a tensor's units on the host."""
        return np.array(units, copy=True)

    def _copied(self, source: WeightSource, tensor: int) -> Any:
        """A copy of a tensor of a source."""
        return self._kept(tensor, source.units(tensor))

    def _change(self, delta: Delta, tiling: Tiling) -> None:
        for tensor in delta.tensors:
            spec, live = self.table.tensors[tensor], self._units[tensor]
            staged = stage_tensor(self.table, tiling, tensor, live, [delta], executor=self._executor)
            scatter(spec, tiling, live, staged)

    def _digests(self) -> Iterator[Digest]:
        """Of each tensor, as it is held."""
        for spec, units in zip(self.table.tensors, self._units, strict=True):
            yield digest_tensor(spec, units, executor=self._executor)


class DiskBase:
    """A journaled checkpoint in a state directory, for the service. Memory is bounded by the largest tensor."""

    def __init__(self, folder: Path, *, executor: Executor | None = None) -> None:
        self._folder = folder / "base"
        self._executor = executor
        self._checkpoint: Checkpoint | None = None
        self.manifest: VersionManifest | None = None
        self.scratch = folder / "scratch"
        rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        self.spool: Spool = FolderSpool(folder / "spool")
        self.landing: Path | None = folder / "landing"

    @property
    def table(self) -> TensorTable:
        return self._checkpoint.table if self._checkpoint is not None else TensorTable(tensors=[])

    def units(self, tensor: int) -> NDArray[Any]:
        assert self._checkpoint is not None
        return self._checkpoint.units(self.table.tensors[tensor].name)

    def step(self, step: Step) -> StepEncoder:
        return HostStep(self, step, executor=self._executor, span_bytes=MAPPED_SPAN_BYTES)

    def files(self) -> Files:
        return beside_weights(self._folder) if self.manifest is not None else {}

    def load(self, reader: ChainReader, manifest: VersionManifest) -> None:
        self.forget()
        self._checkpoint = bring(self._folder, reader, manifest, executor=self._executor)
        self.manifest = manifest

    def advance(self, reader: ChainReader, manifest: VersionManifest, chunks: Spool) -> None:
        assert self._checkpoint is not None
        self.manifest = None  # until the marker names the new version
        delta = parse_delta(self.table, tiling_of(reader), manifest.chunks, chunks)
        chunks.let_go()
        self._checkpoint.advance(
            [manifest], [delta], points=PUBLISHER_POINTS, executor=self._executor, passed=chunks.let_go
        )
        self.manifest = manifest

    def replace(self, reader: ChainReader, manifest: VersionManifest, source: WeightSource) -> None:
        self.forget()
        assert self.landing is not None
        for name, content in source.files().items():
            (self.landing / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        rmtree(self._folder, ignore_errors=True)
        self.landing.rename(
            self._folder
        )  # a kill around here leaves no base, and the next start makes it from the store
        tiling = reader.run_record().tiling
        self._checkpoint = Checkpoint.adopt(self._folder, manifest, source.table, tiling, executor=self._executor)
        self.manifest = manifest

    def forget(self) -> None:
        self.manifest = None
        self._checkpoint = None
