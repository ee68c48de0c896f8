"""What an attempt puts into the store before its manifest: the chunks of a delta, or the files of the whole weights.

A draft commits nothing: without a manifest that names them its objects belong to nobody, and retention takes them.
"""

from __future__ import annotations

import random
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from syncline.clock import Clock
from syncline.delta import count_nonfinite, digest_tensor
from syncline.errors import AlreadyExists, DigestMismatch, NonFiniteWeights
from syncline.store.base import WeightStore
from syncline.store.keys import ViewKeys
from syncline.wire.digest import Digest
from syncline.wire.records import AnchorBody, ChunkRef, Statistics
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling
from syncline_distributor.bases import Base
from syncline_distributor.changes import Step
from syncline_distributor.heap import seldom_collected
from syncline_distributor.settings import NonFinite, PublishSettings
from syncline_distributor.steps import Steps, reach
from syncline_distributor.uploading import Uploads
from syncline_distributor.weights import WeightSource
from syncline_distributor.whole import BodyWriter, Seen


@dataclass(frozen=True, slots=True)
class Draft:
    """What the manifest will name."""

    base: int | None
    chunks: list[ChunkRef]
    anchor: AnchorBody | None
    digests: list[Digest]
    statistics: Statistics


@dataclass(slots=True)
class Laps:
    """Seconds of a publish by phase."""

    clock: Clock
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.clock.monotonic()

    def lap(self, phase: str) -> None:
        """The time since the last lap belongs to `phase`."""
        now = self.clock.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Drafter:
    """Makes drafts for one view."""

    store: WeightStore
    keys: ViewKeys
    tiling: Tiling
    settings: PublishSettings
    random: random.Random
    executor: Executor | None

    def delta(
        self, source: WeightSource, base: Base, uploads: Uploads, *, digests: list[Digest], verify: bool, laps: Laps
    ) -> Steps[Draft]:
        """Encode `source` against `base`, whose tensor digests are `digests`. Chunks leave as they fill; all are
        stored at the end."""
        assert base.manifest is not None
        base.spool.clear()
        table = source.table
        step = base.step(Step(table, self.tiling, self.settings.choice, lambda: self.random.randbytes(16), uploads.put))
        after: list[Digest] = []
        with seldom_collected():
            try:
                for spec, change in zip(table.tensors, step.changes(source, digests, verify=verify), strict=True):
                    self._refuse(spec.name, change.nonfinite)
                    after.append(change.digest)
            except DigestMismatch:
                base.forget()
                raise
            encoded = step.finish()
        laps.lap("encode")
        yield reach("publish.encoded")
        uploads.wait()
        laps.lap("upload")
        yield reach("publish.chunks_put")
        return Draft(base.manifest.version, list(encoded.chunks), None, after, encoded.statistics)

    def whole(self, source: WeightSource, base: Base, *, version: int, nonce: str, laps: Laps) -> Steps[Draft]:
        """Upload everything: the first version, other tensors than the base's, or a chain that has no way to its
        head."""
        table = source.table
        digests = [Digest()] * len(table.tensors)
        nonfinite = 0

        def seen(tensor: int, flat: NDArray[Any]) -> None:
            nonlocal nonfinite
            spec = table.tensors[tensor]
            found = count_nonfinite(spec, flat)
            self._refuse(spec.name, found)
            nonfinite += found
            digests[tensor] = digest_tensor(spec, flat, executor=self.executor)

        put_table(self.store, self.keys, table)
        body = self.upload(source, base, version=version, nonce=nonce, seen=seen)
        laps.lap("upload")
        yield reach("publish.anchor_files_put")
        statistics = Statistics(
            units=table.units,
            changed_units=table.units,
            changed_tensors=len(table.tensors),
            frames=0,
            payload_bytes=0,
            full_bytes=table.size_bytes,
            nonfinite=nonfinite,
            codecs={},
        )
        return Draft(None, [], body, digests, statistics)

    def upload(
        self, source: WeightSource, base: Base, *, version: int, nonce: str, seen: Seen | None = None
    ) -> AnchorBody:
        """Put the files of the whole weights; those that are there already stay."""
        writer = BodyWriter(self.store, self.keys, spool=base.scratch, max_shard_bytes=self.settings.max_shard_bytes)
        return writer.write(
            version,
            nonce,
            table=source.table,
            read=source.units,
            files=source.files(),
            seen=seen,
            keep=base.landing,
        )

    def _refuse(self, name: str, nonfinite: int) -> None:
        if nonfinite and self.settings.nonfinite is NonFinite.REFUSE:
            raise NonFiniteWeights(
                f"{name} has {nonfinite} NaN or Inf among its changes and nonFinite is Refuse; nothing was published: "
                "go back to an earlier checkpoint, or publish with nonFinite: Publish"
            )


def put_table(store: WeightStore, keys: ViewKeys, table: TensorTable) -> None:
    """Make sure that the tensor table is in the store, and young: one that an earlier version left behind may be about to
    be collected."""
    key, data = keys.chunk(table.ref().blake3), table.encode()
    try:
        store.put_if_absent(key, data)
    except AlreadyExists:
        store.put(key, data)  # the same bytes, for its name is their hash


def empty_draft(base: int, digests: list[Digest], statistics: Statistics) -> Draft:
    """A version that changes nothing."""
    nothing = {"changed_units": 0, "changed_tensors": 0, "frames": 0, "payload_bytes": 0, "nonfinite": 0, "codecs": {}}
    return Draft(base, [], None, digests, statistics.model_copy(update=nothing))
