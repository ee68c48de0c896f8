"""The JSON objects of a store as typed values: parse at the edge, trust inside.

Every field is always written (null where there is none) and unknown fields are refused, so each value has exactly one encoding.
`Record.parse` accepts only that encoding; `Record.encode` writes it. Manifests are immutable; the rest are single-writer records.
"""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from blake3 import blake3
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from syncline.errors import FormatInvalid
from syncline.wire import canonical
from syncline.wire.digest import Digest
from syncline.wire.limits import (
    ANCHOR_FILES_MAX,
    CHUNK_MAX_BYTES,
    CHUNKS_MAX,
    DIMENSION_MAX,
    FORMAT,
    FRAME_MAX_UNITS,
    MANIFEST_MAX_BYTES,
    RECORD_MAX_BYTES,
    STEP_MAX,
    TENSORS_MAX,
)
from syncline.wire.tiling import Tiling

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
Hex16 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""16 bytes: lineages, nonces, writers, digests."""
Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A BLAKE3."""
Version = Annotated[int, Field(ge=1, le=10**12 - 1)]
Epoch = Annotated[int, Field(ge=1, le=2**53 - 1)]
Millis = Annotated[int, Field(ge=0, le=2**53 - 1)]
Count = Annotated[int, Field(ge=0, le=DIMENSION_MAX)]
Step = Annotated[int, Field(ge=0, le=STEP_MAX)]
Text = Annotated[str, StringConstraints(max_length=4096)]


CHECK = "check"
CHECK_DIGITS = 16


def _file_name(name: str) -> str:
    parts = name.split("/")
    if not name or len(name) > 200 or any(p in ("", ".", "..") for p in parts) or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} is not a relative file name")
    return name


FileName = Annotated[str, AfterValidator(_file_name)]


class Part(BaseModel):
    """A piece of a record: frozen, strict types, no unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Record(Part):
    """A JSON object in a store."""

    max_bytes: ClassVar[int] = RECORD_MAX_BYTES

    def fields(self) -> dict[str, Any]:
        """Every field but `check`, as it is written."""
        return self.model_dump(mode="json")

    def unchecked_bytes(self) -> bytes:
        """Canonical bytes with an empty `check`: what the check covers."""
        return canonical.encode(self.fields() | {CHECK: ""})

    def encode(self) -> bytes:
        """Canonical bytes. FormatInvalid when they exceed the record's bound.

        `check` is the start of a BLAKE3 over the rest: a digit that flips on its way still makes valid JSON, and a reader would
        remember another epoch or lineage.
        """
        unchecked = self.unchecked_bytes()
        check = blake3(unchecked).hexdigest()[:CHECK_DIGITS]
        data = canonical.encode(self.fields() | {CHECK: check})
        if len(data) > self.max_bytes:
            raise FormatInvalid(f"a {type(self).__name__} of {len(data)} bytes is beyond {self.max_bytes}")
        return data

    @classmethod
    def parse(cls, data: bytes | memoryview, *, what: str) -> Self:
        """Read canonical bytes; FormatInvalid, naming `what`, for anything else."""
        value: Any = canonical.decode(data, max_bytes=cls.max_bytes, what=what)
        check: Any = None
        if isinstance(value, dict):
            check = cast(dict[str, Any], value).pop(CHECK, None)
        try:
            record = cls.model_validate(value)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
            raise FormatInvalid(f"{what} is not a valid {cls.__name__}: {problems}") from error
        if record.encode() != bytes(data):
            if check != blake3(record.unchecked_bytes()).hexdigest()[:CHECK_DIGITS]:
                raise FormatInvalid(
                    f"{what} does not match its own check {check}; read it again or from another source"
                )
            raise FormatInvalid(f"{what} leaves out fields that every {cls.__name__} has")
        return record


class TilingPart(Part):
    """The run's tiling; see wire.tiling."""

    min_units: Annotated[int, Field(ge=1, le=FRAME_MAX_UNITS)]
    max_units: Annotated[int, Field(ge=1, le=FRAME_MAX_UNITS)]
    ways: Literal[1, 2, 4, 8, 16, 32, 64]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_units < 2 * self.min_units - 1 and self.max_units != self.min_units:
            raise ValueError("max_units must be at least twice min_units, or equal to it")
        return self

    @property
    def tiling(self) -> Tiling:
        return Tiling(self.min_units, self.max_units, self.ways)


