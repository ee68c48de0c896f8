"""A checkpoint folder of the service's own, brought from whatever version it holds to another one.

Used for the base of the next delta and for the anchor that skip deltas start from. The journal inside the folder makes
every step safe against kill -9; what cannot be read any more is made anew from the store, which has the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from shutil import rmtree

import structlog

from syncline.chain import ChainReader
from syncline.checkpoint import Checkpoint, materialize
from syncline.delta import Delta
from syncline.errors import DigestMismatch, LineageChanged
from syncline.wire.records import ChunkRef, VersionManifest
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_distributor.uploading import Spool

log = structlog.get_logger()


def parse_delta(
    table: TensorTable,
    tiling: Tiling,
    refs: Sequence[ChunkRef],
    chunks: Spool | ChainReader,
    *,
    executor: Executor | None = None,
) -> Delta:
    """One delta from where its chunks are."""
    return Delta.parse(table, tiling, ((ref, chunks.chunk(ref)) for ref in refs), executor=executor)


def tiling_of(reader: ChainReader) -> Tiling:
    """The run's tiling."""
    return reader.run_record().tiling.tiling


def bring(
    folder: Path, reader: ChainReader, manifest: VersionManifest, *, executor: Executor | None, check: bool = True
) -> Checkpoint:
    """The folder as a checkpoint that holds `manifest`, whatever it held before. Vetoes do not matter: bits are bits.

    `check` reads whole what the folder holds now. LineageChanged when it belongs to another training; ChainBroken when
    the store has no way to the version.
    """
    marker = Checkpoint.open(folder).marker
    if marker is not None and marker.lineage != manifest.lineage:
        raise LineageChanged(
            f"{folder} holds lineage {marker.lineage}, run {manifest.run} is {manifest.lineage}: the run name was "
            "reused; publish under another name, or remove that folder to go on with the run in the store"
        )
    checkpoint = materialize(reader, manifest.version, folder, executor=executor, vetoed=())
    if check:
        try:
            checkpoint.verify(manifest, executor=executor)
        except DigestMismatch as error:
            # Bits rotted, or somebody changed a file. The store has the truth: once more, from nothing.
            log.warning(
                "checkpoint is damaged; making it anew", version=manifest.version, error=str(error), phase="base"
            )
            rmtree(folder)
            checkpoint = materialize(reader, manifest.version, folder, executor=executor, vetoed=())
    return checkpoint
