"""[mirror, origin] as one store to read from: the first that answers and has the object.

Control reads (head, manifests, listings, anchors) go through this; chunks go through `fetch`, which also judges their
bytes. A mirror may lag or have pruned what the origin still holds, so a missing object is looked for in the next
source, and anchors, skip deltas and vetoes are those of all sources together. Versions are listed at the nearest source
alone: what its mirror will bring soon, its nodes must not all fetch over the far link. Nothing is ever written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from typing_extensions import Buffer

from syncline.errors import NotFound, Retryable, StoreMisused, SynclineError
from syncline.store.base import Fetched, ObjectInfo, WeightStore

T = TypeVar("T")
LISTINGS_MAX = 64
"""Listings that are remembered of each source, for when it is silent."""


class FirstOf:
    """Reads from the first of several stores that can."""

    def __init__(self, stores: Sequence[WeightStore]) -> None:
        if not stores:
            raise ValueError("a follower needs at least one store")
        self._stores = stores
        self._listed: dict[tuple[int, str], list[ObjectInfo]] = {}

    @property
    def url(self) -> str:
        return self._stores[0].url

    def _first(self, read: Callable[[WeightStore], T]) -> T:
        failure: SynclineError | None = None
        for store in self._stores:
            try:
                return read(store)
            except (NotFound, Retryable) as error:
                # An outage outranks a missing object: the store that is down may be the one that has it.
                if failure is None or isinstance(error, Retryable):
                    failure = error
        assert failure is not None
        raise failure

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        return self._first(lambda store: store.get(key, max_bytes=max_bytes, if_none_match=if_none_match))

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        self._first(lambda store: store.get_range_into(key, offset, buffer))

    def head(self, key: str) -> ObjectInfo:
        return self._first(lambda store: store.head(key))

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        # Read whole inside the attempt: a listing that breaks half-way starts over at the next source.
        if after or limit is not None or prefix.endswith("/versions/"):
            return iter(self._first(lambda store: list(store.list_after(prefix, after=after, limit=limit))))
        return iter(self._all(prefix))

    def _all(self, prefix: str) -> list[ObjectInfo]:
        """Keys of every source, an object as the nearest has it. A source that is silent counts as it was: a veto that it
        holds must not end with its outage."""
        found: dict[str, ObjectInfo] = {}
        failure: SynclineError | None = None
        answered = False
        for number, store in enumerate(self._stores):
            try:
                infos = list(store.list_after(prefix))
                answered = True
                self._remember(number, prefix, infos)
            except (NotFound, Retryable) as error:
                failure = error
                infos = self._listed.get((number, prefix), [])
            for info in infos:
                found.setdefault(info.key, info)
        if not answered:
            assert failure is not None
            raise failure
        return [found[key] for key in sorted(found)]

    def _remember(self, number: int, prefix: str, infos: list[ObjectInfo]) -> None:
        self._listed.pop((number, prefix), None)
        self._listed[number, prefix] = infos
        while len(self._listed) > LISTINGS_MAX * len(self._stores):
            del self._listed[next(iter(self._listed))]

    def _refuse(self) -> NoReturn:
        raise StoreMisused(f"{self.url} is read through its sources here; nothing writes through them")

    def put_if_absent(self, key: str, data: Buffer) -> str:
        self._refuse()

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        self._refuse()

    def put(self, key: str, data: Buffer) -> str:
        self._refuse()

    def put_large(self, key: str, source: Path | Buffer) -> str:
        self._refuse()

    def delete(self, key: str) -> None:
        self._refuse()
