"""A small run with real weights in a store: versions, anchors and skip deltas, written plainly and in the protocol's
order.

For tests of whoever reads a run. It knows nothing of epochs, races or lost replies; the publisher does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from syncline.delta import EncodedDelta, digest_tensor
from syncline.store.base import WeightStore
from syncline.store.keys import RunKeys
from syncline.testing.tables import TILING, Weights, encode_delta, no_changes, safetensors_bytes
from syncline.wire.digest import total
from syncline.wire.records import (
    AnchorBody,
    AnchorFile,
    AnchorManifest,
    ChunkRef,
    HeadRecord,
    RunRecord,
    SkipManifest,
    VersionManifest,
    pack_digests,
)
from syncline.wire.tensors import TensorSpec, TensorTable

TABLE = TensorTable(
    tensors=[
        TensorSpec(name="a.mask", dtype="BOOL", shape=[7], axis=0),
        TensorSpec(name="b.codes", dtype="F4", shape=[6, 10], axis=0),
        TensorSpec(name="c.count", dtype="I64", shape=[], axis=0),
        TensorSpec(name="d.empty", dtype="BF16", shape=[0, 4], axis=0),
        TensorSpec(name="e.embed", dtype="BF16", shape=[64, 48], axis=0, aliases=["z.head"]),
        TensorSpec(name="f.down", dtype="BF16", shape=[40, 64], axis=1),
        TensorSpec(name="g.norm", dtype="F32", shape=[129], axis=0),
        TensorSpec(name="h.wide", dtype="I64", shape=[11, 30], axis=0),
    ]
)
"""Every unit width, bands of rows and of columns, a 0-d and an empty tensor, a tie; the odd sizes first, so that what
follows in a file is not aligned."""


class StoredRun:
    """One run's main view, with all its versions' weights at hand for comparison."""

    def __init__(self, store: WeightStore, *, seed: int = 0, table: TensorTable = TABLE) -> None:
        self.store = store
        self.table = table
        self.keys = RunKeys("run").view()
        self.lineage = f"{seed + 1:032x}"
        self.weights: dict[int, Weights] = {}
        self.manifests: dict[int, VersionManifest] = {}
        self._random = random.Random(seed)
        record = RunRecord(run="run", lineage=self.lineage, created_ms=0, tiling=TILING)
        store.put_if_absent(RunKeys("run").run_json, record.encode())
        store.put(self.keys.chunk(table.ref().blake3), table.encode())

    def first(self, *, shards: int = 1) -> VersionManifest:
        """Version 1, of random weights."""
        return self.commit_whole({t.name: self._some(t) for t in self.table.tensors}, shards=shards)

    def commit_whole(self, weights: Weights, *, shards: int = 1) -> VersionManifest:
        """The next version as an anchor-only one."""
        version = len(self.manifests) + 1
        body = self._put_files(version, weights, shards)
        nothing = EncodedDelta([], no_changes(self.table))
        return self._commit(version, None, weights, nothing, body)

    def step(self, *, changes: int = 40, base: int | None = None) -> VersionManifest:
        """The next version: about `changes` random units of each tensor differ from the base."""
        version = len(self.manifests) + 1
        base = base or version - 1
        weights = {name: self._changed(flat, changes) for name, flat in self.weights[base].items()}
        return self._commit(version, base, weights, self.encode(self.weights[base], weights), None)

    def empty_step(self) -> VersionManifest:
        """The next version, equal to the one before."""
        version = len(self.manifests) + 1
        return self._commit(
            version, version - 1, self.weights[version - 1], EncodedDelta([], no_changes(self.table)), None
        )

    def anchor(self, version: int, *, shards: int = 1) -> AnchorManifest:
        """Write an anchor beside a version."""
        manifest = self.manifests[version]
        anchor = AnchorManifest(
            run="run",
            lineage=self.lineage,
            view="main",
            version=version,
            digest=manifest.digest,
            writer="0c" * 16,
            nonce=self._nonce().hex(),
            created_ms=0,
            manifest=manifest.identity(),
            anchor=self._put_files(version, self.weights[version], shards),
        )
        self.store.put_if_absent(self.keys.anchor(version), anchor.encode())
        return anchor

    def skip(self, version: int, base: int) -> SkipManifest:
        """Write a skip delta."""
        manifest = self.manifests[version]
        delta = self.encode(self.weights[base], self.weights[version])
        skip = SkipManifest(
            run="run",
            lineage=self.lineage,
            view="main",
            version=version,
            digest=manifest.digest,
            writer="0d" * 16,
            nonce=self._nonce().hex(),
            created_ms=0,
            base=base,
            base_digest=self.manifests[base].digest,
            manifest=manifest.identity(),
            tensors=manifest.tensors,
            chunks=delta.chunks,
            statistics=delta.statistics,
        )
        self.store.put_if_absent(self.keys.skip(version, base), skip.encode())
        return skip

    def encode(self, old: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]) -> EncodedDelta:
        """Encode a delta; its chunks go to the store."""

        def sink(ref: ChunkRef, data: bytes) -> None:
            self.store.put_if_absent(self.keys.chunk(ref.blake3), data)

        return encode_delta(self.table, old, new, nonce=self._nonce, sink=sink)

    def point(self, version: int) -> None:
        """Set the head object."""
        record = HeadRecord(lineage=self.lineage, version=version, epoch=1)
        self.store.put(self.keys.head, record.encode())

    def _commit(
        self, version: int, base: int | None, weights: Weights, delta: EncodedDelta, body: AnchorBody | None
    ) -> VersionManifest:
        digests = [digest_tensor(spec, weights[spec.name]) for spec in self.table.tensors]
        manifest = VersionManifest(
            run="run",
            lineage=self.lineage,
            view="main",
            version=version,
            digest=total(digests).hex,
            writer="0b" * 16,
            nonce=self._nonce().hex(),
            created_ms=0,
            epoch=1,
            parent=base,
            base=base,
            step=version,
            tensors=self.table.ref(),
            tensor_digests=pack_digests(digests),
            chunks=delta.chunks,
            anchor=body,
            statistics=delta.statistics,
        )
        self.store.put_if_absent(self.keys.version(version), manifest.encode())
        self.weights[version] = weights
        self.manifests[version] = manifest
        self.point(version)
        return manifest

    def _put_files(self, version: int, weights: Weights, shards: int) -> AnchorBody:
        nonce = self._nonce().hex()
        files: dict[str, bytes] = {"config.json": b'{"model_type":"toy"}', "tokenizer.json": b"{}"}
        groups = [self.table.tensors[i::shards] for i in range(shards)]
        names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
        if shards == 1:
            names = ["model.safetensors"]
        for name, specs in zip(names, groups, strict=True):
            files[name] = safetensors_bytes(specs, weights)
        if shards > 1:
            where = {s.name: name for name, specs in zip(names, groups, strict=True) for s in specs}
            entries = ",".join(f'"{tensor}":"{name}"' for tensor, name in where.items())
            files["model.safetensors.index.json"] = b'{"weight_map":{' + entries.encode() + b"}}"
        for name, data in files.items():
            self.store.put_large(self.keys.anchor_file(version, nonce, name), data)
        listed = [AnchorFile(name=n, size=len(d), blake3=blake3(d).hexdigest()) for n, d in files.items()]
        return AnchorBody(nonce=nonce, files=listed)

    def _nonce(self) -> bytes:
        return self._random.randbytes(16)

    def _some(self, spec: TensorSpec) -> NDArray[Any]:
        return np.frombuffer(self._random.randbytes(spec.size_bytes), f"<u{spec.unit_bytes}").copy()

    def _changed(self, flat: NDArray[Any], changes: int) -> NDArray[Any]:
        result = flat.copy()
        for _ in range(min(changes, flat.size)):
            result[self._random.randrange(flat.size)] ^= flat.dtype.type(1 << self._random.randrange(flat.itemsize * 8))
        return result
