"""Where a training came from: the parent of a version whose step is not beyond head's.

A trainer that goes back names no version, only a step. Its parent is the newest version in head's own ancestry (by
parent links) whose step is lower than the new one; where none is, the oldest that can still be read. The base of the
delta stays head.
"""

from __future__ import annotations

from collections.abc import Iterator

from syncline.chain import ChainReader
from syncline.errors import ChainBroken, Corrupt
from syncline.wire.records import VersionManifest


def ancestry(reader: ChainReader, head: VersionManifest) -> Iterator[VersionManifest]:
    """Head, its parent, and so on, as far as retention left them."""
    at: VersionManifest | None = head
    while at is not None:
        yield at
        try:
            at = reader.manifest(at.parent) if at.parent is not None else None
        except (ChainBroken, Corrupt):
            return


def parent_for(reader: ChainReader, head: VersionManifest | None, step: int | None) -> int | None:
    """The parent of a version at `step`; None (head itself) for one that goes on."""
    if head is None or step is None or head.step is None or step > head.step:
        return None
    oldest = head
    for manifest in ancestry(reader, head):
        oldest = manifest
        if manifest.step is not None and manifest.step < step:
            break
    return oldest.version
