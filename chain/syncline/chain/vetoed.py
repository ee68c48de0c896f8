"""What a veto means for a choice of version, in one place, so a planner, an agent, retention and a command line choose
and speak alike. Asks for manifests through whoever hands them in; reads and writes nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias, cast

from syncline.errors import ChainBroken, Corrupt
from syncline.wire.records import VersionManifest, VetoRecord

Vetoed: TypeAlias = Collection[int] | Mapping[int, VetoRecord]
"""Versions that were marked bad; given as a reader returns them, an error says why."""


class Vetoes(Mapping[int, VetoRecord]):
    """Every vetoed version, by the mark that makes it one: its own, or that of the version whose weights it has.

    A version that changes nothing on its base is vetoed while its base is; otherwise the epoch that a writer takes when it
    starts would lift every veto of head. Whether a version is vetoed is found from that version downwards, at the time
    of asking, so one that is committed after the marks were listed is judged rightly too. It costs the manifest of a
    version above the lowest mark, and nothing where nothing was marked. What cannot be had of the manifests lifts
    nothing and bars nothing: the look ends there.
    """

    __slots__ = ("_lowest", "_manifest", "_marks")

    def __init__(self, marks: Mapping[int, VetoRecord], manifest: Callable[[int], VersionManifest]) -> None:
        self._marks = marks
        self._manifest = manifest
        self._lowest = min(marks, default=None)

    def __getitem__(self, version: int) -> VetoRecord:
        at: int | None = version
        while at is not None and self._lowest is not None and at >= self._lowest:
            if at in self._marks:
                return self._marks[at]
            at = self._same_as(at)
        raise KeyError(version)

    def __iter__(self) -> Iterator[int]:
        """The marked versions, each followed by those directly above it that are vetoed with it."""
        for marked in sorted(self._marks):
            at = marked
            yield at
            while at + 1 not in self._marks and at + 1 in self:
                at += 1
                yield at

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _same_as(self, version: int) -> int | None:
        """The base, where the version changes nothing on it."""
        try:
            manifest = self._manifest(version)
        except (ChainBroken, Corrupt):
            return None
        return manifest.base if not manifest.chunks else None


def newest_allowed(head: int, vetoed: Collection[int]) -> int | None:
    """The newest version at or below `head` that is not vetoed; None when there is none."""
    return next((v for v in range(head, 0, -1) if v not in vetoed), None)


def mark_of(version: int, vetoed: Vetoed) -> VetoRecord | None:
    """The mark that makes a version a vetoed one, if it is one and that is known."""
    return cast(Mapping[int, VetoRecord], vetoed).get(version) if isinstance(vetoed, Mapping) else None


def marked_bad(version: int, vetoed: Vetoed) -> str:
    """What to say of a vetoed version: that it was marked bad, and why if that is known."""
    record = mark_of(version, vetoed)
    if record is None:
        return f"version {version} was marked bad"
    if record.version != version:
        return f"version {version} changes nothing on version {record.version}, which was marked bad ({record.reason})"
    return f"version {version} was marked bad ({record.reason})"


def undoing(version: int, vetoed: Vetoed) -> str:
    """The command that takes back the mark of a vetoed version."""
    record = mark_of(version, vetoed)
    return f"syncline mark-bad {version if record is None else record.version} --undo"
