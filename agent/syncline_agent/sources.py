"""[mirror, origin] as one store to read from: the first that answers and has the object.

Control reads (head, manifests, listings, anchors) go through this; chunks go through `fetch`, which also judges their
bytes. A mirror may lag or have pruned what the origin still holds, so a missing object is looked for in the next
source. Nothing is ever written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from typing_extensions import Buffer

from syncline.errors import NotFound, Retryable, StoreMisused, SynclineError
from syncline.store.base import Fetched, ObjectInfo, WeightStore

T = TypeVar("T")


class FirstOf:
    """Reads from the first of several stores that can."""

    def __init__(self, stores: Sequence[WeightStore]) -> None:
        if not stores:
            raise ValueError("a follower needs at least one store")
        self._stores = stores

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
        return iter(self._first(lambda store: list(store.list_after(prefix, after=after, limit=limit))))

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
