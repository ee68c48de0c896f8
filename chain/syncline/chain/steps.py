"""The values that a plan is made of: where it starts, and the deltas that lead on from there. No I/O, no rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from syncline.wire.records import AnchorBody, ChunkRef, SkipManifest, VersionManifest

PUT_BACK = (
    "put the object back from a mirror or a backup, or publish a version that carries all weights: end the writer and "
    "`syncline publish FOLDER` with a new --state-dir"
)
"""What to do where no way leads from an anchor to head."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The whole weights of a version, whether the version has an anchor beside it or is one itself."""

    version: int
    digest: str
    body: AnchorBody


class StepKey(NamedTuple):
    """Names a step across plans, so that one that failed can be avoided in the next plan."""

    kind: Literal["delta", "skip", "anchor", "disk"]
    base: int | None
    version: int

    @property
    def words(self) -> str:
        """The step as a person reads of it."""
        if self.kind == "anchor":
            return f"the anchor of version {self.version}"
        if self.kind == "disk":
            return f"the checkpoint of version {self.version} on disk"
        return f"the {'skip ' if self.kind == 'skip' else ''}delta from version {self.base} to {self.version}"


@dataclass(frozen=True, slots=True)
class DeltaStep:
    """The version's own delta, from its base."""

    manifest: VersionManifest

    @property
    def key(self) -> StepKey:
        return StepKey("delta", self.manifest.base, self.manifest.version)

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def chunks(self) -> Sequence[ChunkRef]:
        return self.manifest.chunks

    @property
    def fetch_bytes(self) -> int:
        return sum(c.size for c in self.manifest.chunks)


@dataclass(frozen=True, slots=True)
class SkipStep:
    """A skip delta; `manifest` is the version that it leads to."""

    skip: SkipManifest
    manifest: VersionManifest

    @property
    def key(self) -> StepKey:
        return StepKey("skip", self.skip.base, self.skip.version)

    @property
    def version(self) -> int:
        return self.skip.version

    @property
    def chunks(self) -> Sequence[ChunkRef]:
        return self.skip.chunks

    @property
    def fetch_bytes(self) -> int:
        return sum(c.size for c in self.skip.chunks)


@dataclass(frozen=True, slots=True)
class AnchorStep:
    """Start from an anchor in the store, fetched whole. Only ever the first step."""

    version: int
    body: AnchorBody

    @property
    def key(self) -> StepKey:
        return StepKey("anchor", None, self.version)

    @property
    def fetch_bytes(self) -> int:
        return self.body.size


@dataclass(frozen=True, slots=True)
class DiskStep:
    """Start from the checkpoint on this node's disk. Only ever the first step."""

    version: int

    @property
    def key(self) -> StepKey:
        return StepKey("disk", None, self.version)

    @property
    def fetch_bytes(self) -> int:
        return 0


Step = DeltaStep | SkipStep | AnchorStep | DiskStep


@dataclass(frozen=True, slots=True)
class Plan:
    """The cheapest way to the target. Without steps the target is applied already.

    When the first step is an AnchorStep or a DiskStep, the weights come from a checkpoint and not from what is applied.
    """

    applied: int | None
    target: VersionManifest
    steps: Sequence[Step]

    @property
    def start(self) -> AnchorStep | DiskStep | None:
        """The checkpoint that the plan starts from; None when it starts from what is applied."""
        first = self.steps[0] if self.steps else None
        return first if isinstance(first, AnchorStep | DiskStep) else None

    @property
    def deltas(self) -> Sequence[DeltaStep | SkipStep]:
        """The steps after the start, in the order in which they are applied."""
        return [s for s in self.steps if isinstance(s, DeltaStep | SkipStep)]

    @property
    def fetch_bytes(self) -> int:
        return sum(s.fetch_bytes for s in self.steps)
