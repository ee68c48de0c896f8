"""Chains without weights: manifests, anchors and skip deltas as a planner and a reader see them, and a writer that puts
them into a store in the protocol's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from syncline.chain import Anchor
from syncline.errors import LinkMissing
from syncline.store.base import WeightStore
from syncline.store.keys import RunKeys
from syncline.wire.digest import Digest
from syncline.wire.records import (
    AnchorBody,
    AnchorFile,
    AnchorManifest,
    ChunkRef,
    HeadRecord,
    RunRecord,
    SkipManifest,
    Statistics,
    TilingPart,
    VersionManifest,
    VetoRecord,
    pack_digests,
)
from syncline.wire.tensors import TensorSpec, TensorTable

LINEAGE = "11" * 16
OTHER_LINEAGE = "22" * 16
WHOLE_BYTES = 1000
"""What every view of these chains weighs."""
TABLE = TensorTable(tensors=[TensorSpec(name="weight", dtype="BF16", shape=[WHOLE_BYTES // 2], axis=0)])


def chunk_bytes(size: int, salt: str) -> bytes:
    """`size` bytes that no other salt gives."""
    return blake3(salt.encode()).digest(length=size)


def chunk_refs(size: int, salt: str) -> list[ChunkRef]:
    """One chunk of `size` bytes, or none when `size` is 0."""
    if size == 0:
        return []
    data = chunk_bytes(size, salt)
    return [ChunkRef(blake3=blake3(data).hexdigest(), size=size, first_tensor=0, last_tensor=0)]


def anchor_body(size: int = WHOLE_BYTES, nonce: str = "0a" * 16) -> AnchorBody:
    data = chunk_bytes(size, f"anchor {nonce}")
    return AnchorBody(
        nonce=nonce, files=[AnchorFile(name="model.safetensors", size=size, blake3=blake3(data).hexdigest())]
    )


def statistics(payload_bytes: int) -> Statistics:
    return Statistics(
        units=WHOLE_BYTES // 2,
        changed_units=0,
        changed_tensors=0,
        frames=0,
        payload_bytes=payload_bytes,
        full_bytes=WHOLE_BYTES,
        nonfinite=0,
        codecs={},
    )


def version_manifest(
    version: int, base: int | None, size: int = 10, *, epoch: int = 1, lineage: str = LINEAGE, parent: int | None = None
) -> VersionManifest:
    """A version whose delta from `base` has `size` bytes; anchor-only when `base` is None."""
    digest = Digest(version, version * version)
    return VersionManifest(
        run="run",
        lineage=lineage,
        view="main",
        version=version,
        digest=digest.hex,
        writer="03" * 16,
        nonce=f"{version:032x}",
        created_ms=0,
        epoch=epoch,
        parent=parent if parent is not None else base,
        base=base,
        step=version,
        tensors=TABLE.ref(),
        tensor_digests=pack_digests([digest]),
        chunks=[] if base is None else chunk_refs(size, f"delta {base} {version}"),
        anchor=anchor_body() if base is None else None,
        statistics=statistics(size),
    )


def skip_manifest(manifest: VersionManifest, base: int, size: int) -> SkipManifest:
    """A skip delta of `size` bytes from `base` to the version of `manifest`."""
    return SkipManifest(
        run=manifest.run,
        lineage=manifest.lineage,
        view=manifest.view,
        version=manifest.version,
        digest=manifest.digest,
        writer="04" * 16,
        nonce="05" * 16,
        created_ms=0,
        base=base,
        base_digest=Digest(base, base * base).hex,
        manifest=manifest.identity(),
        tensors=manifest.tensors,
        chunks=chunk_refs(size, f"skip {base} {manifest.version}"),
        statistics=statistics(size),
    )


@dataclass(slots=True)
class Chain:
    """A chain in memory: a `PlanSource` that counts what it is asked."""

    manifests: dict[int, VersionManifest]
    anchor_sizes: dict[int, int] = field(default_factory=dict[int, int])
    """Anchors beside versions; anchor-only versions need no entry."""
    skip_sizes: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """By (version, base)."""
    asked: list[str] = field(default_factory=list[str])

    @classmethod
    def of(cls, *manifests: VersionManifest) -> Chain:
        return cls({m.version: m for m in manifests})

    def manifest(self, version: int) -> VersionManifest:
        self.asked.append(f"manifest {version}")
        if version not in self.manifests:
            raise LinkMissing(f"version {version} is gone")
        return self.manifests[version]

    def anchors(self) -> list[int]:
        self.asked.append("anchors")
        only = {v for v, m in self.manifests.items() if m.base is None}
        return sorted(only | (self.anchor_sizes.keys() & self.manifests.keys()))

    def anchor(self, version: int) -> Anchor:
        self.asked.append(f"anchor {version}")
        manifest = self.manifests[version]
        size = self.anchor_sizes.get(version, WHOLE_BYTES)
        return Anchor(version, manifest.digest, manifest.anchor or anchor_body(size, f"{version:032x}"))

    def skip_bases(self) -> Mapping[int, Sequence[int]]:
        self.asked.append("skips")
        found: dict[int, list[int]] = {}
        for version, base in self.skip_sizes:
            found.setdefault(version, []).append(base)
        return found

    def skip(self, version: int, base: int) -> SkipManifest:
        self.asked.append(f"skip {base} {version}")
        return skip_manifest(self.manifests[version], base, self.skip_sizes[version, base])


class ChainWriter:
    """Puts a chain without weights into a store."""

    def __init__(self, store: WeightStore, *, lineage: str = LINEAGE) -> None:
        self.store = store
        self.keys = RunKeys("run").view()
        self.lineage = lineage
        tiling = TilingPart(min_units=64, max_units=256, ways=4)
        record = RunRecord(run="run", lineage=lineage, created_ms=0, tiling=tiling)
        store.put_if_absent(RunKeys("run").run_json, record.encode())
        store.put(self.keys.chunk(TABLE.ref().blake3), TABLE.encode())

    def commit(self, version: int, base: int | None, size: int = 10, *, epoch: int = 1) -> VersionManifest:
        """Chunks, then the manifest. Head stays where it is."""
        manifest = version_manifest(version, base, size, epoch=epoch, lineage=self.lineage)
        if manifest.anchor is not None:
            self._put_anchor_files(version, manifest.anchor)
        for ref in manifest.chunks:
            self.store.put(self.keys.chunk(ref.blake3), chunk_bytes(ref.size, f"delta {base} {version}"))
        self.store.put_if_absent(self.keys.version(version), manifest.encode())
        return manifest

    def point(self, version: int, *, epoch: int = 1, lineage: str | None = None) -> None:
        """Move the head object, whatever is there."""
        record = HeadRecord(lineage=lineage or self.lineage, version=version, epoch=epoch)
        self.store.put(self.keys.head, record.encode())

    def anchor(self, manifest: VersionManifest) -> AnchorManifest:
        """Write an anchor beside a committed version."""
        body = anchor_body(nonce=f"{manifest.version:032x}")
        self._put_anchor_files(manifest.version, body)
        anchor = AnchorManifest(
            run=manifest.run,
            lineage=manifest.lineage,
            view=manifest.view,
            version=manifest.version,
            digest=manifest.digest,
            writer="06" * 16,
            nonce="07" * 16,
            created_ms=0,
            manifest=manifest.identity(),
            anchor=body,
        )
        self.store.put_if_absent(self.keys.anchor(manifest.version), anchor.encode())
        return anchor

    def skip(self, manifest: VersionManifest, base: int, size: int = 15) -> SkipManifest:
        """Write a skip delta."""
        skip = skip_manifest(manifest, base, size)
        for ref in skip.chunks:
            self.store.put(self.keys.chunk(ref.blake3), chunk_bytes(ref.size, f"skip {base} {manifest.version}"))
        self.store.put_if_absent(self.keys.skip(manifest.version, base), skip.encode())
        return skip

    def veto(self, version: int) -> None:
        record = VetoRecord(lineage=self.lineage, version=version, reason="reward fell", created_ms=0)
        self.store.put(self.keys.veto(version), record.encode())

    def _put_anchor_files(self, version: int, body: AnchorBody) -> None:
        for file in body.files:
            data = chunk_bytes(file.size, f"anchor {body.nonce}")
            self.store.put(self.keys.anchor_file(version, body.nonce, file.name), data)
