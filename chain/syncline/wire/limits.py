"""Magic numbers, codec ids and every bound of wire format v1.

A reader checks a length or count against these before it trusts it. `tests/test_docs.py` compares this module with FORMAT.md's tables.
"""

from __future__ import annotations

FORMAT = "syncline/1"
"""First field of every JSON object in a store."""
CHUNK_MAGIC = b"SLCH"
CHUNK_FORMAT = 1

MANIFEST_MAX_BYTES = 64 << 20
"""Version, anchor and skip manifests, and tensor tables."""
RECORD_MAX_BYTES = 1 << 20
"""run.json, head, vetoes, heartbeats, leases."""
JSON_MAX_DEPTH = 16
CHUNK_MAX_BYTES = 256 << 20
CHUNK_TARGET_BYTES = 16 << 20
"""A writer closes a chunk once it holds this much; readers only know CHUNK_MAX_BYTES."""
CHUNKS_MAX = 1 << 16
"""Chunks of one delta."""
TENSORS_MAX = 1 << 20
TENSOR_NAME_MAX_BYTES = 512
TENSOR_DIMS_MAX = 16
ALIASES_MAX = 64
ANCHOR_FILES_MAX = 1 << 16
DIMENSION_MAX = (1 << 53) - 1
"""A dimension, a number of units and a size in bytes: what every JSON reader holds exactly."""
FRAME_MIN_UNITS = 1 << 15
FRAME_MAX_UNITS = 1 << 20
"""Bounds of the tiling in run.json; positions inside a frame therefore fit 20 bits."""
FRAME_WAYS = 16
SECTION_PARAMS_MAX_BYTES = 64
CODEC_TABLES_MAX = 64
CODEC_TABLE_MAX_BYTES = 1 << 15
STEP_MAX = (1 << 53) - 1

CODEC_RAW = 1
CODEC_SPARSE = 2
CODEC_XOR_ZSTD = 3
CODEC_XOR_LZ4 = 4
CODEC_CONTEXT = 5
CODEC_NAMES = {
    CODEC_RAW: "raw",
    CODEC_SPARSE: "sparse",
    CODEC_XOR_ZSTD: "xor-zstd",
    CODEC_XOR_LZ4: "xor-lz4",
    CODEC_CONTEXT: "context",
}
