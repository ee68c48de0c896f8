"""The messages between agent and arm: see PROTOCOL.md beside this file, which decides. `framing` makes bytes of them.

Unknown types and fields are refused, and so are values that nobody could mean. No input or output here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from syncline import errors
from syncline.errors import EngineUnavailable, SynclineError
from syncline.versions import Policy
from syncline.wire.limits import DIMENSION_MAX, TENSOR_DIMS_MAX
from syncline.wire.records import Hex16, Name, Version
from syncline.wire.tensors import TensorName

PROTOCOL = 3
RANKS_MAX = 4096
REASON_MAX = 4000


def _sayable(text: object) -> object:
    """Reasons hold what other libraries wrote, file names of any bytes included: as much of it as a message can hold."""
    return text[:REASON_MAX].encode("utf-8", "replace").decode() if isinstance(text, str) else text


Reason = Annotated[str, BeforeValidator(_sayable)]
Label = Annotated[str, StringConstraints(max_length=256)]
Index = Annotated[int, Field(ge=0, le=DIMENSION_MAX)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


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


class BandPart(_Message):
    """Units [low, high) of one axis of a tensor, whole in every other, and what they add to its digest."""

    tensor: TensorName
    axis: Annotated[int, Field(ge=0, lt=TENSOR_DIMS_MAX)]
    low: Index
    high: Index
    digest: Hex16


class State(_Message):
    """Arm -> agent, at any time: what its rank holds now, why that is in doubt, and why its gate serves nothing."""

    type: Literal["state"] = "state"
    applied: AppliedPart | None
    error: Reason | None
    failed: Reason | None


class Hello(_Message):
    """Arm -> agent, first. `rank` null: no weights, only a gate. `holds` null: the view whole. `instance`: which start of
    its engine it is of; null does not say."""

    type: Literal["hello"] = "hello"
    protocol: int
    engine: Label
    pool: Label
    pod: Label
    rank: Annotated[int, Field(ge=0)] | None
    ranks: Annotated[int, Field(ge=1, le=RANKS_MAX)]
    gate: bool
    token: Label
    instance: Label | None
    holds: list[BandPart] | None
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
    """To a rank: `scatter` of this target may follow."""

    type: Literal["ready"] = "ready"
    id: int
    target: int
    undo: bool


class Scatter(_Message):
    """To a rank, while the gate is held: write."""

    type: Literal["scatter"] = "scatter"
    id: int
    target: int


class Confirm(_Message):
    """To a rank: read back what was written."""

    type: Literal["confirm"] = "confirm"
    id: int
    target: int


class Discard(_Message):
    type: Literal["discard"] = "discard"
    id: int


class Sweep(_Message):
    type: Literal["sweep"] = "sweep"
    id: int


class Prove(_Message):
    """To every rank and the gate: all of the island holds this version."""

    type: Literal["prove"] = "prove"
    id: int
    version: Version
    digest: Hex16


class Hold(_Message):
    """To the gate: stand between two steps."""

    type: Literal["hold"] = "hold"
    id: int
    policy: Policy


class Write(_Message):
    """To the gate, which is held: wait without patience, ranks are about to write."""

    type: Literal["write"] = "write"
    id: int


class Resume(_Message):
    """To the gate: steps go on, with `version`; what they produce stays inside."""

    type: Literal["resume"] = "resume"
    id: int
    version: Version


class Publish(_Message):
    """To the gate: what was kept inside may leave."""

    type: Literal["publish"] = "publish"
    id: int


class Release(_Message):
    """To the gate: end a hold before its `write`."""

    type: Literal["release"] = "release"
    id: int


class Fail(_Message):
    """To the gate: out of service until `prove`."""

    type: Literal["fail"] = "fail"
    id: int
    reason: Reason


class Open(_Message):
    """To the gate: this engine is not followed in place; serve what was loaded, as if there were no agent."""

    type: Literal["open"] = "open"
    id: int


class Staged(_Message):
    """`digests`: what each band's digest will be, in the order of `hello.holds`; null where that was null."""

    type: Literal["staged"] = "staged"
    id: int
    target: Version
    changed: Count
    staged_bytes: Count
    seconds: Seconds
    digests: list[Hex16] | None


class Confirmed(_Message):
    type: Literal["confirmed"] = "confirmed"
    id: int
    applied: AppliedPart


class Swept(_Message):
    """`digests` as in `staged`, of what is applied; null, too, when a commit came meanwhile."""

    type: Literal["swept"] = "swept"
    id: int
    applied: AppliedPart
    digests: list[Hex16] | None


class Held(_Message):
    type: Literal["held"] = "held"
    id: int
    spans: dict[Reason, Count]
    ended: list[Reason] | None


class Resumed(_Message):
    type: Literal["resumed"] = "resumed"
    id: int
    pause_seconds: Seconds


class Done(_Message):
    """The answer to a call that returns nothing."""

    type: Literal["done"] = "done"
    id: int


class Failed(_Message):
    type: Literal["failed"] = "failed"
    id: int
    error: Label
    message: Reason


RankCall = Stage | Ready | Scatter | Confirm | Discard | Sweep
GateCall = Hold | Write | Resume | Publish | Release | Fail | Open
Call = RankCall | GateCall | Prove
Answer = Staged | Confirmed | Swept | Held | Resumed | Done | Failed
Message = Hello | Welcome | Refused | State | Call | Answer

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


def failure(call_id: int, error: Exception) -> Failed:
    """An error as an answer."""
    return Failed(id=call_id, error=type(error).__name__, message=str(error))


def raised(failed: Failed) -> SynclineError:
    """The error that an answer carries; one that has no name here comes back as EngineUnavailable."""
    kind = _NAMED.get(failed.error)
    return kind(failed.message) if kind else EngineUnavailable(f"{failed.error}: {failed.message}")
