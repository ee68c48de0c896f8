"""[mirror, origin] as one store to read from: the nearest that has the object, and has it right.

A mirror may lag, may have pruned what the origin still holds, and may hold damaged copies. What a source cannot give is
looked for in the next one; who judges the bytes does so inside `first_good`, so that a copy that is wrong is passed
over like one that is missing. Anchors, skip deltas and vetoes are those of all sources together. Versions are listed at
the nearest source alone: what its mirror will bring soon, its nodes must not all fetch over the far link. Nothing is
ever written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from typing_extensions import Buffer

from syncline.errors import Corrupt, LinkMissing, NotFound, Retryable, StoreMisused, SynclineError
from syncline.store.base import Fetched, ObjectInfo, WeightStore

T = TypeVar("T")
LISTINGS_MAX = 64
"""Listings that are remembered of each source, for when it is silent."""


def first_good(store: WeightStore, read: Callable[[WeightStore], T]) -> T:
    """What `read` makes of the nearest source for which it does not raise.

    `read` gets one source after the other, takes an object from it and raises what its bytes deserve. When none will do,
    the error is the one that leaves most hope: an outage, then damage, then absence.
    """
    return store.first(read) if isinstance(store, FirstOf) else read(store)


def sources_of(store: WeightStore) -> Sequence[WeightStore]:
    """The stores that are read as one, nearest first; a plain store is its own."""
    return store.sources if isinstance(store, FirstOf) else (store,)


class FirstOf:
    """Reads from the nearest of several stores that can."""

    def __init__(
        self,
        sources: Sequence[WeightStore],
        *,
        damaged: Callable[[WeightStore, SynclineError], None] = lambda source, error: None,
    ) -> None:
        """`damaged` hears of each copy that was passed over because its bytes are wrong."""
        if not sources:
            raise ValueError("at least one store is needed to read from")
        self.sources = tuple(sources)
        self._damaged = damaged
        self._listed: dict[tuple[int, str], list[ObjectInfo]] = {}

    @property
    def url(self) -> str:
        return self.sources[0].url

    def first(self, read: Callable[[WeightStore], T]) -> T:
        """`first_good` of these sources."""
        failure: SynclineError | None = None
        for source in self.sources:
            try:
                return read(source)
            except SynclineError as error:
                if isinstance(error, Corrupt):
                    self._damaged(source, error)
                if failure is None or _hope(error) > _hope(failure):
                    failure = error
        assert failure is not None
        raise failure

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        return self.first(lambda source: source.get(key, max_bytes=max_bytes, if_none_match=if_none_match))

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        self.first(lambda source: source.get_range_into(key, offset, buffer))

    def head(self, key: str) -> ObjectInfo:
        return self.first(lambda source: source.head(key))

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        # Read whole inside the attempt: a listing that breaks half-way starts over at the next source.
        if after or limit is not None or prefix.endswith("/versions/"):
            return iter(self.first(lambda source: list(source.list_after(prefix, after=after, limit=limit))))
        return iter(self._all(prefix))

    def _all(self, prefix: str) -> list[ObjectInfo]:
        """Keys of every source, an object as the nearest has it. A source that is silent counts as it was: a veto that it
        holds must not end with its outage."""
        found: dict[str, ObjectInfo] = {}
        failure: SynclineError | None = None
        answered = False
        for number, source in enumerate(self.sources):
            try:
                infos = list(source.list_after(prefix))
                answered = True
                self._remember(number, prefix, infos)
            except SynclineError as error:
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
        while len(self._listed) > LISTINGS_MAX * len(self.sources):
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


def _hope(error: SynclineError) -> int:
    """The source that is down may be the one that has it; absence says least."""
    if isinstance(error, Retryable):
        return 2
    return 0 if isinstance(error, NotFound | LinkMissing) else 1
