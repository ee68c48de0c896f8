"""Pure rules of who may follow whom. No I/O, no wire types: small values that every layer shares."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from syncline.errors import EpochRegressed, LineageChanged, LinkMissing


@dataclass(frozen=True, slots=True, order=True)
class VersionRef:
    """A version of one view of one lineage."""

    lineage: str
    view: str
    number: int

    def __str__(self) -> str:
        return f"{self.view}@{self.number}"


@dataclass(frozen=True, slots=True)
class Link:
    """What the rules need to know of a version manifest."""

    lineage: str
    version: int
    base: int | None
    epoch: int


class Policy(StrEnum):
    """What happens to requests in flight when an engine commits."""

    KEEP = "keep"
    DRAIN = "drain"
    ABORT = "abort"


class TargetMode(StrEnum):
    """What a pool wants to serve."""

    LATEST = "Latest"
    PINNED = "Pinned"


def check_successor(before: Link, after: Link) -> None:
    """`after` is the version numbered one above `before`: same lineage, no lower epoch.

    Raises LineageChanged, EpochRegressed or LinkMissing.
    """
    if after.lineage != before.lineage:
        raise LineageChanged(
            f"version {after.version} belongs to lineage {after.lineage}, its predecessor to {before.lineage}"
        )
    if after.version != before.version + 1:
        raise LinkMissing(f"version {before.version} is followed by {after.version}; the versions between are missing")
    if after.epoch < before.epoch:
        raise EpochRegressed(
            f"version {after.version} carries epoch {after.epoch}, its predecessor {before.epoch}: "
            "a fenced writer wrote it; do not serve it"
        )
