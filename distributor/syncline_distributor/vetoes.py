"""Marking a version bad: followers skip it, or leave it if they serve it. The version itself stays as it is. A version
that changes nothing on it has its weights, and is vetoed with it (`syncline.chain.vetoed`)."""

from __future__ import annotations

from syncline.chain import ChainReader
from syncline.clock import Clock
from syncline.errors import LinkMissing, NotFound
from syncline.wire.records import VetoRecord


def mark_bad(reader: ChainReader, version: int, reason: str, *, clock: Clock) -> VetoRecord:
    """Write the veto; marking again replaces the reason. NotFound when there is no such version."""
    try:
        lineage = reader.manifest(version).lineage
    except LinkMissing:
        raise NotFound(reader.keys.version(version), "only a committed version can be marked bad") from None
    record = VetoRecord(lineage=lineage, version=version, reason=reason, created_ms=int(clock.now() * 1000))
    reader.store.put(reader.keys.veto(version), record.encode())
    return record


def unmark(reader: ChainReader, version: int) -> None:
    """Take a version's own veto back. Followers may serve it again, unless it changes nothing on one that is vetoed."""
    reader.store.delete(reader.keys.veto(version))
