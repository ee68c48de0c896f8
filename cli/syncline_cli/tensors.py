"""What a version's delta holds of each tensor, read from its chunks: codecs, changes and bytes. Never decodes a weight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from syncline.chain import ChainReader
from syncline.errors import FormatInvalid
from syncline.wire.chunk import parse
from syncline.wire.limits import CODEC_NAMES
from syncline.wire.records import VersionManifest
from syncline.wire.tensors import TensorTable


@dataclass(slots=True)
class _Share:
    """One tensor's part of a delta."""

    codecs: set[str] = field(default_factory=set[str])
    changed: int = 0
    size_bytes: int = 0


def tensors_of(
    reader: ChainReader, manifest: VersionManifest, *, progress: Callable[[str, int, int], None]
) -> list[dict[str, Any]]:
    """A document for each tensor, in table order. Fetches the version's delta, one chunk at a time; of a version with all
    weights no share is known."""
    table = reader.table(manifest)
    shares = _shares(reader, manifest, table, progress) if manifest.base is not None else None
    documents: list[dict[str, Any]] = []
    for index, (spec, digest) in enumerate(zip(table.tensors, manifest.digests(), strict=True)):
        share = None if shares is None else shares[index]
        documents.append(
            {
                "name": spec.name,
                "dtype": spec.dtype,
                "shape": spec.shape,
                "aliases": spec.aliases,
                "bytes": spec.size_bytes,
                "digest": digest.hex,
                "changed_units": None if share is None else share.changed,
                "delta_bytes": None if share is None else share.size_bytes,
                "codecs": None if share is None else sorted(share.codecs),
            }
        )
    return documents


def _shares(
    reader: ChainReader, manifest: VersionManifest, table: TensorTable, progress: Callable[[str, int, int], None]
) -> defaultdict[int, _Share]:
    """By index in the table; payloads only, without the chunks' directories and shared tables."""
    tiling = reader.run_record().tiling.tiling
    total, done = sum(ref.size for ref in manifest.chunks), 0
    shares: defaultdict[int, _Share] = defaultdict(_Share)

    def frames_of(tensor: int) -> int:
        if tensor >= len(table.tensors):
            raise FormatInvalid(
                f"a chunk of version {manifest.version} names tensor {tensor} of {len(table.tensors)}; do not use it"
            )
        return table.tensors[tensor].grid(tiling).count

    for ref in manifest.chunks:
        for section in parse(reader.chunk(ref), what=reader.keys.chunk(ref.blake3), frames_of=frames_of).sections:
            share = shares[section.tensor]
            share.codecs.add(CODEC_NAMES.get(section.codec, f"codec {section.codec}"))
            share.changed += int(section.frames.changed.sum())
            share.size_bytes += len(section.frames.payloads)
        done += ref.size
        progress("fetch", done, total)
    return shares
