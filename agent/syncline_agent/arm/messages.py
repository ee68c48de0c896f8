"""The messages between agent and arm, and their bytes: see PROTOCOL.md beside this file, which decides.

A message is a u32-LE length and that many bytes of a JSON object whose `type` says what it is. Unknown types and fields
are refused; so is a length beyond MESSAGE_MAX_BYTES, before anything is read. No input or output here.
"""

from __future__ import annotations

import struct
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from syncline import errors
from syncline.errors import EngineUnavailable, ProtocolViolation, SynclineError
from syncline.versions import Policy
from syncline.wire.records import Hex16, Name, Version

PROTOCOL = 1
MESSAGE_MAX_BYTES = 16 << 20
RANKS_MAX = 4096
REASON_MAX = 4000
LENGTH = struct.Struct("<I")


def _sayable(text: object) -> object:
    """Reasons hold what other libraries wrote, file names of any bytes included: as much of it as a message can hold."""
    return text[:REASON_MAX].encode("utf-8", "replace").decode() if isinstance(text, str) else text


Reason = Annotated[str, BeforeValidator(_sayable)]
Label = Annotated[str, StringConstraints(max_length=256)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class AppliedPart(_Message):
    lineage: Hex16
    view: Name
    version: Version
    digest: Hex16
    proven: bool


class TilingPart(_Message):
    min_units: int
    max_units: int
    ways: int


class DeltaPart(_Message):
    version: int
    digest: str
    chunks: list[str]


class State(_Message):
    """Arm -> agent, at any time: what it holds now."""

    type: Literal["state"] = "state"
    applied: AppliedPart | None
    error: Reason | None


class Hello(_Message):
    """Arm -> agent, first."""

    type: Literal["hello"] = "hello"
    protocol: int
    engine: Label
    pool: Label
    pod: Label
    rank: Annotated[int, Field(ge=0)]
    ranks: Annotated[int, Field(ge=1, le=RANKS_MAX)]
    holds: Label
    token: Label
    state: State


class Welcome(_Message):
    type: Literal["welcome"] = "welcome"
    protocol: int


class Refused(_Message):
    """Agent -> arm instead of a welcome; the agent closes after it."""

    type: Literal["refused"] = "refused"
    message: Reason


class Stage(_Message):
    type: Literal["stage"] = "stage"
    id: int
    lineage: str
    view: str
    base: int
    base_digest: str
    target: int
    target_digest: str
    table: str
    tiling: TilingPart
    deltas: list[DeltaPart]
    checkpoint: str | None


class Ready(_Message):
    type: Literal["ready"] = "ready"
    id: int
    target: int
    policy: Policy
    undo: bool


class Scatter(_Message):
    type: Literal["scatter"] = "scatter"
    id: int
    target: int


class Release(_Message):
    type: Literal["release"] = "release"
    id: int


class Discard(_Message):
    type: Literal["discard"] = "discard"
    id: int


class Sweep(_Message):
    type: Literal["sweep"] = "sweep"
    id: int


class Staged(_Message):
    type: Literal["staged"] = "staged"
    id: int
    target: int
    changed: int
    staged_bytes: int
    seconds: float


class Scattered(_Message):
    type: Literal["scattered"] = "scattered"
    id: int
    version: int
    digest: str
    pause_seconds: float
    spans: dict[str, int]


class Swept(_Message):
    type: Literal["swept"] = "swept"
    id: int
    applied: AppliedPart


class Done(_Message):
    """The answer to a call that returns nothing."""

    type: Literal["done"] = "done"
    id: int


class Failed(_Message):
    type: Literal["failed"] = "failed"
    id: int
    error: Label
    message: Reason


Call = Stage | Ready | Scatter | Release | Discard | Sweep
Answer = Staged | Scattered | Swept | Done | Failed
Message = Hello | Welcome | Refused | State | Call | Answer
_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])

_NAMED = {
    kind.__name__: kind
    for kind in (
        errors.EngineUnavailable,
        errors.EngineUncertain,
        errors.DigestMismatch,
        errors.FrameCorrupt,
        errors.FormatInvalid,
        errors.ChunkCorrupt,
        errors.LayoutRefused,
        errors.SourceInvalid,
        errors.ProtocolViolation,
    )
}


def encode(message: Message) -> bytes:
    """Length and body."""
    body = message.model_dump_json().encode("utf-8")
    if len(body) > MESSAGE_MAX_BYTES:
        raise ProtocolViolation(f"a {message.type} of {len(body)} bytes is beyond {MESSAGE_MAX_BYTES}")
    return LENGTH.pack(len(body)) + body


def body_length(prefix: bytes) -> int:
    """Bytes that follow a length prefix; ProtocolViolation beyond the bound."""
    (length,) = LENGTH.unpack(prefix)
    if length > MESSAGE_MAX_BYTES:
        raise ProtocolViolation(
            f"a message of {length} bytes is beyond {MESSAGE_MAX_BYTES}; the peer is no arm or agent"
        )
    return length


def decode(body: bytes) -> Message:
    """The message in a body; ProtocolViolation for anything else. A hello of another protocol is refused by its number,
    whatever its other fields are."""
    try:
        return _ADAPTER.validate_json(body)
    except ValidationError as error:
        other = _other_protocol(body)
        if other is not None:
            raise ProtocolViolation(
                f"the peer speaks protocol {other}, this side {PROTOCOL}; run agent and engine of one release"
            ) from None
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ProtocolViolation(f"not a message of protocol {PROTOCOL}: {where}: {first['msg']}") from None


class _Numbered(BaseModel):
    protocol: int


def _other_protocol(body: bytes) -> int | None:
    try:
        spoken = _Numbered.model_validate_json(body).protocol
    except ValidationError:
        return None
    return None if spoken == PROTOCOL else spoken


def failure(call_id: int, error: Exception) -> Failed:
    """An error as an answer."""
    return Failed(id=call_id, error=type(error).__name__, message=str(error))


def raised(failed: Failed) -> SynclineError:
    """The error that an answer carries; one that has no name here comes back as EngineUnavailable."""
    kind = _NAMED.get(failed.error)
    return kind(failed.message) if kind else EngineUnavailable(f"{failed.error}: {failed.message}")
