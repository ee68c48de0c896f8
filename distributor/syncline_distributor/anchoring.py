"""Writing one anchor: the whole weights of a version that is committed already, from whoever holds them.

Two callers do. The keeper writes from a checkpoint of its own, which it brings on by the chain's deltas. Where a delta
is damaged the keeper has no way to head, but the base of the writer in this process stands there: `rescue` writes the
anchor from that, in the thread that publishes, which alone may touch the base. Every tensor is compared with the
manifest's digest before the anchor exists, so neither caller can store weights that are not the version's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from numpy.typing import NDArray

from syncline.chain import ChainReader
from syncline.clock import Clock
from syncline.delta import digest_tensor
from syncline.errors import AlreadyExists, DigestMismatch, NotFound, StoreUnavailable
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.store.keys import ViewKeys
from syncline.wire.records import AnchorBody, AnchorManifest, VersionManifest
from syncline.wire.tensors import TensorTable
from syncline_distributor.bases import Base
from syncline_distributor.committing import new_nonce
from syncline_distributor.settings import AnchorSettings
from syncline_distributor.steps import Steps, reach, run_steps
from syncline_distributor.weights import Files
from syncline_distributor.whole import BodyWriter, Reader

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AnchorWriter:
    """Writes anchors of one view. Holds no state, so that several threads may use one."""

    store: WeightStore
    keys: ViewKeys
    settings: AnchorSettings
    clock: Clock
    random: random.Random
    metrics: Metrics
    executor: Executor | None
    writer: str

    def steps(
        self,
        version: VersionManifest,
        *,
        table: TensorTable,
        read: Reader,
        files: Callable[[], Files],
        scratch: Path | None,
    ) -> Steps[AnchorManifest]:
        """Upload the weights that `read` gives, prove them, commit the anchor. DigestMismatch when they are not the
        version's."""
        nonce = new_nonce(self.random)
        wanted = version.digests()

        def seen(tensor: int, flat: NDArray[Any]) -> None:
            spec = table.tensors[tensor]
            if digest_tensor(spec, flat, executor=self.executor) != wanted[tensor]:
                raise DigestMismatch(f"{spec.name} is not as version {version.version} has it; no anchor")

        body = BodyWriter(self.store, self.keys, spool=scratch, max_shard_bytes=self.settings.max_shard_bytes).write(
            version.version, nonce, table=table, read=read, files=files(), seen=seen
        )
        yield reach("publish.anchor_files_put")
        self._check_files(version.version, body)
        manifest = AnchorManifest(
            run=version.run,
            lineage=version.lineage,
            view=version.view,
            version=version.version,
            digest=version.digest,
            writer=self.writer,
            nonce=nonce,
            created_ms=int(self.clock.now() * 1000),
            manifest=version.identity(),
            anchor=body,
        )
        put_once(self.store, self.keys.anchor(version.version), manifest.encode())
        yield reach("publish.anchor_put")
        names = (version.run, version.view)
        self.metrics.anchors.labels(*names).inc()
        log.info(
            "anchor written", run=names[0], view=names[1], version=version.version, bytes=body.size, phase="anchor"
        )
        return manifest

    def _check_files(self, version: int, body: AnchorBody) -> None:
        """No manifest for an anchor whose files a sweep took while it was being written."""
        for file in body.files:
            key = self.keys.anchor_file(version, body.nonce, file.name)
            try:
                self.store.head(key)
            except NotFound:
                raise StoreUnavailable(
                    f"{key} is gone before its anchor was committed: a sweep took it, because the upload was slower than "
                    "a lease period; the anchor is written again"
                ) from None


def put_once(store: WeightStore, key: str, data: bytes) -> None:
    """Put a manifest beside the chain. One that is there stays: another keeper, or this one before it died, says the
    same of the same version."""
    try:
        store.put_if_absent(key, data)
    except AlreadyExists:
        pass


def rescue(writer: AnchorWriter, reader: ChainReader, base: Base, *, stuck: int) -> AnchorManifest | None:
    """An anchor from `base`, for a keeper that found no way to version `stuck`. None when the base does not stand there
    or beyond, or when no anchor is wanted of what it holds.

    Only the thread that the base belongs to may call it, and with a `reader` of its own.
    """
    held = base.manifest
    if held is None or held.version < stuck or held.version in reader.anchors() or held.version in reader.vetoes():
        return None
    log.warning(
        "the chain is damaged below head; writing an anchor from the base of this writer",
        run=held.run,
        view=held.view,
        version=held.version,
        phase="anchor",
    )
    return run_steps(writer.steps(held, table=base.table, read=base.units, files=base.files, scratch=base.scratch))