class RunRecord(Record):
    """`run.json`: written once when a run is created."""

    format: Literal["syncline/1"] = FORMAT
    kind: Literal["run"] = "run"
    run: Name
    lineage: Hex16
    """Random; a reused run name has another lineage."""
    created_ms: Millis
    tiling: TilingPart


class ObjectRef(Part):
    """A content-addressed object under chunks/."""

    blake3: Hex32
    size: Annotated[int, Field(ge=1, le=MANIFEST_MAX_BYTES)]


class ChunkRef(Part):
    """A chunk of a delta."""

    blake3: Hex32
    size: Annotated[int, Field(ge=1, le=CHUNK_MAX_BYTES)]
    first_tensor: Annotated[int, Field(ge=0, lt=TENSORS_MAX)]
    last_tensor: Annotated[int, Field(ge=0, lt=TENSORS_MAX)]
    """Tensor indices that its sections span, both included."""


class AnchorFile(Part):
    """A file of an anchor."""

    name: FileName
    size: Count
    blake3: Hex32


class AnchorBody(Part):
    """The files of an anchor; their keys are anchors/<version>/<nonce>/<name>."""

    nonce: Hex16
    files: Annotated[list[AnchorFile], Field(min_length=1, max_length=ANCHOR_FILES_MAX)]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)


class Signature(Part):
    """A detached signature over the canonical encoding of the manifest with `signature` null and `check` empty."""

    algorithm: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,32}$")]
    key_id: Annotated[str, StringConstraints(max_length=256)]
    value: Annotated[str, StringConstraints(max_length=4096)]


class Statistics(Part):
    """What the writer measured. Counts are units (wire.dtypes); bits a change = 8 * payload_bytes / changed_units."""

    units: Count
    changed_units: Count
    changed_tensors: Count
    frames: Count
    payload_bytes: Count
    """All chunk bytes."""
    full_bytes: Count
    """Bytes of the whole view."""
    nonfinite: Count
    """Changed or, in a version without a base, all units that are NaN or Inf."""
    codecs: dict[str, Count]
    """Changed units by codec name."""


class Manifest(Record):
    """What version, anchor and skip manifests share."""

    max_bytes: ClassVar[int] = MANIFEST_MAX_BYTES
    format: Literal["syncline/1"] = FORMAT
    run: Name
    lineage: Hex16
    view: Name
    version: Version
    digest: Hex16
    """View digest of `version`."""
    writer: Hex16
    """Random per writer process."""
    nonce: Hex16
    """Random per attempt: tells my own earlier try from somebody else's."""
    created_ms: Millis
    signature: Signature | None = None

    def signed_bytes(self) -> bytes:
        """What a signature covers."""
        return self.model_copy(update={"signature": None}).unchecked_bytes()

    def identity(self) -> str:
        """BLAKE3 of the encoding; names this manifest in other manifests."""
        return blake3(self.encode()).hexdigest()


class VersionManifest(Manifest):
    """`versions/<12 digits>.json`: writing it commits the version."""

    kind: Literal["version"] = "version"
    epoch: Epoch
    parent: Version | None
    """Version that the training came from; null for the first."""
    base: Version | None
    """Version that the delta starts from; null for an anchor-only version."""
    step: Step | None
    """The trainer's own step."""
    tensors: ObjectRef
    """The tensor table."""
    tensor_digests: Annotated[str, StringConstraints(max_length=TENSORS_MAX * 22)]
    """Base64 (RFC 4648, padded) of 16 bytes a tensor, in table order."""
    chunks: Annotated[list[ChunkRef], Field(max_length=CHUNKS_MAX)]
    anchor: AnchorBody | None
    """The whole weights of an anchor-only version; null exactly when `base` is not."""
    statistics: Statistics
    labels: dict[
        Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=256)]
    ] = {}
    """The trainer's own remarks."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.base is None) == (self.anchor is None):
            raise ValueError("a version has either a base or an anchor of its own")
        if self.base is None and self.chunks:
            raise ValueError("a version without a base has no chunks")
        if self.base is not None and self.base >= self.version:
            raise ValueError(f"base {self.base} is not below version {self.version}")
        if self.parent is not None and self.parent >= self.version:
            raise ValueError(f"parent {self.parent} is not below version {self.version}")
        if self.base is not None and self.parent is None:
            raise ValueError("a version with a base has a parent")
        return self

    def digests(self) -> list[Digest]:
        """Tensor digests in table order; FormatInvalid when the text is not whole digests."""
        return unpack_digests(self.tensor_digests, what=f"version {self.version}")


class AnchorManifest(Manifest):
    """`anchors/<12 digits>/manifest.json`: the whole weights of a committed version as servable safetensors."""

    kind: Literal["anchor"] = "anchor"
    manifest: Hex32
    """Identity of the version's manifest."""
    anchor: AnchorBody


