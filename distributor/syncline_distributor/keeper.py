"""Anchors and skip deltas: what is stored beside the chain so that joiners need one anchor and one delta.

Runs off the publish path, in its own thread, from the store alone: a checkpoint folder of its own stands at the newest
anchor. An anchor costs the deltas since the last one (fetched once, decoded into that folder) and one upload of the
whole weights. A skip delta costs the last skip delta and the deltas since, decoded tensor by tensor over the folder's
files, and one read of every tensor that they change. Memory is bounded by the largest tensor and those deltas; disk by
one checkpoint and two shards.
"""

from __future__ import annotations

import random
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from syncline.chain import ChainReader, plan
from syncline.checkpoint import Checkpoint
from syncline.clock import Clock
from syncline.delta import MAPPED_SPAN_BYTES, Delta, DeltaEncoder, scatter, stage_tensor
from syncline.errors import ChainBroken, Corrupt, DigestMismatch, LineageChanged, NotFound
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.versions import Link
from syncline.wire.digest import total
from syncline.wire.records import AnchorManifest, SkipManifest, VersionManifest
from syncline_distributor.anchoring import AnchorWriter, put_once
from syncline_distributor.committing import new_nonce
from syncline_distributor.disk import bring, parse_delta, tiling_of
from syncline_distributor.settings import AnchorSettings
from syncline_distributor.steps import Steps, reach
from syncline_distributor.uploading import FolderSpool, Uploads
from syncline_distributor.whole import beside_weights

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Standing:
    """Where anchors and skip deltas are."""

    head: int
    anchor: int | None
    """Newest usable anchor."""
    skip: int | None
    """Newest version that a skip delta from that anchor leads to."""
    chain_bytes: int
    """Delta bytes since that anchor."""
    full_bytes: int


