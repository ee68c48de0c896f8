"""What lies in a view's folders, and which of it manifests name. Lists and reads; decides nothing, deletes nothing.

The sweeper lists before it reads any manifest, so an object whose manifest was committed meanwhile is seen to be
needed. The files of one anchor attempt are as young as the youngest of them, so an upload in progress is not taken from
the back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from syncline.chain import ChainReader
from syncline.store.base import ObjectInfo, WeightStore
from syncline.store.keys import ViewKeys
from syncline.wire.records import AnchorBody, SkipManifest


class Kind(IntEnum):
    """Kinds of objects in the order in which they are deleted."""

    MANIFEST = 0
    FILE = 1
    CHUNK = 2
    """Chunks and tensor tables: both are named by their hash."""
    REST = 3
    """Vetoes, and what a start-up probe that was killed left behind."""


@dataclass(slots=True)
class Listing:
    """Every object of the view that retention may delete, as it was when this was made."""

    store: WeightStore
    keys: ViewKeys
    _found: list[tuple[Kind, ObjectInfo]] = field(init=False)
    _sizes: dict[str, int] = field(init=False)
    _attempts: dict[str, float] = field(init=False)
    """Newest modification time of each anchor attempt's files."""

    def __post_init__(self) -> None:
        found: list[tuple[Kind, ObjectInfo]] = [(Kind.CHUNK, i) for i in self.store.list_after(self.keys.chunks)]
        for info in self.store.list_after(self.keys.anchors):
            own = info.key.endswith("/manifest.json") and info.key.count("/") == self.keys.anchors.count("/") + 1
            found.append((Kind.MANIFEST if own else Kind.FILE, info))
        for prefix in (self.keys.skips, self.keys.versions):
            found += [(Kind.MANIFEST, i) for i in self.store.list_after(prefix)]
        for prefix in (self.keys.vetoes, self.keys.probe):
            found += [(Kind.REST, i) for i in self.store.list_after(prefix)]
        self._found = sorted(found, key=lambda pair: (pair[0], pair[1].key))
        self._sizes = {info.key: info.size for _, info in self._found}
        self._attempts = {}
        for kind, info in self._found:
            if kind is Kind.FILE:
                attempt = self._attempt(info.key)
                self._attempts[attempt] = max(info.modified, self._attempts.get(attempt, 0.0))

    def _attempt(self, key: str) -> str:
        """Folder of an anchor attempt: version and nonce."""
        return "/".join(key.split("/")[: self.keys.anchors.count("/") + 2])

    def knows(self, key: str) -> bool:
        return key in self._sizes

    def holds(self, version: int, body: AnchorBody) -> bool:
        """Whether every file of an anchor was there."""
        return all(self._sizes.get(self.keys.anchor_file(version, body.nonce, f.name)) == f.size for f in body.files)

    def holds_chunks(self, skip: SkipManifest) -> bool:
        """Whether every chunk of a skip delta was there."""
        return all(self._sizes.get(self.keys.chunk(c.blake3)) == c.size for c in skip.chunks)

    def collectable(self) -> Iterable[tuple[Kind, ObjectInfo, float]]:
        """In the order of deletion, each with the time from which its age counts."""
        for kind, info in self._found:
            yield kind, info, self._attempts[self._attempt(info.key)] if kind is Kind.FILE else info.modified

    def version_of_file(self, key: str) -> int | None:
        """The version below whose number a file of an anchor lies; None where no writer puts one."""
        match = re.match(re.escape(self.keys.anchors) + r"(\d{12})/", key)
        return None if match is None else int(match[1])

    def version_of_veto(self, key: str) -> int | None:
        """The version that a veto marks; None for anything else."""
        match = re.fullmatch(re.escape(self.keys.vetoes) + r"(\d{12})\.json", key)
        return None if match is None else int(match[1])


def version_keys(reader: ChainReader, version: int) -> set[str]:
    """Everything that a version is made of."""
    keys, manifest = reader.keys, reader.manifest(version)
    made_of = {keys.version(version), keys.chunk(manifest.tensors.blake3)}
    made_of |= {keys.chunk(c.blake3) for c in manifest.chunks}
    return made_of if manifest.anchor is None else made_of | anchor_files(keys, version, manifest.anchor)


def anchor_files(keys: ViewKeys, version: int, body: AnchorBody) -> set[str]:
    """The files of an anchor, without its manifest."""
    return {keys.anchor_file(version, body.nonce, f.name) for f in body.files}


def skip_keys(keys: ViewKeys, skip: SkipManifest) -> set[str]:
    """Everything that a skip delta is made of."""
    own = {keys.skip(skip.version, skip.base), keys.chunk(skip.tensors.blake3)}
    return own | {keys.chunk(c.blake3) for c in skip.chunks}
