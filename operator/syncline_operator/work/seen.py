"""What is known of one kind's objects: the newest that a watch told, a list found or a write returned.

A watch may lose changes without a word. So a list is compared with what the watch told, and what it still has not told
a while later was missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from syncline_operator.kube.client import Listing
from syncline_operator.kube.resources import Document, ObjectKey, Resource, age_of, resource_version


@dataclass(frozen=True, slots=True)
class Suspect:
    """A change that a list found and the watch had not told by then."""

    key: ObjectKey
    version: int
    gone: bool


class Seen:
    """Objects of one kind by key. What comes out is not to be changed."""

    def __init__(self, resource: Resource, *, trim: Callable[[Document], Document] = lambda document: document) -> None:
        self.resource = resource
        self.trim = trim
        self.whole = False
        """Whether all objects that there are were seen: what is absent before that may well exist."""
        self._documents: dict[ObjectKey, Document] = {}
        self._told: dict[ObjectKey, int] = {}
        self._ended: dict[ObjectKey, int] = {}
        """Versions at which watched objects ended; kept from one list to the end of its comparison."""

    def get(self, key: ObjectKey) -> Document | None:
        return self._documents.get(key)

    def __iter__(self) -> Iterator[Document]:
        return iter(list(self._documents.values()))

    def __len__(self) -> int:
        return len(self._documents)

    def tell(self, document: Document, *, deleted: bool) -> ObjectKey:
        """From the watch."""
        key, version = self.resource.key(document), age_of(resource_version(document))
        if deleted:
            self._ended[key] = max(version, self._ended.get(key, 0))
            self._told.pop(key, None)
            held = self._documents.get(key)
            if held is not None and age_of(resource_version(held)) <= version:
                del self._documents[key]
        else:
            self._told[key] = max(version, self._told.get(key, 0))
            self._keep(key, self.trim(document))
        return key

    def wrote(self, document: Document) -> None:
        """From the answer to a write of this process, which the watch will tell later."""
        self._keep(self.resource.key(document), self.trim(document))

    def begin_list(self) -> None:
        """Before a list is asked for: whatever ends from now on may still be in it."""
        self._ended.clear()

    def compare(self, listings: Sequence[Listing]) -> list[Suspect]:
        """Take over what a list found, or one a namespace; returns what the watch has not told."""
        suspects: list[Suspect] = []
        present: set[ObjectKey] = set()
        for document in (item for listing in listings for item in listing.items):
            key, version = self.resource.key(document), age_of(resource_version(document))
            present.add(key)
            if self._ended.get(key, 0) >= version:
                continue
            self._keep(key, document)
            if self._told.get(key, 0) < version:
                suspects.append(Suspect(key, version, gone=False))
        moment = min(age_of(listing.resource_version) for listing in listings)
        for key, document in list(self._documents.items()):
            if key not in present and age_of(resource_version(document)) <= moment:
                suspects.append(Suspect(key, age_of(resource_version(document)), gone=True))
                del self._documents[key]
        self.whole = True
        return suspects

    def missed(self, suspects: list[Suspect]) -> list[ObjectKey]:
        """Those that the watch has not told to this moment."""
        keys: list[ObjectKey] = []
        for suspect in suspects:
            told = self._told.get(suspect.key, 0)
            if suspect.gone:
                heard = suspect.key in self._ended or told > suspect.version
            else:
                heard = max(told, self._ended.get(suspect.key, 0)) >= suspect.version
            if not heard:
                keys.append(suspect.key)
                if suspect.gone:
                    self._told.pop(suspect.key, None)
                else:
                    self._told[suspect.key] = suspect.version  # counted once
        return keys

    def _keep(self, key: ObjectKey, document: Document) -> None:
        held = self._documents.get(key)
        version = age_of(resource_version(document))
        if self._ended.get(key, 0) < version and (held is None or age_of(resource_version(held)) < version):
            self._documents[key] = document