@dataclass(slots=True)
class Keeper:
    """Writes the anchors and skip deltas of one view. Not thread-safe; `steps` does at most one thing a call."""

    store: WeightStore
    reader: ChainReader
    settings: AnchorSettings
    state_dir: Path
    clock: Clock
    random: random.Random
    metrics: Metrics
    executor: Executor | None = None
    writer: str = field(init=False)
    anchors: AnchorWriter = field(init=False)
    stuck: int | None = field(default=None, init=False)
    """Version to which damage leaves this keeper no way, as its last look found."""
    standing: Standing | None = field(default=None, init=False)
    _checked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.writer = new_nonce(self.random)
        self.anchors = AnchorWriter(
            self.store,
            self.reader.keys,
            self.settings,
            self.clock,
            self.random,
            self.metrics,
            self.executor,
            self.writer,
        )

    def steps(self) -> Steps[AnchorManifest | SkipManifest | None]:
        """Look, and write the anchor or the skip delta that is due. Returns what was committed. Where damaged or missing
        objects are in the way, `stuck` says so after the error."""
        head = self._head()
        if head is None:
            return None
        try:
            written = yield from self._write_due(head)
        except LineageChanged:
            raise
        except (ChainBroken, Corrupt):
            self.stuck = head.version
            raise
        self.stuck = None
        return written

    def _write_due(self, head: VersionManifest) -> Steps[AnchorManifest | SkipManifest | None]:
        standing = self.standing = self._stand(head)
        names = (self.reader.keys.run, self.reader.keys.view)
        self.metrics.chain_length.labels(*names).set(head.version - (standing.anchor or 0))
        if anchor_due(standing, self.settings):
            return (yield from self._write_anchor(head))
        if skip_due(standing, self.settings):
            assert standing.anchor is not None
            return (yield from self._write_skip(self.reader.manifest(standing.anchor), head))
        return None

    def _head(self) -> VersionManifest | None:
        try:
            head = self.reader.head()
        except NotFound:
            return None  # nothing was published yet
        return None if head is None or head.version in self.reader.vetoes() else head

    def _stand(self, head: VersionManifest) -> Standing:
        vetoed = self.reader.vetoes()
        anchor = max((v for v in self.reader.anchors() if v <= head.version and v not in vetoed), default=None)
        chain_bytes = 0
        at = head
        while anchor is not None and at.version > anchor:
            if at.base is None:
                anchor = None  # a vetoed version of other tensors lies between: no delta leads over it
                break
            chain_bytes += sum(c.size for c in at.chunks)
            at = self.reader.manifest(at.base)
        skips = self.reader.skip_bases()
        skip = max((to for to, starts in skips.items() if anchor in starts and to <= head.version), default=None)
        return Standing(head.version, anchor, skip, chain_bytes, head.statistics.full_bytes)

    # --- anchors

    def _write_anchor(self, head: VersionManifest) -> Steps[AnchorManifest]:
        checkpoint = self._checkpoint(head)
        table = checkpoint.table

        def read(tensor: int) -> NDArray[Any]:
            return checkpoint.units(table.tensors[tensor].name)

        return (
            yield from self.anchors.steps(
                head, table=table, read=read, files=lambda: beside_weights(self._folder), scratch=self._scratch()
            )
        )

    # --- skip deltas

    def _write_skip(self, anchor: VersionManifest, head: VersionManifest) -> Steps[SkipManifest]:
        checkpoint = self._checkpoint(anchor)
        tiling = tiling_of(self.reader)
        table = checkpoint.table
        link = Link(anchor.lineage, anchor.version, anchor.base, anchor.epoch)
        way = plan(link, head.version, self.reader, vetoed=self.reader.vetoes())
        incoming = FolderSpool(self.state_dir / "skip-incoming")  # a row of deltas is mapped, never held
        for ref in (ref for step in way.deltas for ref in step.chunks):
            incoming.add(ref, self.reader.chunk(ref))
        deltas: list[Delta] = []
        for step in way.deltas:
            deltas.append(parse_delta(table, tiling, step.chunks, incoming))
            incoming.let_go()
        spool = FolderSpool(self.state_dir / "skip-spool")
        uploads = Uploads(self.store, self.reader.keys, spool, executor=None, in_flight=1)
        encoder = DeltaEncoder(
            table,
            tiling,
            nonce=lambda: self.random.randbytes(16),
            sink=uploads.put,
            executor=self.executor,
            choice=self.settings.choice,
            span_bytes=MAPPED_SPAN_BYTES,
        )
        digests = anchor.digests()
        changed = sorted({t for delta in deltas for t in delta.tensors})
        buffer = np.empty(-(-max((table.tensors[t].size_bytes for t in changed), default=0) // 8), np.uint64)
        for tensor in changed:
            live = checkpoint.units(table.tensors[tensor].name)
            new = buffer.view(live.dtype)[: live.size]
            new[:] = live
            staged = stage_tensor(table, tiling, tensor, live, deltas, executor=self.executor)
            scatter(table.tensors[tensor], tiling, new, staged)
            digests[tensor] = digests[tensor] + encoder.add(tensor, live, new).digest_change
            incoming.let_go()
        encoded = encoder.finish()
        if total(digests).hex != head.digest:
            raise DigestMismatch(
                f"the deltas from {anchor.version} do not lead to version {head.version}; no skip delta"
            )
        manifest = SkipManifest(
            run=head.run,
            lineage=head.lineage,
            view=head.view,
            version=head.version,
            digest=head.digest,
            writer=self.writer,
            nonce=new_nonce(self.random),
            created_ms=int(self.clock.now() * 1000),
            base=anchor.version,
            base_digest=anchor.digest,
            manifest=head.identity(),
            tensors=head.tensors,
            chunks=list(encoded.chunks),
            statistics=encoded.statistics,
        )
        put_once(self.store, self.reader.keys.skip(head.version, anchor.version), manifest.encode())
        uploads.restore(manifest.chunks)  # what a sweep took while this was slow: no manifest named it then
        spool.clear()
        incoming.clear()
        yield reach("publish.skip_put")
        self.metrics.skips.labels(head.run, head.view).inc()
        log.info(
            "skip delta written",
            run=head.run,
            view=head.view,
            version=head.version,
            anchor=anchor.version,
            bytes=encoded.statistics.payload_bytes,
            phase="skip",
        )
        return manifest

    # --- the folder and the store

    @property
    def _folder(self) -> Path:
        return self.state_dir / "anchor"

    def _scratch(self) -> Path:
        scratch = self.state_dir / "anchor-scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        return scratch

    def _checkpoint(self, manifest: VersionManifest) -> Checkpoint:
        """The folder at `manifest`. What an earlier process left is read whole once; afterwards every step is
        proven."""
        checkpoint = bring(self._folder, self.reader, manifest, executor=self.executor, check=not self._checked)
        self._checked = True
        return checkpoint


def anchor_due(standing: Standing, settings: AnchorSettings) -> bool:
    """Whether an anchor at head is due, by versions or by bytes since the newest one."""
    if standing.anchor is None:
        return True
    since = standing.head - standing.anchor
    if since == 0:
        return False
    by_versions = 0 < settings.anchor_every <= since
    by_bytes = 0 < settings.anchor_ratio and standing.chain_bytes > settings.anchor_ratio * standing.full_bytes
    return by_versions or by_bytes


def skip_due(standing: Standing, settings: AnchorSettings) -> bool:
    """Whether a skip delta from the newest anchor to head is due. One over a single delta would save nobody
    anything."""
    if standing.anchor is None or settings.skip_every <= 0 or standing.head - standing.anchor < 2:
        return False
    return standing.head - max(standing.skip or 0, standing.anchor) >= settings.skip_every
