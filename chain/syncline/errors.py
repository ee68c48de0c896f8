"""Every error that Syncline raises on purpose, by what the caller must do about it.

    SynclineError
    ├── Retryable            try the same call again, later
    │   ├── StoreUnavailable     the store is down, slow, throttles or refuses for now
    │   ├── HeadMoved            a compare-and-put lost; read again and decide again
    │   ├── SourceNotReady       a checkpoint folder is still being written
    │   ├── CheckpointBusy       another process reads or writes the checkpoint on disk
    │   ├── DiskFull             this machine's disk has no room for what must be written
    │   ├── EngineUnavailable    no arm is connected, or it went away before its first write
    │   └── NoReplica            no replica of a fleet took a request within its patience
    ├── Corrupt              never use these bytes; fetch them again or from elsewhere
    │   ├── FormatInvalid        bytes that are not the wire format (truncated, out of bounds, unknown version)
    │   ├── FrameCorrupt         a frame whose checksum, length or content is wrong
    │   ├── ChunkCorrupt         a chunk that does not hash to its name
    │   └── DigestMismatch       weights are not what the manifest says
    ├── ChainBroken          the path to the target has a hole; plan again, perhaps from an anchor
    │   ├── LinkMissing          a version, anchor or chunk that should be there is gone
    │   ├── LineageChanged       the run name now belongs to another training
    │   ├── EpochRegressed       a version carries a lower epoch than its predecessor
    │   └── VersionVetoed        the version was marked bad
    ├── Fenced               another writer took a higher epoch; this writer stops for good
    ├── EngineUncertain      the engine failed after its first write; out of service until proven again
    └── Rejected             the caller's fault; repeating it cannot help
        ├── StoreDenied          credentials or permissions
        ├── StoreMisused         a condition that the store ignores, a key or size out of bounds
        ├── AlreadyExists        put_if_absent found the key taken
        ├── NotFound             the key, run, version or view does not exist
        ├── LayoutRefused        tensors, shapes or dtypes that do not fit
        ├── TiedWeightsDiffer    tied in the config, stored twice with different bits
        ├── NonFiniteWeights     NaN or Inf under nonFinite: Refuse
        ├── SourceInvalid        a checkpoint that can never be read (missing shard, bad header)
        └── ProtocolViolation    agent and arm (or a peer) broke the socket protocol

Corrupt, ChainBroken and Rejected carry the object's key or name in their message. Catch the branch, not the leaf,
unless something different is done for the leaf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class SynclineError(Exception):
    """Root of the tree. The message says what happened, to which object, and what to do."""


class Retryable(SynclineError):
    """The same call may succeed later."""


class StoreUnavailable(Retryable):
    """The store did not answer, or answered that it cannot serve now."""


class HeadMoved(Retryable):
    """A compare-and-put lost against another writer."""


class SourceNotReady(Retryable):
    """A checkpoint is not complete yet."""


class CheckpointBusy(Retryable):
    """Another process holds the lock of a checkpoint on disk."""


class DiskFull(Retryable):
    """This machine's disk has no room for what must be written."""


class EngineUnavailable(Retryable):
    """No arm is connected, or it went away before its first write."""


class NoReplica(Retryable):
    """No replica of a fleet took a request. `replicas` says of each why."""

    CODE = "no_replica"

    def __init__(self, message: str, replicas: Sequence[Mapping[str, Any]] = (), *, retry: bool = True) -> None:
        super().__init__(message)
        self.replicas = list(replicas)
        self.retry = retry

    @property
    def status(self) -> int:
        """HTTP's word for it: 409 where a proven replica is there and only its version is another, else 503."""
        return 409 if any(row["proven"] and not row["held"] for row in self.replicas) else 503

    def body(self) -> dict[str, Any]:
        """In OpenAI's error shape."""
        kind = "weight_version_error" if self.status == 409 else "unavailable"
        error = {"message": str(self), "type": kind, "param": None, "code": self.CODE, "retry": self.retry}
        return {"error": error | {"replicas": self.replicas}}


class Corrupt(SynclineError):
    """Bytes that must never be used."""


class FormatInvalid(Corrupt):
    """Bytes that are not the wire format."""


class FrameCorrupt(Corrupt):
    """A frame that does not decode to exactly what its header promises."""


class ChunkCorrupt(Corrupt):
    """A chunk whose bytes do not hash to its name."""


class DigestMismatch(Corrupt):
    """Weights whose digest is not the manifest's."""


class ChainBroken(SynclineError):
    """The planned path to the target cannot be walked."""


class LinkMissing(ChainBroken):
    """A version, anchor, layout or chunk that a plan needs is gone."""


class LineageChanged(ChainBroken):
    """The run name belongs to another training than the one applied."""


class EpochRegressed(ChainBroken):
    """A version carries a lower epoch than its predecessor."""


class VersionVetoed(ChainBroken):
    """The version was marked bad and must not be served."""


class Fenced(SynclineError):
    """Another writer holds a higher epoch."""


class EngineUncertain(SynclineError):
    """The engine may hold a mix of two versions."""


class Rejected(SynclineError):
    """The caller asked for something that cannot be."""


class StoreDenied(Rejected):
    """The store refused the credentials or the permission."""


class StoreMisused(Rejected):
    """A key, size or condition that this store cannot take."""


class AlreadyExists(Rejected):
    """put_if_absent found the key taken."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} already exists; read it back to see who wrote it")
        self.key = key


class NotFound(Rejected):
    """The object does not exist."""

    def __init__(self, key: str, hint: str = "check the run name, the prefix and retention") -> None:
        super().__init__(f"{key} does not exist; {hint}")
        self.key = key


class LayoutRefused(Rejected):
    """Tensors, shapes or dtypes that do not fit."""


class TiedWeightsDiffer(Rejected):
    """Tied in the config, stored twice with different bits."""


class NonFiniteWeights(Rejected):
    """NaN or Inf in weights whose policy refuses them."""


class SourceInvalid(Rejected):
    """A checkpoint that can never be read."""


class ProtocolViolation(Rejected):
    """A peer broke the socket protocol."""
