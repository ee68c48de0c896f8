"""The contract between the follower and whatever serves: describe, stage, commit, undo, discard, sweep.

The follower calls it, the arm's server and the in-process engine implement it. An `Engine` stands for one island: all
ranks of one endpoint, which commit as one. Every call blocks and is bounded in time; calls come one at a time from
the follower, except `describe` and `sweep`, which may come from another thread. The engine never fetches, and never
decides which version comes next.

What a failure means:
- EngineUnavailable: no arm is connected, or it went away before its first write. Nothing was written; the same call
  may be repeated.
- DigestMismatch, FrameCorrupt, LayoutRefused: the staged changes or the layout are refused. Nothing was written.
- EngineUncertain: the engine failed after its first write. Nothing it serves is proven until `undo`, or a new stage
  and commit from a checkpoint, and then `sweep` have succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from syncline.versions import Policy
from syncline.wire.digest import Digest
from syncline.wire.tiling import Tiling


@dataclass(frozen=True, slots=True)
class Applied:
    """What an engine holds in the memory that it computes with."""

    lineage: str
    view: str
    version: int
    digest: str
    """View digest of the version, in hex."""
    proven: bool
    """As DESIGN section 5 defines it: predicted, read back, and swept since the last load, wake or undo."""


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """Who the engine is and what it serves."""

    engine: str
    pool: str
    pod: str
    ranks: int
    applied: Applied | None
    """None while it has no weights, or holds weights that belong to no version (then it refuses by name)."""
    error: str | None = None
    """Why the engine is out of service, in words; None when it is not."""
    reloads: bool = False
    """It takes versions whole, as checkpoint folders, and never deltas."""
    unprovable: str | None = None
    """Why what it holds cannot be proven from outside, in words: healing would not help. None where it can be."""
    opening: bool = False
    """Refused, and its own gate is about to let it serve on: whoever takes another way to it waits until that is done."""
    second: str | None = None
    """That another engine of the pod keeps coming and is turned away, in words. This one serves on."""


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """One delta as files on the node."""

    version: int
    """The version that the delta leads to."""
    digest: str
    """View digest of that version."""
    chunks: Sequence[Path]
    """Whole verified chunks, in the manifest's order; the files live until the commit or `discard`."""


@dataclass(frozen=True, slots=True)
class StageRequest:
    """What to stage: either deltas, in order from `base` to `target`, or a checkpoint folder that holds `target`
    whole.

    The checkpoint serves when there is no path of deltas from what is live (going back, an uncertain engine): the arm
    then diffs it against live memory, and `base` says only what the follower believes is live.
    """

    lineage: str
    view: str
    base: int
    base_digest: str
    target: int
    target_digest: str
    table: Path
    """The tensor table's canonical bytes."""
    tiling: Tiling
    deltas: Sequence[DeltaFiles] = ()
    checkpoint: Path | None = None


@dataclass(frozen=True, slots=True)
class StageResult:
    """What stands ready to be committed."""

    target: int
    changed: int
    """Units that the commit will write."""
    staged_bytes: int
    seconds: float
    digests: Sequence[Digest] | None = None
    """Of one rank that holds parts: what each band's digest will be, in the order of `LiveWeights.holds`."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit or an undo did."""

    version: int
    digest: str
    pause_seconds: float
    """How long no forward step could run."""
    spans: Mapping[str, int] = field(default_factory=dict[str, int])
    """Request id -> output tokens that the version before produced so far; those in flight are counted."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A change of version as the requests in the engine met it."""

    before: Applied | None
    """None where nobody knows."""
    after: Applied | None
    """None where the commit failed after its first write: requests in flight failed with it."""
    spans: Mapping[str, int] | None
    """As of `CommitResult`; None where the engine does not count."""
    ended: Collection[str] | None
    """Ids of requests that ended since the commit before; None where nobody counted."""


Witness = Callable[[Crossing], None]
"""Called in the thread that commits, before any token of the new version may leave the engine."""


def nobody(_crossing: Crossing) -> None:
    """The witness where nobody asks which version a token came from."""


class Engine(Protocol):
    """One island of live weights."""

    def describe(self) -> EngineDescription:
        """Who is there and what it serves. EngineUnavailable when nobody is."""
        ...

    def stage(self, request: StageRequest) -> StageResult:
        """Decode and check the changes while the old version serves. The predicted digest equals the target's on
        return, else DigestMismatch; a base that is not what is live is a DigestMismatch too. A new call replaces what
        was staged before."""
        ...

    def commit(self, target: int, policy: Policy) -> CommitResult:
        """Switch to the staged `target` between two forward steps; every written position has been read back on
        return."""
        ...

    def undo(self, version: int, policy: Policy = Policy.KEEP) -> CommitResult:
        """Go back to `version`, the one that the last commit came from; requests in flight meet it as they meet a commit.
        LayoutRefused when that commit is not kept
        any more. The replica is proven again only after a sweep."""
        ...

    def discard(self) -> None:
        """Drop what is staged, if anything."""
        ...

    def sweep(self) -> Applied:
        """Compare the full digest of live memory with the applied version's. DigestMismatch when they differ: out of
        service."""
        ...