class SkipManifest(Manifest):
    """`skips/<12 digits>/<12 digits>.json`: one delta from an anchor's version to a later one."""

    kind: Literal["skip"] = "skip"
    base: Version
    base_digest: Hex16
    manifest: Hex32
    """Identity of the version's manifest."""
    tensors: ObjectRef
    chunks: Annotated[list[ChunkRef], Field(max_length=CHUNKS_MAX)]
    statistics: Statistics


class HeadRecord(Record):
    """`head`: a hint at the newest version."""

    format: Literal["syncline/1"] = FORMAT
    kind: Literal["head"] = "head"
    lineage: Hex16
    version: Version
    epoch: Epoch


class VetoRecord(Record):
    """`vetoes/<12 digits>.json`: followers skip or leave the version."""

    format: Literal["syncline/1"] = FORMAT
    kind: Literal["veto"] = "veto"
    lineage: Hex16
    version: Version
    reason: Text
    created_ms: Millis


_GATEWAY_URL = re.compile(
    r"https?://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?(/[A-Za-z0-9._~-]{1,63}){0,8}"
)


def is_gateway_url(url: object) -> bool:
    """Whether requests may be sent there: http://host:port, perhaps with a path, and nothing that could stand for somebody else."""
    return isinstance(url, str) and _GATEWAY_URL.fullmatch(url) is not None


def _gateway_url(url: str) -> str:
    if not is_gateway_url(url):
        raise ValueError(f"{url!r} is not http://host:port")
    return url


class GatewayPart(Part):
    """The gateway beside a node's engine: where trainers reach it."""

    url: Annotated[str, AfterValidator(_gateway_url)]
    pod: Annotated[str, StringConstraints(max_length=253)] | None
    """The engine's own name."""
    waiting: Count
    """Requests that wait for a version."""
    at_engine: Count
    """Requests that the engine works on."""


class ConsumerRecord(Record):
    """`consumers/…/<node>.json`: a node's heartbeat. Fresh while the store's clock is within `ttl_ms` of the object's age."""

    format: Literal["syncline/1"] = FORMAT
    kind: Literal["consumer"] = "consumer"
    lineage: Hex16
    cluster: Name
    namespace: Name
    pool: Name
    node: Name
    ttl_ms: Millis
    applied: Version | None
    applied_digest: Hex16 | None
    proven: bool
    target: Version | None
    pinned: Version | None
    boot: Version | None
    """What the node would restart from: its checkpoint on disk."""
    lag_ms: Millis | None
    phase: Annotated[str, StringConstraints(max_length=32)]
    apply_path: Annotated[str, StringConstraints(max_length=32)]
    error: Text | None
    leaving: bool
    """The node said goodbye."""
    gateway: GatewayPart | None = None
    """Left out where there is none: who reads the record as it was before gateways told where they are still reads it then."""

    def fields(self) -> dict[str, Any]:
        told = super().fields()
        if self.gateway is None:
            del told["gateway"]
        return told


class LeaseRecord(Record):
    """`leases/<id>.json`: keeps everything from the newest anchor at or before `version` to head while it is fresh."""

    format: Literal["syncline/1"] = FORMAT
    kind: Literal["lease"] = "lease"
    lineage: Hex16
    owner: Text
    ttl_ms: Millis
    version: Version | None
    """Null: keep what a joiner needs now, the newest anchor and all that follows."""


def pack_digests(digests: list[Digest]) -> str:
    """Text of `tensor_digests`."""
    return base64.b64encode(b"".join(d.to_bytes() for d in digests)).decode("ascii")


def unpack_digests(text: str, *, what: str) -> list[Digest]:
    """Inverse of pack_digests; FormatInvalid otherwise."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise FormatInvalid(f"{what} has tensor digests that are not base64: {error}") from error
    if len(raw) % 16 or base64.b64encode(raw).decode("ascii") != text:
        raise FormatInvalid(f"{what} has tensor digests of {len(raw)} bytes, not 16 a tensor in canonical base64")
    return [Digest.from_bytes(raw[i : i + 16]) for i in range(0, len(raw), 16)]
