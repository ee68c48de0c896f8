"""Measures: how long store calls take, how many bytes they move, and why they fail. Changes nothing else."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import Buffer

from syncline.clock import Clock
from syncline.errors import AlreadyExists, HeadMoved, NotFound, StoreDenied, StoreMisused, StoreUnavailable
from syncline.metrics import Metrics
from syncline.store.base import Fetched, ObjectInfo, WeightStore
from syncline.store.buffers import flat_view

REASONS: tuple[tuple[type[Exception], str], ...] = (
    (NotFound, "not_found"),
    (AlreadyExists, "already_exists"),
    (HeadMoved, "head_moved"),
    (StoreUnavailable, "unavailable"),
    (StoreDenied, "denied"),
    (StoreMisused, "misused"),
)
"""Values of the `reason` label; anything else is `other`."""


class MeasuredStore:
    """Counts calls of another store."""

    def __init__(self, inner: WeightStore, metrics: Metrics, clock: Clock) -> None:
        self._inner = inner
        self._metrics = metrics
        self._clock = clock

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        with self._measured("get"):
            found = self._inner.get(key, max_bytes=max_bytes, if_none_match=if_none_match)
        self._moved("get", 0 if found is None else len(found.data))
        return found

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        with self._measured("get_range_into"):
            self._inner.get_range_into(key, offset, buffer)
        self._moved("get_range_into", flat_view(buffer).nbytes)

    def put_if_absent(self, key: str, data: Buffer) -> str:
        with self._measured("put_if_absent"):
            etag = self._inner.put_if_absent(key, data)
        self._moved("put_if_absent", flat_view(data).nbytes)
        return etag

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        with self._measured("compare_and_put"):
            written = self._inner.compare_and_put(key, data, etag=etag)
        self._moved("compare_and_put", flat_view(data).nbytes)
        return written

    def put(self, key: str, data: Buffer) -> str:
        with self._measured("put"):
            etag = self._inner.put(key, data)
        self._moved("put", flat_view(data).nbytes)
        return etag

    def put_large(self, key: str, source: Path | Buffer) -> str:
        with self._measured("put_large"):
            etag = self._inner.put_large(key, source)
        self._moved("put_large", source.stat().st_size if isinstance(source, Path) else flat_view(source).nbytes)
        return etag

    def head(self, key: str) -> ObjectInfo:
        with self._measured("head"):
            return self._inner.head(key)

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        """Each step of the listing is measured: most cost nothing, one a page costs a request. The caller's own time is
        not counted."""
        listing = self._inner.list_after(prefix, after=after, limit=limit)
        while True:
            with self._measured("list_after"):
                info = next(listing, None)
            if info is None:
                return
            yield info

    def delete(self, key: str) -> None:
        with self._measured("delete"):
            self._inner.delete(key)

    @contextmanager
    def _measured(self, operation: str) -> Generator[None]:
        began = self._clock.monotonic()
        try:
            yield
        except Exception as error:
            self._metrics.store_errors.labels(operation, reason_of(error)).inc()
            raise
        finally:
            self._metrics.store_seconds.labels(operation).observe(self._clock.monotonic() - began)

    def _moved(self, operation: str, count: int) -> None:
        self._metrics.store_bytes.labels(operation).inc(count)


def reason_of(error: Exception) -> str:
    """The bounded word for an error."""
    return next((word for kind, word in REASONS if isinstance(error, kind)), "other")
