"""The port that every store adapter and every wrapper implements.

A store maps keys to immutable-or-versioned byte objects and is the only source of truth of Syncline. The port is
synchronous and thread-safe: callers run it from thread pools, adapters parallelise large transfers themselves. Keys are
relative to the store's root (bucket + prefix); `store.keys` is the only module that spells them.

Errors, all from `syncline.errors`: NotFound, AlreadyExists, HeadMoved, StoreUnavailable (retryable), StoreDenied,
StoreMisused. An adapter never retries by itself; `RetryingStore` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from typing_extensions import Buffer

KEY_MAX_BYTES = 900
"""Longest key in UTF-8 bytes; S3 allows 1,024 with the prefix."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says about an object without its bytes."""

    key: str
    size: int
    etag: str
    """Opaque; equal etags of one key mean equal bytes."""
    modified: float
    """Seconds since the Unix epoch by the *store's* clock."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A small object read whole."""

    data: bytes
    etag: str
    modified: float


@runtime_checkable
class WeightStore(Protocol):
    """A place for chunks, manifests and records."""

    @property
    def url(self) -> str:
        """Where this store is, for messages and logs; never holds a credential."""
        ...

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        """Read a small object whole. None when `if_none_match` equals its etag. StoreMisused when it is larger than
        `max_bytes` (nothing beyond that is read). NotFound when it is not there."""
        ...

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        """Fill all of the writable `buffer` with the object's bytes from `offset`. StoreMisused when the object ends
        before; the buffer's content is then undefined."""
        ...

    def put_if_absent(self, key: str, data: Buffer) -> str:
        """Create the object; AlreadyExists when the key is taken. Returns the etag. Durable on return."""
        ...

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        """Replace the object whose etag is `etag`, or create it when `etag` is None. HeadMoved when that is no longer
        so."""
        ...

    def put(self, key: str, data: Buffer) -> str:
        """Write unconditionally; only for records that a single owner writes (heartbeats, leases, vetoes)."""
        ...

    def put_large(self, key: str, source: Path | Buffer) -> str:
        """Create a large object in parallel parts; AlreadyExists when the key is taken. Bounded memory.

        The object appears whole or not at all. Use keys that no two writers share (a nonce, or the content's hash): some
        S3 services check the condition of a multipart completion before they act on it, and then several racing writers
        of one key are told that they won, and one's bytes stay."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Describe an object. NotFound."""
        ...

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts (by UTF-8 bytes) after `after`, in key order; at most
        `limit`."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; a key that is not there is no error."""
        ...
