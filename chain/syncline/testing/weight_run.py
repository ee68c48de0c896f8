"""A run of small weights on disk without a store: versions in memory, deltas as chunk files, checkpoints as folders.

What an arm meets on its node, for tests of everything that stands between verified files and live memory.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncline.checkpoint import Checkpoint
from syncline.delta import digest_tensor
from syncline.testing.tables import TILING, Weights, encode_delta, no_changes, safetensors_bytes
from syncline.wire.digest import Digest, total
from syncline.wire.limits import CHUNK_TARGET_BYTES
from syncline.wire.records import (
    AnchorBody,
    AnchorFile,
    ChunkRef,
    TilingPart,
    VersionManifest,
    pack_digests,
)
from syncline.wire.tensors import TensorTable


class WeightRun:
    """Versions 1, 2, … of one table, each made from the one before by `step`."""

    def __init__(
        self,
        folder: Path,
        table: TensorTable,
        first: Mapping[str, NDArray[Any]],
        *,
        tiling: TilingPart = TILING,
        lineage: str = "ab" * 16,
        seed: int = 0,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.table = table
        self.tiling = tiling
        self.lineage = lineage
        self.table_file = folder / "table.json"
        self.table_file.write_bytes(table.encode())
        self._random = np.random.default_rng(seed)
        self._nonces = random.Random(seed)
        self._weights: list[Weights] = [{spec.name: first[spec.name].copy() for spec in table.tensors}]
        self._digests = [self._tensor_digests(self._weights[0])]

    @property
    def newest(self) -> int:
        return len(self._weights)

    def weights(self, version: int) -> Weights:
        """The version's own arrays; copy them before changing anything."""
        return self._weights[version - 1]

    def copy(self, version: int) -> Weights:
        """The version's weights in memory of their own, as an engine holds them."""
        return {name: units.copy() for name, units in self.weights(version).items()}

    def digest(self, version: int) -> str:
        return total(self._digests[version - 1]).hex

    def step(self, share: float = 0.05) -> int:
        """Flip the lowest bits of about `share` of the units of each tensor, at least of one; the new version."""
        changed = self.copy(self.newest)
        for units in changed.values():
            if units.size:
                places = self._random.choice(units.size, max(1, int(units.size * share)), replace=False)
                units[places] ^= units.dtype.type(1)
        return self.add(changed)

    def add(self, weights: Weights) -> int:
        """Take these weights as the next version."""
        self._weights.append(weights)
        self._digests.append(self._tensor_digests(weights))
        return self.newest

    def delta(
        self, base: int, version: int, *, codec: str | None = None, target_bytes: int = CHUNK_TARGET_BYTES
    ) -> list[Path]:
        """The delta between two versions as chunk files, in order. A second call writes other files."""
        files: list[Path] = []

        def sink(ref: ChunkRef, data: bytes) -> None:
            path = self.folder / f"{ref.blake3}.chunk"
            path.write_bytes(data)
            files.append(path)

        encode_delta(
            self.table,
            self.weights(base),
            self.weights(version),
            nonce=lambda: self._nonces.randbytes(16),
            sink=sink,
            tiling=self.tiling,
            codec=codec,
            target_bytes=target_bytes,
        )
        return files

    def manifest(self, version: int) -> VersionManifest:
        """A manifest of the version, as if it stood alone."""
        digests = self._digests[version - 1]
        return VersionManifest(
            run="run",
            lineage=self.lineage,
            view="main",
            version=version,
            digest=total(digests).hex,
            writer="03" * 16,
            nonce=f"{version:032x}",
            created_ms=0,
            epoch=1,
            parent=None,
            base=None,
            step=version,
            tensors=self.table.ref(),
            tensor_digests=pack_digests(digests),
            chunks=[],
            anchor=AnchorBody(nonce="0a" * 16, files=[AnchorFile(name="model.safetensors", size=1, blake3="00" * 32)]),
            statistics=no_changes(self.table),
        )

    def checkpoint(self, folder: Path, version: int, files: Mapping[str, str] | None = None) -> Checkpoint:
        """Write a servable checkpoint of the version into a new folder, with `files` beside it, and mark it."""
        folder.mkdir(parents=True)
        for name, text in (files or {}).items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "model.safetensors").write_bytes(safetensors_bytes(self.table.tensors, self.weights(version)))
        return Checkpoint.adopt(folder, self.manifest(version), self.table, self.tiling)

    def _tensor_digests(self, weights: Weights) -> list[Digest]:
        return [digest_tensor(spec, weights[spec.name]) for spec in self.table.tensors]
